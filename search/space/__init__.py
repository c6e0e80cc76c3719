"""The space of column-wise plans: items, the sizes and costs of all shards of items, packing, and checks of memory."""
