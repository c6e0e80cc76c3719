"""The interfaces of search methods and of verifiers, and `find_plan`, which finds a plan with a search method. If the
time of the dense network in a training step is unknown, `find_plan` returns a compromise for all times from 0 to 15 ms.
"""
