"""Input of searches for column-wise plans: items to place, sizes and costs of shards, packing, and memory checks."""
