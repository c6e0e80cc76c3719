"""Warnings about sharding types that fail in TorchRec if the features of a batch have different numbers of samples."""

from collections.abc import Iterator, Sequence

from torchrec.distributed.types import ShardingPlan

from neuroshard.plumbing.messages import Message, number_of
from neuroshard.torchrec.kernels import COPIED
from neuroshard.torchrec.modules import listed
from neuroshard.torchrec.parameters import Parameter
from neuroshard.torchrec.releases import FAILS_WITH_VARIABLE_BATCHES, TORCHREC


def variable_batch_remarks(
    parameters: Sequence[Parameter], sharding_plan: ShardingPlan, device: str
) -> Iterator[Message]:
    """Yield a warning for each sharding type that makes TorchRec fail if the features of a batch have different numbers
    of samples. Warnings are only for sharding types that tables have in `sharding_plan`, the plan of the whole model.

    No setting shows that a job will have variable batches. `batch_sizes` in constraints are a hint; without
    `batch_sizes` there are no warnings.
    """
    if not any(parameter.user_constraints.batch_sizes for parameter in parameters):
        return
    for sharding_type in (*FAILS_WITH_VARIABLE_BATCHES, *(COPIED if device == "cpu" else ())):
        names = [
            parameter.qualified_name
            for parameter in parameters
            if parameter.is_in(sharding_plan) and parameter.sharding_in(sharding_plan).sharding_type == sharding_type
        ]
        if names:
            where = "" if sharding_type in FAILS_WITH_VARIABLE_BATCHES else " on CPUs"
            yield Message(
                "variable-batches-fail",
                f"constraints set batch_sizes, and the plan makes {number_of(len(names), 'table')} {sharding_type} "
                f"({listed(names)})",
                limit=f"{TORCHREC} fails with {sharding_type} tables{where} if the features of a batch have different "
                "numbers of samples",
                remedy=f"If your batches have such features, set sharding_types of the tables without {sharding_type}",
            )
