"""A warning about tables with different optimizers: the planner counts the largest optimizer state for all tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.tasks.memory import STATE_FLOATS
from neuroshard.torchrec.modules import listed
from neuroshard.torchrec.parameters import ELEMENT_BYTES, Parameter
from neuroshard.torchrec.planning_request import DENSE_OPTIMIZER, counted_optimizer, named_optimizer

_FLOAT_BYTES = 4
_NOTED_SHARE = 0.01  # smaller shares of the tables' memory are not worth a warning


@dataclass(frozen=True)
class _States:
    """The optimizer states of tables whose optimizers have states of different size.

    Attributes:
        largest: tables whose optimizer has the most state per weight.
        state_bytes: bytes of that state per weight.
        extra_bytes: bytes that the planner counts in addition to the states that the tables need together.
        usual: optimizer of most weights in the other tables, as in `MemoryUse`.
        own_bytes: bytes of the states of all tables beyond the state of the optimizer `usual`.
        count: number of all tables.
    """

    largest: Sequence[Parameter]
    state_bytes: int
    extra_bytes: int
    usual: str
    own_bytes: int
    count: int

    @classmethod
    def of(cls, tables: Sequence[Parameter]) -> "_States | None":
        """Return the optimizer states of the tables.
        Return None if the largest state, counted for all tables, is hardly more than the tables need.
        """
        weights = [prod(table.weights.shape) for table in tables]
        optimizers = [counted_optimizer(table) for table in tables]
        floats = [_per_weight(optimizer) for optimizer in optimizers]
        most = max(floats, default=0)
        others: dict[str, int] = {}
        for optimizer, size in zip(optimizers, weights, strict=True):
            if _per_weight(optimizer) < most:
                others[optimizer] = others.get(optimizer, 0) + size
        needed = sum(
            size * (ELEMENT_BYTES[table.config.data_type] + _FLOAT_BYTES * own)
            for table, size, own in zip(tables, weights, floats, strict=True)
        )
        extra = _FLOAT_BYTES * sum(size * (most - own) for size, own in zip(weights, floats, strict=True))
        if extra <= _NOTED_SHARE * needed:
            return None
        usual = max(others, key=lambda optimizer: others[optimizer])
        beyond = (size * max(own - _per_weight(usual), 0) for size, own in zip(weights, floats, strict=True))
        largest = [table for table, own in zip(tables, floats, strict=True) if own == most]
        return cls(largest, _FLOAT_BYTES * most, extra, usual, _FLOAT_BYTES * sum(beyond), len(tables))

    @property
    def cause(self) -> str:
        """The tables with the largest state and the bytes of the state, as the beginning of a sentence."""
        names = listed([f"{table.qualified_name}: {named_optimizer(table)}" for table in self.largest])
        return (
            f"{number_of(len(self.largest), 'table')} ({names}) "
            f"{'needs' if len(self.largest) == 1 else 'need'} {self.state_bytes} bytes of optimizer state per weight, "
            "and all other tables need less"
        )

    @property
    def effect(self) -> str:
        """The bytes that are counted for all tables, as a clause."""
        return (
            f"the planner counts this state for all {number_of(self.count, 'table')}, "
            f"which is {readable_bytes(self.extra_bytes)} more than the tables need"
        )

    @property
    def setting(self) -> str:
        """The setting that counts less state, and the memory to reserve with it."""
        memory = f"MemoryUse({self.usual!r}, batches_in_flight=1, dense_optimizer={DENSE_OPTIMIZER!r})"
        size = readable_bytes(self.own_bytes)
        return f"pass memory={memory}, and reserve {size} for larger states with storage_reservation="


def _per_weight(optimizer: str) -> int:
    """Return the floats of state per weight of an optimizer, named as in `MemoryUse`."""
    return STATE_FLOATS[optimizer][0]


def states_remark(tables: Iterable[Parameter]) -> Message | None:
    """Return a warning if a few tables have an optimizer with more state than the optimizers of the other tables.
    The planner counts the largest state for all tables. Return None if this hardly changes the counted memory.

    `tables` are the tables that NeuroShard plans.
    """
    states = _States.of(list(tables))
    if states is None:
        return None
    remedy = f"If memory is short, {states.setting}"
    return Message("optimizer-states-differ", states.cause, limit=states.effect, remedy=remedy)


def states_remedy(tables: Iterable[Parameter]) -> str:
    """Return a sentence for the error that no plan fits: the advice of `states_remark`; "" if there is no advice."""
    states = _States.of(list(tables))
    return "" if states is None else f"Or {states.setting}: {states.cause}, but {states.effect}"
