"""Models that learn from the plans that they propose: search, measure what it found, fit further, and again."""
