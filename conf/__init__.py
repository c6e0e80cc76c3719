"""Hydra configs: one file per run, one folder per choice."""
