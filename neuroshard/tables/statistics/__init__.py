"""Tables counted from training batches."""
