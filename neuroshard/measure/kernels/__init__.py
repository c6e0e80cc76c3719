"""Time kernel calls: draw random lookups for tables, and time the FBGEMM kernels that TorchRec calls for these
lookups.
"""
