"""Measure plans on hardware, compare the measured costs, and choose the best of the candidate plans of a search."""
