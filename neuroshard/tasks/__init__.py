"""The input of a search: tasks, constraints and memory use, and random tasks as in the papers."""
