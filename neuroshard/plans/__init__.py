"""Plans: what they hold, what they break, how they are shown."""
