"""Measurements on disk: Parquet parts and a manifest."""

from neuroshard.records.store import DataDirectory, Manifest, Parts

__all__ = ["DataDirectory", "Manifest", "Parts"]
