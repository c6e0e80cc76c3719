"""The loop that measures samples in batches and stores them in chunks on disk;
and measurements of plans with this loop.
"""
