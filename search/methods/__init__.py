"""The search methods, a file each."""
