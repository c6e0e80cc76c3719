"""The explain run: one plan explained, or two compared; as text, and as a page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path

import numpy as np
from rich.console import Console

from neuroshard.errors import UserError
from neuroshard.files import write_atomically
from neuroshard.models import CostModels
from neuroshard.models.trust import LEVEL
from neuroshard.plan import Plan
from neuroshard.report import plan_png
from neuroshard.search.explain import Explanation, ShardShare, explain, moves
from neuroshard.search.report.page import Grid, Picture, Section, render
from neuroshard.simulator import Simulator
from neuroshard.units import readable_bytes

_SHOWN_SHARDS = 5
_SHOWN_SPLITS = 10
_SHOWN_MOVES = 10


@dataclass(frozen=True)
class Explain:
    """Everything `neuroshard explain` needs.

    Attributes:
        plans: one plan file, or two of the same tables.
        model: cost models, by name or path.
        out: the page; None writes none.
    """

    plans: str | Sequence[str]
    model: str
    out: str | None

    def run(self) -> "ExplainResult":
        """Explain each plan; with two, what it takes to get from the first to the second.

        Raises:
            UserError: a file is no plan, there are more than two, or they are of different tables.
        """
        paths = [self.plans] if isinstance(self.plans, str) else list(self.plans)
        if not 1 <= len(paths) <= 2:
            raise UserError(f"explain takes one plan, or two to compare; {len(paths)} were given")
        plans = [Plan.load(path) for path in paths]
        if len(plans) == 2 and not _same_tables(*plans):
            raise UserError(f"{paths[0]} and {paths[1]} are plans of different tables; only like can be compared")
        simulator = Simulator(CostModels.load(self.model))
        found = [explain(plan, simulator) for plan in plans]
        result = ExplainResult(tuple(paths), self.model, tuple(found), None if self.out is None else Path(self.out))
        result.save()
        return result


def _same_tables(one: Plan, other: Plan) -> bool:
    shapes = [[(table.name, table.rows, table.dim) for table in plan.task.tables] for plan in (one, other)]
    return shapes[0] == shapes[1]


@dataclass(frozen=True)
class ExplainResult:
    """What was found, and where the page is."""

    names: tuple[str, ...]
    model: str
    found: tuple[Explanation, ...]
    page: Path | None

    def save(self) -> None:
        """Write the page."""
        if self.page is None:
            return
        sections = [
            section for name, one in zip(self.names, self.found, strict=True) for section in _sections(name, one)
        ]
        if len(self.found) == 2:
            sections.insert(0, Section("From the first to the second", "\n".join(self._difference())))
        intro = f"Costs are predicted by the models {self.model!r}, ms."
        html = render("A plan explained" if len(self.found) == 1 else "Two plans compared", intro, sections)
        write_atomically(self.page, lambda file: file.write_text(html, encoding="utf-8"))

    def show(self, console: Console) -> None:
        """Print it for people."""
        for name, one in zip(self.names, self.found, strict=True):
            _print(console, [name, *(f"  {line}" for line in lines(one))])
        if len(self.found) == 2:
            _print(console, ["from the first to the second", *(f"  {line}" for line in self._difference())])
        if self.page is not None:
            _print(console, [f"page: {self.page}"])

    def _difference(self) -> list[str]:
        first, second = self.found
        change = second.cost.total_ms - first.cost.total_ms
        steps = list(moves(first.plan, second.plan))
        more = [f"... and {len(steps) - _SHOWN_MOVES} more tables"] if len(steps) > _SHOWN_MOVES else []
        return [
            f"predicted cost {first.cost.total_ms:.2f} -> {second.cost.total_ms:.2f} ms "
            f"({change:+.2f} ms, {change / first.cost.total_ms:+.1%})",
            f"{len(steps)} of {len(first.plan.task.tables)} tables lie elsewhere (columns on device, bytes to move)",
            *steps[:_SHOWN_MOVES],
            *more,
        ]


def _print(console: Console, texts: Sequence[str]) -> None:
    for text in texts:
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def lines(found: Explanation) -> Iterator[str]:
    """The explanation, line by line."""
    cost, plan = found.cost, found.plan
    margin = "" if isnan(cost.margin_ms) else f" ± {cost.margin_ms:.2f} ({LEVEL:.0%} interval)"
    yield (
        f"predicted cost {cost.total_ms:.2f} ms{margin}: {len(plan.task.tables)} tables in {len(plan.shards)} shards "
        f"on {plan.task.topology.num_devices} devices, batch {plan.task.batch_size:,}"
    )
    for device in range(plan.task.topology.num_devices):
        mark = "  <- bottleneck" if device == found.bottleneck else ""
        used, cap = plan.device_bytes[device], plan.task.shard_memory[device]
        yield (
            f"device {device}: {cost.device_ms[device]:.2f} = compute {cost.compute[device]:.2f} + forward "
            f"{cost.forward[device]:.2f} + backward {cost.backward[device]:.2f} ms; {plan.device_dims[device]} "
            f"columns, {readable_bytes(used)} of {readable_bytes(cap)}{mark}"
        )
    wider = plan.device_dims[found.widest] / np.mean(plan.device_dims) - 1
    yield f"device {found.slowest} computes longest, {found.compute_excess_ms:.2f} ms above the mean: all wait for it"
    yield (
        f"device {found.widest} has the most columns, {wider:.1%} above the mean: "
        f"{found.exchange_excess_ms:.2f} ms of the exchanges"
    )
    yield f"device {found.bottleneck} would compute less without:"
    here = [share for share in found.shards if share.device == found.bottleneck]
    yield from (f"  {_share_text(share)}" for share in here[:_SHOWN_SHARDS])
    above = cost.total_ms / found.balanced_ms - 1
    side = "above" if above > 0 else "below"
    yield f"spread evenly, its shards would cost {found.balanced_ms:.2f} ms: the plan is {abs(above):.1%} {side} that"
    yield from _split_lines(found)
    yield from _next_lines(found)
    for name, ms in found.heuristics.items():
        yield f"{name}: " + (ms if isinstance(ms, str) else f"{ms:.2f} ms ({ms / cost.total_ms - 1:+.1%})")
    yield from (f"warning: {warning}" for warning in found.warnings)


def _share_text(share: ShardShare) -> str:
    columns = f"{share.dim} of {share.table_dim} columns" if share.dim < share.table_dim else f"{share.dim} columns"
    return f"{share.table} ({columns}, {readable_bytes(share.size_bytes)}): -{share.saved_ms:.2f} ms"


def _split_lines(found: Explanation) -> Iterator[str]:
    if not found.splits:
        yield "no table is split"
    worth = sorted(found.splits, key=lambda split: -(split.whole_ms if not isnan(split.whole_ms) else float("inf")))
    for split in worth[:_SHOWN_SPLITS]:
        bought = "whole it fits on none of its devices"
        if not isnan(split.whole_ms):
            bought = f"whole, the plan would cost {split.whole_ms - found.cost.total_ms:+.2f} ms"
        yield f"{split.table} is split into {' + '.join(map(str, split.dims))} columns: {bought}"
    if len(worth) > _SHOWN_SPLITS:
        yield f"... and {len(worth) - _SHOWN_SPLITS} more splits"


def _next_lines(found: Explanation) -> Iterator[str]:
    if found.next_move is None:
        yield "no single move, split or swap of shards makes it cheaper"
        return
    yield f"the best single step: {found.next_move.total_ms - found.cost.total_ms:+.2f} ms by"
    yield from (f"  {move}" for move in found.next_move.moves)


def _sections(name: str, found: Explanation) -> Iterator[Section]:
    plan, cost = found.plan, found.cost
    picture = Picture(
        "devices", "cost and memory of every device", plan_png(plan, cost, f"{cost.total_ms:.2f} ms predicted")
    )
    yield Section(name, "\n".join(lines(found)), (), (picture,))
    rows = tuple(
        (
            share.table,
            str(share.device),
            f"{share.dim}",
            f"{share.table_dim}",
            f"{share.size_bytes / (1 << 20):.1f}",
            f"{share.alone_ms:.3f}",
            f"{share.saved_ms:.3f}",
        )
        for share in found.shards
    )
    columns = ("table", "device", "columns", "of", "MiB", "alone, ms", "device saves without it, ms")
    yield Section(f"Shards of {name}", "A click on a column's head sorts.", (Grid(columns, rows),))
