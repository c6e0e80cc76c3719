"""The command line and the pipeline in Python: arguments, help, listings, failures, sweeps and stage functions."""
