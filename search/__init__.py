"""Stage 3: the search methods, and the commands that search plans for tasks and measure the plans on hardware."""
