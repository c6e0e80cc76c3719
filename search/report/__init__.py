"""Reports on any number of runs. A report is one page with tables and figures; each table is saved as a CSV file, and
each figure as a PNG file.
"""
