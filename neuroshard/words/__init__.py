"""The words that all of it is said in: forms, tiers and homes, shards, collectives, machines."""
