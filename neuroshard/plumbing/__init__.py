"""Helper code that is independent of sharding: files, settings, checks of values, threads, progress bars and timing."""
