"""Stage 3: search methods, runs over many tasks, evaluation on hardware."""
