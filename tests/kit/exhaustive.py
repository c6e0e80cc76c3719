"""Tiny tasks under every kind of constraint, with a brute-force check whether any plan exists.

Tests compare searches with this check, which shares no code with them: it reads constraints as
docs/how-to/constraints.md states them, and counts bytes as Python integers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import permutations, product
from math import ceil, prod

import numpy as np

from neuroshard.models.simulator import Simulator
from neuroshard.plans.plan import Plan, assemble
from neuroshard.plumbing.errors import UserError
from neuroshard.searching.searcher import Searcher
from neuroshard.tables import Table
from neuroshard.tasks.constraints import Constraints, PinnedShard, TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task
from neuroshard.testing.toys import ONCE, linear_models
from neuroshard.words.topology import Topology

_BATCH_SIZE = 256
_DIM = 4  # the narrowest shard
_GAVE_UP = ("plan-not-found", "constraints-no-plan-found")  # codes of errors after which a plan may still exist
_STATE_FLOATS = {
    "sgd": (0, 0), "rowwise_adagrad": (0, 1), "adagrad": (1, 0), "partial_rowwise_adam": (1, 1), "adam": (2, 0),
}  # fmt: skip

SpreadPlacements = tuple[int, ...]  # (D,) columns of one table on each device


@dataclass(frozen=True)
class TinyTask:
    """A task without constraints, and constraints for it, which may contradict each other."""

    free: Task
    constraints: Constraints

    def task(self) -> Task:
        """Return the task with its constraints.

        Raises:
            UserError: the constraints contradict each other.
        """
        return Task(self.free.tables, self.free.topology, self.free.batch_size, self.free.memory, self.constraints)

    def has_plan(self) -> bool:
        """Return True if any plan keeps within memory and keeps all constraints."""
        return self._completed([], self._options())

    def plans(self) -> Iterator[Plan]:
        """Yield every plan that keeps within memory and keeps all constraints."""
        task = self.task()
        for spreads in product(*self._options()):
            if self._keeps(list(spreads)):
                places = ((t, d, dim) for t, spread in enumerate(spreads) for d, dim in enumerate(spread))
                yield assemble(task, [(table, dim, device) for table, device, dim in places if dim])

    @property
    def num_spreads(self) -> int:
        """Number of plans that `plans` checks: combinations of the spreads of each table that keep its own rules."""
        return prod(map(len, self._options()))

    def _options(self) -> list[list[SpreadPlacements]]:
        return [list(_spreads_of(table, self.constraints, self._num_devices)) for table in self.free.tables]

    @property
    def _num_devices(self) -> int:
        return self.free.topology.num_devices

    def _completed(self, spreads: list[SpreadPlacements], options: list[list[SpreadPlacements]]) -> bool:
        """Return True if the spreads of the first tables can be completed to a plan."""
        if not self._keeps(spreads):
            return False
        if len(spreads) == len(options):
            return True
        return any(self._completed([*spreads, spread], options) for spread in options[len(spreads)])

    def _keeps(self, spreads: list[SpreadPlacements]) -> bool:
        """Return True if the spreads of the first tables keep within memory and keep all groups of tables."""
        held = {table.name: spread for table, spread in zip(self.free.tables, spreads, strict=False)}
        for device in range(self._num_devices):
            used = sum(
                _shard_bytes(table, spread[device], self.free.memory, self.free.batch_size)
                for table, spread in zip(self.free.tables, spreads, strict=False)
            )
            if used + self._received_bytes() > self.free.topology.device_memory[device]:
                return False
            for group in self.constraints.apart:
                if sum(held[name][device] > 0 for name in set(group) if name in held) > 1:
                    return False
        for group in self.constraints.together:
            if len({tuple(dim > 0 for dim in held[name]) for name in group if name in held}) > 1:
                return False
        return True

    def _received_bytes(self) -> int:
        columns = sum(table.dim * _outputs(table) for table in self.free.tables)
        return self.free.memory.batches_in_flight * 8 * ceil(ceil(self.free.batch_size / self._num_devices) * columns)


def checked_plan(
    searcher: Searcher, tiny: TinyTask, seed: int, simulator: Simulator | None = None, may_give_up: bool = True
) -> Plan | UserError:
    """Return the plan that a searcher finds for the task, or its error; the default models are linear.

    Raises:
        AssertionError: the plan breaks a limit, or brute force disagrees with the searcher (unless it may give up and
            does). The message has the seed.
    """
    try:
        task = tiny.task()
        plan = searcher.find(task, simulator or Simulator(linear_models(task.topology.num_devices))).plan
    except UserError as error:
        gave_up = error.code in _GAVE_UP
        assert (may_give_up and gave_up) or not tiny.has_plan(), (seed, str(error))
        return error
    assert plan.violations == (), seed
    assert tiny.has_plan(), seed
    return plan


def _shard_bytes(table: Table, dim: int, use: MemoryUse, batch_size: int) -> int:
    if not dim:
        return 0
    per_element, per_row = _STATE_FLOATS[use.optimizer]
    state = table.rows * (dim * (table.bytes_per_element + 4 * per_element) + 4 * per_row)
    lookups, outputs = (batch_size * Fraction(count) for count in (table.pooling_factor, _outputs(table)))
    buffers = ceil(8 * lookups) + 8 * batch_size * table.features + 8 * ceil(outputs) * dim
    return state + use.batches_in_flight * buffers


def _outputs(table: Table) -> float:
    """Return the number of output vectors per sample: one per feature if the table is pooled, else one per lookup."""
    return table.features if table.pooled else table.pooling_factor


def _spreads_of(table: Table, constraints: Constraints, num_devices: int) -> Iterator[SpreadPlacements]:
    """Yield every spread of a table that keeps the rules of this table alone."""
    rules = [rule for rule in constraints.rules if fnmatchcase(table.name, rule.tables)]
    pinned = [shard for shard in constraints.pinned if shard.table == table.name]
    for spread in product(range(0, table.dim + 1, _DIM), repeat=num_devices):
        if sum(spread) != table.dim:
            continue
        devices = [device for device, dim in enumerate(spread) if dim]
        if len(devices) > 1 and any(table.name in group for group in constraints.together):
            continue
        if not table.pooled and (len(devices) > 2 or len({spread[device] for device in devices}) > 1):
            continue
        if any(rule.equal_widths for rule in rules) and not _equal(spread, devices, rules):
            continue
        if all(_rule_kept(rule, spread, devices) for rule in rules) and _pins_kept(pinned, spread):
            yield spread


def _rule_kept(rule: TableRule, spread: SpreadPlacements, devices: list[int]) -> bool:
    if rule.devices is not None and not set(devices) <= set(rule.devices):
        return False
    if not (rule.min_shards or 1) <= len(devices) <= (rule.max_shards or len(devices)):
        return False
    return len(devices) == 1 or min(spread[device] for device in devices) >= (rule.min_dim or 1)


def _equal(spread: SpreadPlacements, devices: list[int], rules: list[TableRule]) -> bool:
    """Return True if the table is whole, or in equal parts: halves, or as many parts as rules require."""
    parts = max(2, *(rule.min_shards or 1 for rule in rules))
    return len(devices) == 1 or (len(devices) == parts and len({spread[device] for device in devices}) == 1)


def _pins_kept(pinned: list[PinnedShard], spread: SpreadPlacements) -> bool:
    return any(
        all(device in pin.devices and spread[device] == pin.dim for pin, device in zip(pinned, places, strict=True))
        for places in permutations(range(len(spread)), len(pinned))
    )


def tiny_task(
    seed: int, most_rows: int = 30, pooled: Sequence[bool] = (True,), rules: tuple[TableRule, ...] = ()
) -> TinyTask:
    """Draw a task of 1 to 4 tables of 4 to 16 columns on 2 or 3 devices, most often with little free memory.

    Some tables have several features. Each table is pooled or not by a random value of `pooled`. `rules` are added to
    the drawn rules.
    """
    rng = np.random.default_rng(seed)
    features, kinds = (np.random.default_rng([seed, stream]) for stream in (1, 2))
    num_devices, count = int(rng.integers(2, 4)), int(rng.integers(1, 5))
    tables = tuple(
        Table(f"t{i}", int(rng.integers(1, most_rows)), 4 * int(rng.integers(1, 5)), float(rng.uniform(0.1, 3)), ONCE)
        for i in range(count)
    )
    tables = tuple(
        replace(table, features=int(features.choice([1, 1, 3])), pooled=pooled[int(kinds.integers(len(pooled)))])
        for table in tables
    )
    use = MemoryUse(str(rng.choice(list(_STATE_FLOATS))), int(rng.integers(2)))
    total = sum(_shard_bytes(table, table.dim, use, _BATCH_SIZE) for table in tables)
    received = use.received_bytes(sum(table.dim * _outputs(table) for table in tables), _BATCH_SIZE, num_devices)
    slack = float(rng.choice([100.0, 1.0, 1.05, 1.15, 1.3, 1.6]))
    shares = np.ones(num_devices) if rng.random() < 0.5 else rng.uniform(0.5, 1.5, size=num_devices)
    memory = tuple(int(np.ceil(slack * total * share / shares.sum())) + received for share in shares)
    free = Task(tables, Topology(num_devices, memory), _BATCH_SIZE, use)
    given = _tiny_constraints(tables, num_devices, rng) if rng.random() < 0.8 else Constraints()
    return TinyTask(free, replace(given, rules=given.rules + rules))


def _tiny_constraints(tables: tuple[Table, ...], num_devices: int, rng: np.random.Generator) -> Constraints:
    names = [str(name) for name in rng.permutation([table.name for table in tables])]
    together: tuple[tuple[str, ...], ...] = ()
    if len(names) > 1 and rng.random() < 0.25:
        together = (tuple(names[:2]),)
    alone = [table for table in tables if not any(table.name in group for group in together)]
    pinned = [shard for table in alone if rng.random() < 0.4 for shard in _tiny_pins(table, num_devices, rng)]
    rules = [_tiny_rule(name, num_devices, rng) for name in names if rng.random() < 0.4]
    apart = [tuple(names[-size:]) for size in (2, 3) if len(names) >= size and rng.random() < 0.25]
    return Constraints(tuple(rules), tuple(pinned), together, tuple(apart))


def _tiny_pins(table: Table, num_devices: int, rng: np.random.Generator) -> Iterator[PinnedShard]:
    left = table.dim
    for _ in range(int(rng.integers(1, num_devices + 1))):
        if not left:
            return
        dim = 4 * int(rng.integers(1, left // 4 + 1))
        left -= dim
        yield PinnedShard(table.name, dim, _some_devices(num_devices, rng))


def _tiny_rule(name: str, num_devices: int, rng: np.random.Generator) -> TableRule:
    def maybe(low: int, high: int) -> int | None:
        return int(rng.integers(low, high)) if rng.random() < 0.4 else None

    devices = _some_devices(num_devices, rng) if rng.random() < 0.4 else None
    return TableRule(name, devices, maybe(1, 4), maybe(1, 4), maybe(1, 13))


def _some_devices(num_devices: int, rng: np.random.Generator) -> tuple[int, ...]:
    count = int(rng.integers(1, num_devices + 1))
    return tuple(int(device) for device in rng.permutation(num_devices)[:count])
