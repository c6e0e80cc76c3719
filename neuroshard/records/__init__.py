"""Measurements on disk: Parquet parts and a manifest."""

from neuroshard.records.manifest import Manifest
from neuroshard.records.store import DataDirectory, Parts

__all__ = ["DataDirectory", "Manifest", "Parts"]
