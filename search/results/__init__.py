"""The results of search runs, as files in the directory of the run."""
