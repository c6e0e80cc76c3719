"""The interfaces of search methods and of verifiers, and `find_plan`, which finds a plan with a search method. The best
plan depends on the time of the dense network in a training step. If this time is unknown, `find_plan` returns one plan
that is a compromise for all times from 0 to 15 ms.
"""
