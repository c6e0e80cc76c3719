"""Stage 2: records to tensors, networks, the one training loop, a bundle."""
