"""The optimizer of tables that no fused kernel trains, such as all data-parallel tables."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.fused_embeddingbag import ShardedFusedEmbeddingBagCollection
from torchrec.distributed.utils import merge_fused_params
from torchrec.optim.keyed import KeyedOptimizer
from torchrec.optim.optimizers import in_backward_optimizer_filter

from neuroshard.plumbing.errors import UserError
from neuroshard.torchrec.modules import listed
from neuroshard.torchrec.row_updates import KNOWN_SETTINGS, NUMBERS, RULES, STEP, RowSettings, row_settings


def data_parallel_optimizer(
    model: nn.Module, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> "DataParallelOptimizer":
    """Build the optimizer that trains the data-parallel tables of a sharded model.
    TorchRec's fused optimizer does not train data-parallel tables.

    Every table gets the kind of optimizer, the learning rate and the other settings that a fused kernel of the table
    would have. These settings come from `apply_optimizer_in_backward`, from a fused collection or from the sharder's
    `fused_params`; FBGEMM's defaults complete them. Known kinds are SGD, Adagrad, row-wise Adagrad, Adam and partial
    row-wise Adam. The optimizer also trains tables of other sharding types with the kernel `dense`, because TorchRec's
    fused optimizer does not train these tables either.

    As in FBGEMM, the optimizer updates only rows that a sample of the global batch looked up. This holds for Adam, too,
    although Adam's momentum would otherwise move all rows. The optimizer recognises such rows by a gradient other than
    zero. So a row whose gradients cancel out to exactly zero is not updated, while FBGEMM would apply weight decay or
    momentum to the row. On CPUs FBGEMM ignores the weight decay of row-wise Adagrad, and so does this optimizer.

    Args:
        model: a `DistributedModelParallel`, or another module that contains sharded collections.
        settings: replaces settings of single tables, by the table's name, in the words of `fused_params`, such as
            `{"user": {"learning_rate": 0.05}}`.

    Returns:
        A KeyedOptimizer; it has no parameters if the model has no such table.

    Raises:
        UserError: the model is not sharded, `settings` names a table that the model does not have, or the optimizer or
            a setting of a table is not supported.
    """
    given = settings or {}
    collections = _collections(model)
    names = {table for collection in collections for table in collection.module_sharding_plan}
    if unknown := sorted(given.keys() - names):
        raise UserError(
            "data-parallel-table-unknown",
            f"settings= has entries for {listed([repr(name) for name in unknown])}",
            limit="the sharded model has no tables of these names",
            remedy="Use the names of tables of the model",
        )
    tables = _dense_tables(model, collections)
    for table, table_settings in given.items():
        if other := sorted(table_settings.keys() - KNOWN_SETTINGS):
            known_names = ", ".join(sorted(KNOWN_SETTINGS))
            raise UserError(
                "data-parallel-setting-unknown",
                f"settings= of table {table!r} has unknown settings: {listed([repr(name) for name in other])}",
                limit=f"the known settings are {known_names}",
                remedy="Correct the name, or remove the setting",
            )
    params = {table: merge_fused_params(dict(table.fused_params), dict(given.get(table.name, {}))) for table in tables}
    found = {
        table: row_settings(table.name, table_settings).on(table.weights.device)
        for table, table_settings in params.items()
    }
    return DataParallelOptimizer(found)


def data_parallel_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights that `data_parallel_optimizer` trains, as a dictionary.
    The keys are the names of the weights in `model.named_parameters()`.

    Raises:
        UserError: the model is not sharded.
    """
    return {table.key: table.weights for table in _dense_tables(model, _collections(model))}


