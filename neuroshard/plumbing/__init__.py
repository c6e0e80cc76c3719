"""Code that does not depend on sharding: files, settings, checks, threads, progress and clocks."""
