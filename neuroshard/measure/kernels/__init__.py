"""Time FBGEMM's kernels as TorchRec calls them, with random lookups drawn for each table."""
