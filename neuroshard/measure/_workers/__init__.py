"""The worker processes that measure samples, and the code that runs the timing protocol in each worker process."""
