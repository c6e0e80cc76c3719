"""Measuring: one loop for samples in batches, kept as chunks on disk; and plans, measured with it."""
