"""Measurements on disk, as Parquet chunks with a manifest, and the directories in which runs store results."""

from neuroshard.measure.store.data_directory import Chunks, DataDirectory, Manifest

__all__ = ["Chunks", "DataDirectory", "Manifest"]
