"""NeuroShard's three stages: `augment` measures kernels and exchanges, `pretrain` trains cost models on the
measurements, and `search` finds sharding plans.

Each subpackage is a symbolic link to the folder with this name at the top of the repository.
"""
