"""Training of TorchRec models in tests, sharded and unsharded: lookups, weights, and the ranks of shards."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import distributed as dist
from torch import nn
from torch.distributed.remote_device import _remote_device
from torchrec import KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.model_parallel import DMPCollection
from torchrec.distributed.types import ShardingPlan

from neuroshard.torchrec.groups import Groups
from tests.kit.torchrec_models import CPU

Window = tuple[slice, slice]  # rows and columns of a table


def sgd(rate: float) -> dict[str, Any]:
    """Return the settings of sharders with which tables train as `descend` trains them."""
    return {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": rate}


def sharded(model: nn.Module, plan: ShardingPlan, sharders: Sequence[Any]) -> DistributedModelParallel:
    """Shard a model over the CPUs of the process group."""
    return DistributedModelParallel(model, device=CPU, plan=plan, sharders=sharders)


class _OnCpu(DMPCollection):
    """DMPCollection on CPUs. It accepts only GPUs and numbers the CPUs, so its device and placements are replaced."""

    device = _device = property(lambda self: CPU, lambda self, device: None)

    def _remap_sharding_plan(self, plan: ShardingPlan, **kwargs: Any) -> None:
        super()._remap_sharding_plan(plan=plan, **kwargs)
        for sharding in (its for module in plan.plan.values() for its in module.values()):
            for shard in sharding.sharding_spec.shards:
                shard.placement = _remote_device(f"rank:{shard.placement.rank()}/cpu")


def grouped(model: nn.Module, plan: ShardingPlan, sharders: Sequence[Any], groups: Groups) -> DMPCollection:
    """Shard a model over the CPUs of each sharding group of the process group, by the plan of one sharding group."""
    return _OnCpu(
        module=model,
        device=SimpleNamespace(type="cuda"),
        plan=plan,
        global_pg=dist.group.WORLD,
        sharders=sharders,
        **groups.arguments,
    )


def drawn_lookups(rows: Mapping[str, int], samples: int, rank: int, step: int) -> KeyedJaggedTensor:
    """Draw up to four lookups for each sample and feature, different on each rank and step.

    `rows` has the number of rows of the table of each feature.
    """
    generator = torch.Generator().manual_seed(100 * step + rank)
    lengths = torch.randint(0, 5, (len(rows), samples), generator=generator)
    counts = lengths.sum(dim=1).tolist()
    values = [torch.randint(most, (n,), generator=generator) for most, n in zip(rows.values(), counts, strict=True)]
    return KeyedJaggedTensor(keys=[*rows], values=torch.cat(values), lengths=lengths.flatten())


def drawn_weights(shapes: Mapping[str, tuple[int, int]]) -> dict[str, torch.Tensor]:
    """Draw the weights of tables of these rows and columns, equal in all processes."""
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(*shape, generator=generator) / 10 for name, shape in shapes.items()}


def uneven_loss(parts: Iterable[torch.Tensor]) -> Any:
    """Return a loss in which every element has a different weight."""
    return sum((part * torch.linspace(-1, 1, part.numel()).view_as(part)).square().sum() for part in parts)


def tables_of(model: nn.Module, names: Collection[str]) -> dict[str, nn.Parameter]:
    """Return the parameters of a model that are weights of the named tables, by name."""
    found = ((name.split(".")[-2], parameter) for name, parameter in model.named_parameters())
    return {table: parameter for table, parameter in found if table in names}


def held(model: nn.Module, names: Collection[str]) -> Iterator[tuple[str, Window, torch.Tensor]]:
    """Yield table, rows and columns, and weights of each shard on this rank, of data-parallel tables too."""
    for name, tensor in model.state_dict().items():
        if (table := name.split(".")[-2]) in names:
            for (row, column), shard in _shards(tensor):
                rows, columns = shard.shape
                yield table, (slice(row, row + rows), slice(column, column + columns)), shard


def _shards(tensor: Any) -> Iterable[tuple[Sequence[int], torch.Tensor]]:
    """Return the first row and column and the weights of each shard of a tensor on this rank."""
    if hasattr(tensor, "to_local"):  # as DMPCollection has them
        local = tensor.to_local()
        return zip(local.local_offsets(), local.local_shards(), strict=False)
    if hasattr(tensor, "local_shards"):
        return [(shard.metadata.shard_offsets, shard.tensor) for shard in tensor.local_shards()]
    return [((0, 0), tensor)]


def set_weights(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Set the weights of the tables of a model, sharded or unsharded."""
    for name, window, shard in held(model, weights):
        shard.copy_(weights[name][window])


def descend(tables: Mapping[str, nn.Parameter], losses: Sequence[torch.Tensor], rate: float) -> None:
    """Take a step of plain SGD with whole tables on the mean of the losses, because ranks average their gradients."""
    for weights in tables.values():
        weights.grad = None
    (sum(losses) / len(losses)).backward()
    for weights in tables.values():
        weights.data -= rate * weights.grad


def check_held(model: nn.Module, expected: Mapping[str, torch.Tensor]) -> int:
    """Check that the shards of these tables on this rank have the expected weights; return their number."""
    shards = list(held(model, expected))
    for name, window, shard in shards:
        torch.testing.assert_close(shard, expected[name].detach()[window])
    return len(shards)
