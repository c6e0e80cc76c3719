"""Stage 2 of 3, pre-training, between measurements (stage 1) and search (stage 3).
The package turns measurements into tensors, trains networks, and writes a bundle of cost models.
"""
