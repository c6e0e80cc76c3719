"""Time training steps of TorchRec: on all ranks, or as mirrored steps (one process runs one rank of a larger job)."""
