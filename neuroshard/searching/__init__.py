"""The interface of search methods, and a search that wraps any method."""
