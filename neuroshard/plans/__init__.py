"""Plans: what they hold, what they break, how they are written and shown."""
