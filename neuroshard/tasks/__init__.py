"""What a search is asked: tasks, their constraints and memory, and how tasks are drawn."""
