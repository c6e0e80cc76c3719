"""Local search, which improves plans step by step."""
