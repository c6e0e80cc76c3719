"""Measurements on disk, and the directories that runs leave: Parquet chunks and a manifest."""

from neuroshard.measure.store.data_directory import Chunks, DataDirectory, Manifest

__all__ = ["Chunks", "DataDirectory", "Manifest"]
