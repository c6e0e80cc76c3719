"""Compiled inner loops of the local search; the functions take arrays and return arrays."""
