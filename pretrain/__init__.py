"""Stage 2, pre-training: turns measurements into tensors, trains networks, and writes a bundle of cost models."""
