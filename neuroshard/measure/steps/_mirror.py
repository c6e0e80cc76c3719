"""Mirrored ranks: one process runs any one rank of a process group of any size, and imitates exchanges with the other
ranks.
"""

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import HashStore, Work
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.futures import Future
from torchrec.distributed import comm

_BACKEND = "mirror"
_HOST_SIZE = "LOCAL_WORLD_SIZE"  # the size of a host for TorchRec
_POD_SIZE = "TORCHREC_RESOLVED_POD_SIZE"  # the number of hosts over which TorchRec shards rows
_NONE = pickle.dumps(None)  # rank 0's answer to TorchRec: do not check collectives
_WORLDS: list["World"] = []  # the world of the current group, if any: torch creates groups by the backend's name alone

_ProcessGroup: Any = dist.ProcessGroup  # typed as Any, because torch overloads each method
Tensors = Sequence[torch.Tensor]
# A context that is entered around every exchange, with the collective's name and the sent and received tensors.
Watch = Callable[[str, Tensors, Tensors], AbstractContextManager[None]]


@dataclass(frozen=True)
class World:
    """The state of a process that runs one rank of a larger job and imitates all other ranks.
    All process groups in the process share this state.

    Attributes:
        rank, size: this process's rank, and the number of ranks.
        watch: context that is entered around every exchange.
        told: data that all ranks send to this rank in the next exchanges of whole numbers (splits, lengths, indices);
            if it is empty, all ranks send the same data as this rank.
        kept: data that this rank sent to itself in exchanges of whole numbers without an entry in `told`.
    """

    rank: int
    size: int
    watch: Watch
    told: deque[torch.Tensor] = field(default_factory=deque)
    kept: list[torch.Tensor] = field(default_factory=list)