def dense_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters for the dense optimizer, by name: all parameters that belong to no sharded table.

    Raises:
        UserError: the model is not sharded.
    """
    sharded = {id(weights) for collection in _collections(model) for weights in collection.parameters()}
    others = in_backward_optimizer_filter(model.named_parameters())
    return {name: parameter for name, parameter in others if id(parameter) not in sharded}


@dataclass(frozen=True, eq=False)
class _DenseTable:
    """A table, or the shards of a table on this rank, that a dense kernel looks up.

    Attributes:
        name: name of the table.
        key: name of the weights in the model.
        weights: the weights, (rows, dim).
        fused_params: parameters that a fused kernel of the table would have.
        averaged_over: number of ranks over which the gradient is averaged. If TorchRec's gradient division is off, a
            fused kernel would get the sum of the gradients instead.
    """

    name: str
    key: str
    weights: nn.Parameter
    fused_params: Mapping[str, Any]
    averaged_over: int

    @property
    def gradient(self) -> Tensor | None:
        """The gradient of the weights, (rows, dim), scaled like the gradient that a fused kernel would get; None if
        there is no gradient.

        The gradient of data-parallel weights is a mean over ranks. If TorchRec's gradient division is off, fused
        kernels get the sum over ranks instead. In this case, the mean is multiplied by the number of ranks.
        """
        gradient = self.weights.grad
        if gradient is None or self.averaged_over == 1 or get_gradient_division():
            return gradient
        return gradient.float() * self.averaged_over


class DataParallelOptimizer(KeyedOptimizer):
    """Optimizer that trains tables with dense kernels in the same way as FBGEMM's fused optimizers train other tables.
    The function `data_parallel_optimizer` builds this optimizer.

    States are in fp32 and have the names of TorchRec's fused optimizers. The states exist before the first step, so
    that a checkpoint can be loaded at once. Weights in fp16 or bf16 are rounded to the nearest value, not
    stochastically. `param_groups` has one group for all tables with equal settings; learning rate schedulers change
    `lr` in these groups.
    """

    def __init__(self, tables: Mapping[_DenseTable, RowSettings]) -> None:
        groups: dict[RowSettings, dict[str, Any]] = {}
        self._trained = []
        for table, settings in tables.items():
            group = groups.setdefault(settings, {"params": [], **settings.group})
            group["params"].append(table.weights)
            self._trained.append((table, settings, RULES[settings.optimizer].initial_state(table.weights), group))
        states = {
            table.weights: {f"{table.name}.{name}": value for name, value in state.items()}
            for table, _, state, _ in self._trained
        }
        super().__init__({table.key: table.weights for table in tables}, states, list(groups.values()))

    def step(self, closure: Any = None) -> Any:
        """Update the weights and the optimizer state of each table that has a gradient.

        Args:
            closure: computes the loss and its gradients first, as in `torch.optim.Optimizer`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for table, settings, state, group in self._trained:
            if (gradient := table.gradient) is not None:
                RULES[settings.optimizer].step(table.weights, gradient, state, settings.changed(group))
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of the tables to None, or to zero if `set_to_none` is false."""
        for weights in self.params.values():
            if set_to_none:
                weights.grad = None
            elif weights.grad is not None:
                weights.grad.zero_()

    def set_optimizer_step(self, step: int) -> None:
        """Set the number of steps so far to `step`; the bias correction of Adam depends on this number."""
        for _, _, state, _ in self._trained:
            if STEP in state:
                state[STEP].fill_(step)

    def update_hyper_parameters(self, params_dict: Mapping[str, Any]) -> None:
        """Set `lr`, `eps`, `weight_decay`, `beta1` or `beta2` of all tables to the values in `params_dict`."""
        for group in self.param_groups:
            group.update({name: value for name, value in params_dict.items() if name in NUMBERS})


def _collections(model: nn.Module) -> list[Any]:
    """Return the sharded collections of a model; raise UserError if the model has no sharded collection."""
    kinds = (ShardedEmbeddingBagCollection, ShardedEmbeddingCollection)
    found = [module for module in model.modules() if isinstance(module, kinds)]
    if not found:
        raise UserError(
            "model-not-sharded",
            f"the model, which is {type(model).__name__}, has no sharded collection of tables",
            limit="the model must be sharded first",
            remedy="Pass the result of DistributedModelParallel(model, ...)",
        )
    return found


def _dense_tables(model: nn.Module, collections: Iterable[Any]) -> list[_DenseTable]:
    """Return the tables on this rank that dense kernels look up and that TorchRec does not train. Data-parallel tables
    of a FusedEmbeddingBagCollection are left out: dense kernels look up these tables, but TorchRec trains them.
    """
    keys = {id(parameter): name for name, parameter in model.named_parameters()}
    found = []
    for collection in collections:
        for lookup in collection._lookups:
            averaged = isinstance(lookup, DistributedDataParallel)
            if averaged and isinstance(collection, ShardedFusedEmbeddingBagCollection):
                continue  # DistributedDataParallel runs the collection's optimizer
            ranks = collection._env.world_size if averaged else 1
            found += [
                _DenseTable(name, keys[id(weights)], weights, fused_params, ranks)
                for name, weights, fused_params in _dense_weights(lookup)
            ]
    return found


def _dense_weights(lookup: Any) -> Iterator[tuple[str, nn.Parameter, Mapping[str, Any]]]:
    """Yield a tuple for each table that a dense kernel looks up: the name, the weights and the `fused_params` of the
    table. `lookup` is one of TorchRec's lookup modules. Such a module has several groups of tables, and each group has
    its own kernel.
    """
    while isinstance(lookup, DistributedDataParallel):
        lookup = lookup.module
    dense = [group for group in lookup.grouped_configs if group.compute_kernel is EmbeddingComputeKernel.DENSE]
    fused_params = {table.name: table.fused_params or {} for group in dense for table in group.embedding_tables}
    for name, weights in lookup.named_parameters_by_table():
        if name in fused_params:
            yield name, weights, fused_params[name]
