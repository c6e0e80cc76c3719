"""The search methods, with one file for each method."""
