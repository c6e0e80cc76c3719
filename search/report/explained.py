"""An explanation in sections: for the terminal and for the page."""

from dataclasses import replace
from math import isnan

import numpy as np

from neuroshard.cost.cost import Cost, described_expectation, described_wait
from neuroshard.layouts import Layout
from neuroshard.models.trust import LEVEL
from neuroshard.plans.moves import Places, TableChange, table_changes
from neuroshard.plans.picture import plan_png
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.stages.search.report.explanation import Explanation, ShardShare
from neuroshard.stages.search.report.page import Grid, Picture, Section
from neuroshard.words.placement import Tier

_MOST_DEVICES, _LONGEST, _SHORTEST = 16, 6, 3  # of more devices, a short table has those that compute so


def sections(explanation: Explanation, pictures: tuple[Picture, ...] = ()) -> list[Section]:
    """Explain a plan in sections, the most important first; the pictures stand beside its devices."""
    shown = [
        _summary(explanation),
        Section("Warnings", items=explanation.warnings) if explanation.warnings else None,
        replace(_devices(explanation), pictures=pictures),
        _bottleneck(explanation),
        _heuristics(explanation),
    ]
    return [section for section in shown if section is not None]


def titled(section: Section, name: str) -> Section:
    """Put a plan's name before a section's title, if it has one."""
    title = f"{name}: {section.title[0].lower()}{section.title[1:]}" if name else section.title
    return replace(section, title=title)


def picture(explanation: Explanation) -> Picture:
    """Draw cost and memory of every device of a plan."""
    title = f"{explanation.cost.total_ms:.2f} ms predicted"
    caveat = "" if explanation.cost.caveat is None else f"; costs are {explanation.cost.caveat}"
    return Picture(
        "devices", f"cost and memory of every device{caveat}", plan_png(explanation.plan, explanation.cost, title)
    )


def all_shards(explanation: Explanation) -> Section:
    """List every shard of the plan."""
    columns = ("table", "device", *_SHARD_COLUMNS[1:])
    rows = tuple((share.table.name, str(share.placed.device), *_shard_row(share)[1:]) for share in explanation.shards)
    return Section("All shards", "A click on a column's head sorts.", grids=(Grid(columns, rows),))


def difference(first: Explanation, second: Explanation) -> Section:
    """Compare two plans: what it takes to get from the first to the second, the most bytes first."""
    change = second.cost.total_ms - first.cost.total_ms
    steps = table_changes(first.plan, second.plan)
    facts = (
        ("predicted cost", f"{first.cost.total_ms:.2f} -> {second.cost.total_ms:.2f} ms{_caveat(second.cost)}"),
        ("change", f"{change:+.2f} ms ({change / first.cost.total_ms:+.1%})"),
        ("tables that lie elsewhere", f"{len(steps):,} of {len(first.plan.task.tables):,}"),
        ("to be moved", readable_bytes(sum(move.size_bytes for move in steps))),
    )
    return Section("From the first plan to the second", facts=facts, grids=(_moves_grid(steps),) if steps else ())


def _summary(explanation: Explanation) -> Section:
    cost, plan = explanation.cost, explanation.plan
    margin = "" if isnan(cost.margin_ms) else f" ± {cost.margin_ms:.2f} ({LEVEL:.0%} interval)"
    expected, waited = described_expectation(cost.total_ms, cost.expected_ms), described_wait(cost.waited_ms)
    facts = (
        ("predicted cost", f"{cost.total_ms:.2f} ms{margin} for {cost.scope}{_caveat(cost)}"),
        *([("expected cost", expected)] if expected is not None else []),
        ("if spread evenly", _evenly(explanation)),
        ("bottleneck", _why(explanation)),
        *([("host", waited)] if waited is not None else []),
        ("tables", plan.described_shards),
        ("devices", f"{plan.task.topology.num_devices:,}, batch {plan.task.batch_size:,}"),
        ("fullest device", _fullest(explanation)),
    )
    return Section("Summary", facts=facts)


def _caveat(cost: Cost) -> str:
    return "" if cost.caveat is None else f", {cost.caveat}"


def _evenly(explanation: Explanation) -> str:
    above = explanation.cost.total_ms / explanation.balanced_ms - 1
    return (
        f"{explanation.balanced_ms:.2f} ms: the plan is {abs(above):.1%} {'above' if above > 0 else 'below'} that "
        "(estimate of the best, assuming that its compute and columns can be spread evenly)"
    )


def _why(explanation: Explanation) -> str:
    if explanation.is_balanced:
        return "none: the devices are balanced"
    reason = "computes longest" if explanation.bottleneck == explanation.slowest else "has the most columns"
    return f"device {explanation.bottleneck}: {reason}"


def _fullest(explanation: Explanation) -> str:
    used, caps = np.array(explanation.plan.device_bytes), np.array(explanation.plan.task.shard_memory)
    device = int(np.argmin(caps - used))
    what = f"{readable_bytes(used[device])} of {readable_bytes(caps[device])}"
    return f"device {device}: {what} (memory counts {explanation.plan.task.memory})"


