"""A gloo process group of real ranks that records every exchange, to compare with the exchanges of mirrored ranks."""

from datetime import timedelta

import torch.distributed as dist

from neuroshard.measure.steps._mirror import Mirror, World


class Relay(Mirror):
    """A process group that reports each exchange of gloo to `watch`, and waits until the exchange ends."""

    def __init__(self, store, rank, size, world):
        super().__init__(rank, size, world)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=100))

    def _relay(self, name, sent, received, run, *given):
        with self._world.watch(name, sent, received):
            work = run(*given)
            work.wait()
        return work

    def all_to_all_single(self, output, given, output_splits, splits, opts=None):
        run = self._gloo.alltoall_base
        return self._relay("all_to_all", [given], [output], run, output, given, output_splits, splits)

    def allreduce(self, tensors, opts=None):
        given = [tensors] if opts is None else [tensors, opts]
        return self._relay("all_reduce", tensors, tensors, self._gloo.allreduce, *given)

    def broadcast(self, tensors, opts=None):
        return self._relay("broadcast", tensors, tensors, self._gloo.broadcast, tensors, opts)

    def barrier(self, opts=None):
        return self._gloo.barrier()

    def allgather(self, outputs, given, opts=None):
        received = [one for its in outputs for one in its]
        return self._relay("all_gather", given, received, self._gloo.allgather, outputs, given)

    def all_gather_single(self, output, given, opts=None):
        return self._relay("all_gather", [given], [output], self._gloo._allgather_base, output, given)

    def reduce_scatter_single(self, output, given, opts=None):
        return self._relay("reduce_scatter", [given], [output], self._gloo._reduce_scatter_base, output, given)

    alltoall_base = all_to_all_single
    _allgather_base = all_gather_into_tensor = all_gather_single
    _reduce_scatter_base = reduce_scatter_tensor = reduce_scatter_single


def join_relay(rank, size, meet_at, watch):
    """Make a default process group that reports its exchanges to `watch`; `meet_at` is the path of a new file."""
    world = World(rank, size, watch)
    dist.Backend.register_backend("relay", lambda store, r, n, _: Relay(store, r, n, world), devices=["cpu"])
    dist.init_process_group("relay", rank=rank, world_size=size, store=dist.FileStore(str(meet_at), size))
