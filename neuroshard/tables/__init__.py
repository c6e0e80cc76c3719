"""Embedding tables, their reuse histograms, and the sources of tables (one file per source)."""

from neuroshard.tables.reuse import zipf_reuse
from neuroshard.tables.table import Table, check_unique_names, halvings

__all__ = ["Table", "check_unique_names", "halvings", "zipf_reuse"]
