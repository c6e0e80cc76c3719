"""The version of this package, alone in its module, so that whoever needs the version imports nothing else."""

__version__ = "0.1.0"
