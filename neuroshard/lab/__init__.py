"""Measuring: one loop for samples in batches, kept as parts on disk; and plans, measured with it."""