def _devices(explanation: Explanation) -> Section:
    cost, plan = explanation.cost, explanation.plan
    columns = ("device", "total ms", *(part.name for part in cost.parts), "columns", "memory", "of")
    rows = tuple(
        (
            str(device),
            *(f"{ms[device]:.2f}" for ms in (cost.device_ms, *(part.ms for part in cost.parts))),
            f"{plan.device_dims[device]:,}",
            readable_bytes(plan.device_bytes[device]),
            readable_bytes(plan.task.shard_memory[device]),
        )
        for device in range(plan.task.topology.num_devices)
    )
    marked = frozenset[int]() if explanation.is_balanced else frozenset({explanation.bottleneck})
    grid = Grid(columns, rows, marked, frozenset(), _short(explanation))
    text = "The devices are balanced: there is no straggler."
    if not explanation.is_balanced:
        text = f"Device {explanation.bottleneck}, marked, is the straggler."
    if not plan.in_columns:
        text += " Columns are those of tables in columns: rows and copies give out none."
    for part in cost.parts:
        text += "" if part.counts else f" {part.name.capitalize()}, {part.about}, isn't counted."
    if any(plan.host_bytes):
        used, free = readable_bytes(max(plan.host_bytes)), readable_bytes(plan.task.topology.host_bytes)
        text += f" Of their hosts' memory tables take {used} of {free}, where they take most."
    return Section("Devices", text, grids=(grid,))


def _short(explanation: Explanation) -> tuple[int, ...]:
    """Choose devices to show where not all have room: the bottleneck, those that compute longest and shortest."""
    order = np.argsort(-explanation.cost.compute, kind="stable").tolist()
    if len(order) <= _MOST_DEVICES:
        return tuple(range(len(order)))
    chosen = [*order[:_LONGEST], *order[-_SHORTEST:]]
    return tuple(dict.fromkeys([explanation.bottleneck, *chosen]))


_SHARD_COLUMNS = ("table", "columns", "of", "size", "alone, ms")


def _shard_row(share: ShardShare) -> tuple[str, ...]:
    return (
        share.table.name,
        f"{share.placed.shard.dim}",
        f"{share.table.dim}{_besides(share)}",
        readable_bytes(share.size_bytes),
        f"{share.alone_ms:.3f}",
    )


def _besides(share: ShardShare) -> str:
    """Say what a shard is besides columns with all rows, in device memory, of a pooled table that one feature reads."""
    table, home = share.table, share.placed.home
    said = {
        f"{share.placed.shard.rows:,} rows": share.layout.blocks,
        "a copy": share.layout.own_samples,
        f"{table.features} features": table.features > 1,
        "sequence": not table.pooled,
        str(home): home.tier is not Tier.DEVICE,
    }
    return "".join(f", {words}" for words, so in said.items() if so)


def _bottleneck(explanation: Explanation) -> Section:
    mean = float(np.mean(explanation.plan.device_dims))
    wider = explanation.plan.device_dims[explanation.widest] / mean - 1 if mean else 0.0
    excess = explanation.exchange_excess_ms
    price = f"which costs {excess:.2f} ms" if excess > 0 else "which costs nothing"
    facts = (
        ("computes longest", f"device {explanation.slowest}: {explanation.compute_excess_ms:.2f} ms above the mean"),
        ("has the most columns", f"device {explanation.widest}: {wider:.1%} above the mean, {price}"),
    )
    rows = tuple(_shard_row(share) for share in explanation.shards if share.placed.device == explanation.bottleneck)
    grids = (Grid(_SHARD_COLUMNS, rows),)
    if explanation.is_balanced:
        return Section(
            f"What lies on device {explanation.bottleneck}", "No device is slower than the others.", grids=grids
        )
    return Section(f"What slows device {explanation.bottleneck}", facts=facts, grids=grids)


def _moves_grid(steps: tuple[TableChange, ...]) -> Grid:
    rows = tuple(
        (
            move.table,
            _described(move.before, move.layout_before),
            _described(move.after, move.layout_after),
            readable_bytes(move.size_bytes),
        )
        for move in steps
    )
    return Grid(("table", "columns on device, before", "after", "to be moved"), rows, texts=frozenset({0, 1, 2}))


def _described(places: Places, layout: Layout) -> str:
    if layout.free:
        return ", ".join(f"{dim} on {device}" for device, dim in places)
    devices = [device for device, _ in places]
    return f"{_spread(layout, len(devices))}, {devices[0]} to {devices[-1]}"


def _spread(layout: Layout, count: int) -> str:
    return f"{layout} on {count} devices"


def _heuristics(explanation: Explanation) -> Section:
    """Compare the plan with those of heuristics, and without the host time if that hides differences."""
    costs: dict[str, Cost | str] = {"this plan": explanation.cost, **explanation.heuristics}
    ours, known = explanation.cost, [cost for cost in costs.values() if isinstance(cost, Cost)]
    hidden, worded = any(cost.waited_ms > 0 for cost in known), len(known) < len(costs)
    columns = ("method", "ms", "beside this plan", *(("ms without host time",) if hidden else ()))
    rows = []
    for name, cost in costs.items():
        if isinstance(cost, str):
            cells, why = ["no plan", "", ""], cost
        else:
            beside = "" if cost is ours else f"{cost.total_ms / ours.total_ms - 1:+.1%}"
            cells, why = [f"{cost.total_ms:.2f}", beside, f"{cost.total_ms - cost.waited_ms:.2f}"], ""
        rows.append((name, *cells[: len(columns) - 1], *((why,) if worded else ())))
    text = "All devices wait for their hosts, which hides differences between plans." if hidden else ""
    grid = Grid(
        (*columns, *(("why not",) if worded else ())), tuple(rows), frozenset({0}), frozenset({0, len(columns)})
    )
    return Section("Heuristics compared", text, grids=(grid,))
