"""The version of this package, in a separate module so that reading the version imports nothing else."""

__version__ = "0.1.0"
