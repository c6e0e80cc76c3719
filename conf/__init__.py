"""Hydra configs: one file for each command, and one folder for each choice, such as the search method."""
