"""Time training steps of TorchRec, on all ranks or mirrored on one."""
