"""What knows nothing of sharding: files, settings, checks, threads, progress, clocks."""
