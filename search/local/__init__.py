"""Plans made better, step by step."""
