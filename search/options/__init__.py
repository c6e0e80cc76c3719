"""The options of every table: sharding types, tiers and equal parts; their bytes and costs; and choices of them."""
