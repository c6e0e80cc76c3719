"""Statistics of tables, counted from training batches."""
