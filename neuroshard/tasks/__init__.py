"""The input of a search: tasks with tables, devices, constraints and memory use, and random tasks for experiments."""
