"""Embedding tables, histograms of how often a batch looks up the same rows, and functions that load tables."""

from neuroshard.tables.reuse import zipf_reuse
from neuroshard.tables.table import Table, check_unique_names, halvings

__all__ = ["Table", "check_unique_names", "halvings", "zipf_reuse"]
