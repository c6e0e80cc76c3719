"""Sharding plans: checks, files, text and pictures, and the changes from one plan to another."""
