"""Reports on any number of runs: one page, with its tables as CSV and its figures as PNG."""
