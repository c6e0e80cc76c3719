"""The results of runs, and comparisons of methods."""
