"""Trained policies that come with the package, one directory each."""
