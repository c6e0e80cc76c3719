"""Pre-trained cost models, a directory each."""