class Mirror(_ProcessGroup):  # type: ignore[misc]
    """A process group with only one real rank.
    The other ranks mirror the real rank: in most exchanges, the real rank receives its own data in place of the other
    ranks' data.

    So tensors have the same shapes as among real ranks; values that other ranks would have looked up are this rank's
    values. An exchange takes only the time to copy a tensor, and is complete when the call returns.
    """

    def __init__(self, rank: int, size: int, world: World) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._world = rank, size, world

    def getBackendName(self) -> str:  # noqa: N802  # torch's name, as all below
        """Return the name under which torch knows this backend."""
        return _BACKEND

    @property
    def pg_name(self) -> str:
        """The name that torch gave to this group."""
        name: str = dist.distributed_c10d._world.pg_names[self]
        return name

    group_name = pg_name  # the name of this property in newer releases of torch

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices for which this group tells torch that it has a backend: a list with only the CPU.
        The list is not empty because some releases of TorchRec refuse groups without a device.
        """
        return [torch.device("cpu")]

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        _output_splits: Sequence[int],
        splits: Sequence[int],
        opts: object = None,
    ) -> Work:
        """Send some rows of `given` to each rank, and receive in `output` the rows that all ranks send to this rank."""
        with self._world.watch("all_to_all", [given], [output]):
            mine = _chunk(given, splits, self._rank, self._size)
            if given.is_floating_point() or self._size < self._world.size:
                _fill(output, mine)
            elif self._world.told:
                output.copy_(self._world.told.popleft().view_as(output))
            else:
                self._world.kept.append(mine.clone())
                _fill(output, mine)
        return _done(output)

    def alltoall(self, outputs: Tensors, given: Tensors, opts: object = None) -> Work:
        """Send one tensor of `given` to each rank, and receive in `outputs` one tensor from each rank."""
        with self._world.watch("all_to_all", given, outputs):
            for output in outputs:
                _fill(output, given[self._rank])
        return _done(outputs)

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        """Replace each tensor by the result of the reduction over all ranks.
        The other ranks have the same values as this rank, so the sum over all ranks is the tensor multiplied by the
        number of ranks.

        Means and extremes of mirrored ranks equal this rank's values.
        """
        with self._world.watch("all_reduce", tensors, tensors):
            if opts is None or opts.reduceOp == dist.ReduceOp.SUM:
                for tensor in tensors:
                    tensor.mul_(self._size)
        return _done(tensors)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        """Imitate a broadcast.
        Weights stay unchanged, as if the other ranks had the same weights. Python objects that another rank broadcasts
        are replaced by None, because no process runs the other rank.
        """
        with self._world.watch("broadcast", tensors, tensors):
            for tensor in tensors if opts.rootRank != self._rank else ():
                if tensor.dtype == torch.uint8:
                    tensor.copy_(torch.frombuffer(bytearray(_NONE), dtype=torch.uint8))
                elif tensor.dtype == torch.int64 and tensor.numel() == 1:
                    # Torch sends the length of an object first.
                    tensor.fill_(len(_NONE))
        return _done(tensors)

    def barrier(self, opts: object = None) -> Work:
        """Return at once, because no other rank exists."""
        return _done([])

    def allgather(self, outputs: Sequence[Tensors], given: Tensors, opts: object = None) -> Work:
        """Receive the tensors of every rank: each list in `outputs` gets one tensor per rank."""
        with self._world.watch("all_gather", given, [tensor for gathered in outputs for tensor in gathered]):
            for gathered, mine in zip(outputs, given, strict=True):
                for output in gathered:
                    _fill(output, mine)
        return _done(outputs)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: object = None) -> Work:
        """Imitate an all-gather: `given` has the rows of this rank, and `output` receives the rows of all ranks."""
        return self.all_gather_single_coalesced([output], [given])

    def all_gather_single_coalesced(self, outputs: Tensors, given: Tensors, opts: object = None) -> Work:
        """Receive the rows of all ranks for several tensors.
        For each tensor in `given`, the tensor at the same position in `outputs` gets the rows of all ranks.
        """
        with self._world.watch("all_gather", given, outputs):
            for output, mine in zip(outputs, given, strict=True):
                _fill(output, mine)
        return _done(outputs)

    def reduce_scatter(self, outputs: Tensors, given: Sequence[Tensors], opts: object = None) -> Work:
        """Imitate several reduce-scatters, one for each tensor in `outputs`.
        For each output, `given` has a list with one tensor for each rank. The output becomes the tensor for this rank,
        multiplied by the number of ranks. This is the sum over all ranks if all ranks have the same tensors.
        """
        with self._world.watch("reduce_scatter", [tensor for parts in given for tensor in parts], outputs):
            for output, parts in zip(outputs, given, strict=True):
                torch.mul(parts[self._rank], self._size, out=output)
        return _done(outputs)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: object = None) -> Work:
        """Imitate a reduce-scatter: `output` receives the sum of the rows that all ranks send to this rank.
        `given` has an equal number of rows for each rank. All ranks are assumed to send the same rows as this rank, so
        the sum is the rows for this rank, multiplied by the number of ranks.
        """
        with self._world.watch("reduce_scatter", [given], [output]):
            torch.mul(_chunk(given, (), self._rank, self._size).view_as(output), self._size, out=output)
        return _done(output)

    # Names in other releases of torch.
    alltoall_base = all_to_all_single
    _allgather_base = all_gather_into_tensor = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_tensor = reduce_scatter_single

    def _refused(self, *_: object) -> Work:
        """Raise RuntimeError, because this process group refuses the operations send, recv, gather, scatter and reduce.
        In these operations, a single rank sends to other ranks or receives from other ranks.
        """
        raise RuntimeError("mirrored ranks take part in collectives only; nothing goes from one rank to another")

    send = recv = recv_anysource = gather = scatter = reduce = _refused


@contextmanager
def mirrored_world(rank: int, size: int, host_size: int, watch: Watch) -> Iterator[World]:
    """Make this process the only real rank of a default process group of `size` ranks.
    The other ranks are mirrored: no process runs these ranks, and in most exchanges, this rank receives its own data in
    place of data of the other ranks. The group exists as long as the context is entered.

    Hosts have `host_size` ranks. If fast links join several hosts, they count as one host, because TorchRec shards rows
    over all of them.

    Raises:
        RuntimeError: this process already belongs to a group.
    """
    if dist.is_initialized():
        raise RuntimeError("this process is in a group already; mirrored ranks need a process of their own")
    if not hasattr(dist.Backend, _BACKEND.upper()):
        dist.Backend.register_backend(_BACKEND, _make, devices=["cpu", "cuda"])
    world = World(rank, size, watch)
    _WORLDS.append(world)
    on_hosts = patch.dict(os.environ, {_HOST_SIZE: str(host_size), _POD_SIZE: "1"})
    # State dicts of sequence tables gather metadata from all ranks; mirrored ranks save no state dicts.
    unsaved = patch.object(ShardedTensor, "_init_from_local_shards", return_value=None)
    of_this_world = patch.multiple(comm, _INTRA_PG=None, _CROSS_PG=None)  # TorchRec's cached groups of hosts
    try:
        with on_hosts, unsaved, of_this_world:
            dist.init_process_group(_BACKEND, rank=rank, world_size=size, store=HashStore())
            yield world
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        _WORLDS.pop()


def size_bytes(tensors: Tensors) -> int:
    """Return the bytes of all tensors together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _make(_store: object, rank: int, size: int, _timeout: object) -> Mirror:
    return Mirror(rank, size, _WORLDS[-1])


def _chunk(given: torch.Tensor, splits: Sequence[int], rank: int, size: int) -> torch.Tensor:
    """Return the rows of `given` that go to the rank `rank`, out of `size` ranks.
    `splits` has the number of rows for each rank; if `splits` is empty, all ranks get equal numbers of rows.
    """
    chunks = torch.split(given, list(splits)) if splits else given.tensor_split(size)
    return chunks[rank]


def _fill(output: torch.Tensor, mine: torch.Tensor) -> None:
    """Fill the tensor `output` with repetitions of `mine`, which is the data that one rank sends.

    The repetitions stand for equal shares of all ranks, or for the data of ranks with other widths.
    """
    flat, source = output.view(-1), mine.reshape(-1)
    if not len(flat) or not len(source):
        flat.zero_()
        return
    whole = len(flat) // len(source) * len(source)
    flat[:whole].view(-1, len(source)).copy_(source)
    flat[whole:].copy_(source[: len(flat) - whole])


def _done(result: object) -> Work:
    """Return a Work object of torch that is already completed, with the given result."""
    future: Future[Any] = Future()
    future.set_result(result)
    work: Work = cast(Any, c10d)._create_work_from_future(future)
    return work
