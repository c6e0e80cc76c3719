"""Measure plans on hardware, compare the costs, and choose the best of the candidate plans of a search."""
