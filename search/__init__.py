"""Stage 3: the search methods, and the commands that search for plans of tasks and measure the plans on hardware."""
