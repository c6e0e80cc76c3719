"""Measurements on disk: Parquet chunks and a manifest."""

from neuroshard.records.store import Chunks, DataDirectory, Manifest

__all__ = ["Chunks", "DataDirectory", "Manifest"]
