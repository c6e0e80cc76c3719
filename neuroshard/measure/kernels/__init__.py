"""Time kernel calls: the lookups that are drawn for tables, and the FBGEMM kernels that TorchRec calls."""
