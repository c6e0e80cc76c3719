"""The interfaces of search methods and of verifiers, and a function that chooses a plan if the time of the dense
network in a training step is unknown.
"""
