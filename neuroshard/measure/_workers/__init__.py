"""The worker processes that measure, and the timing protocol that runs in each of them."""
