"""Trained policies that are installed with the package, one directory each."""
