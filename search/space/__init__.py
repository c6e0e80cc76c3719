"""The space of column-wise plans: items, with the sizes and costs of all their shards; packing; checks of memory."""
