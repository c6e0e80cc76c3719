"""Reports on any number of runs: a report is one page, with the tables of the page as CSV and the figures as PNG."""
