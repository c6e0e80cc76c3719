"""The `neuroshard` command, and Python functions that run the same stages: collect, pretrain, search and evaluate."""
