"""The explanations of plans as plain values, which `neuroshard explain format=json` prints."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuroshard.cost.cost import Cost
from neuroshard.plans.moves import Places, TableChange
from neuroshard.stages.search.report.explanation import Explanation, ShardShare


@dataclass(frozen=True)
class DeviceFacts:
    """One device of an explained plan, with memory and costs.

    Attributes:
        device: number of the device.
        shards: number of shards on the device.
        dims: output columns per sample of the table-wise and column-wise shards on the device.
        size_bytes: bytes of the shards on the device, with the optimizer state and buffers that the task counts.
        memory_bytes: bytes of the device's memory that shards may use.
        cost_ms: predicted cost of the device in ms: the sum of the parts that count.
        parts_ms: predicted time of each part in ms, by the part's name, also of parts that do not count.
    """

    device: int
    shards: int
    dims: int
    size_bytes: int
    memory_bytes: int
    cost_ms: float
    parts_ms: Mapping[str, float]


@dataclass(frozen=True)
class ShardFacts:
    """One shard of an explained plan, with size and cost.

    Attributes:
        table: name of the table.
        device: number of the device.
        sharding_type: sharding type of the table, by TorchRec's names.
        tier: memory of the shard: device, uvm_caching or uvm.
        columns, rows: size of the shard.
        size_bytes: bytes of the shard on the device.
        alone_ms: predicted kernel time of the shard alone, in ms.
    """

    table: str
    device: int
    sharding_type: str
    tier: str
    columns: int
    rows: int
    size_bytes: int
    alone_ms: float


@dataclass(frozen=True)
class MethodFacts:
    """The result of another method, such as a heuristic, for the task of an explained plan: the predicted cost of the
    method's plan, or the reason why there is no plan.

    Attributes:
        method: name of the method.
        predicted_ms: predicted cost of the method's plan in ms; None if the method found no plan.
        error: the reason why there is no plan; None if there is one.
    """

    method: str
    predicted_ms: float | None
    error: str | None


@dataclass(frozen=True)
class PlanFacts:
    """The explanation of one plan as plain values: costs, devices, shards and the plans of other methods.

    Attributes:
        plan: name of the plan file.
        predicted_ms, margin_ms, expected_ms: predicted cost, half the width of the 90% interval and expected cost in
            ms; the margin and the expected cost are None if the models have no margins.
        scope: the kinds of work that the costs include.
        caveat: a caveat that is shown with the costs; None if there is none.
        balanced_ms: predicted cost in ms if compute and columns were spread evenly.
        bottleneck: the device that makes the plan most expensive; None if the devices are balanced.
        devices: the devices of the plan.
        shards: the shards of the plan, the most expensive ones first.
        compared: plans of other methods for the same task.
        warnings: reasons why the predicted cost may be wrong, and limits of the task that the plan breaks.
    """

    plan: str
    predicted_ms: float
    margin_ms: float | None
    expected_ms: float | None
    scope: str
    caveat: str | None
    balanced_ms: float
    bottleneck: int | None
    devices: tuple[DeviceFacts, ...]
    shards: tuple[ShardFacts, ...]
    compared: tuple[MethodFacts, ...]
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, name: str, explanation: Explanation) -> "PlanFacts":
        """Return the explanation of a plan as plain values. `name` is the name of the plan file."""
        cost = explanation.cost
        return cls(
            name,
            cost.total_ms,
            None if cost.margin is None else cost.margin_ms,
            None if cost.margin is None else cost.expected_ms,
            cost.scope,
            cost.caveat,
            explanation.balanced_ms,
            None if explanation.is_balanced else explanation.bottleneck,
            _devices(explanation),
            tuple(_shard(explanation, share) for share in explanation.shards),
            tuple(_method(method, found) for method, found in explanation.heuristics.items()),
            tuple(map(str, explanation.warnings)),
        )


@dataclass(frozen=True)
class ChangeFacts:
    """A table whose placement differs between two compared plans, with both placements.

    Attributes:
        table: name of the table.
        before, after: pairs of a device and the columns of the table's shard there.
        size_bytes: bytes of weights and optimizer state that move to other devices.
    """

    table: str
    before: Places
    after: Places
    size_bytes: int

    @classmethod
    def of(cls, change: TableChange) -> "ChangeFacts":
        """Return the table name, both placements and the moved bytes of `change`, as plain values."""
        return cls(change.table, change.before, change.after, change.size_bytes)


@dataclass(frozen=True)
class ExplainFacts:
    """The explanations of one plan or two plans as plain values, with the differences between the plans.

    Attributes:
        model: the cost models: their name and settings.
        note: a note on the choice of the models; empty without one.
        plans: the facts of each plan.
        changes: tables that the second plan places differently.
        page: path of the HTML page; None without a page.
    """

    model: Mapping[str, Any]
    note: str
    plans: tuple[PlanFacts, ...]
    changes: tuple[ChangeFacts, ...]
    page: str | None


def _devices(explanation: Explanation) -> tuple[DeviceFacts, ...]:
    plan, cost = explanation.plan, explanation.cost
    return tuple(
        DeviceFacts(
            device,
            len(plan.device_tables[device]),
            plan.device_dims[device],
            plan.device_bytes[device],
            memory,
            float(cost.device_ms[device]),
            {part.name: float(part.ms[device]) for part in cost.parts},
        )
        for device, memory in enumerate(plan.task.shard_memory)
    )


def _shard(explanation: Explanation, share: ShardShare) -> ShardFacts:
    placed = share.placed
    return ShardFacts(
        share.table.name,
        placed.device,
        explanation.plan.sharding_types[placed.shard.table],
        placed.tier_assignment.tier.value,
        placed.shard.dim,
        placed.shard.rows,
        share.size_bytes,
        share.alone_ms,
    )


def _method(method: str, found: Cost | str) -> MethodFacts:
    return MethodFacts(method, None, found) if isinstance(found, str) else MethodFacts(method, found.total_ms, None)
