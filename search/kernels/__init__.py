"""Compiled inner loops; arrays in, arrays out."""
