"""The vocabulary of the package: sharding types, tiers, shards, collectives and machines."""
