"""The sections of the explanation of a plan, as they are printed in the terminal and written to the page."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isnan

import numpy as np
import pandas as pd

from neuroshard.cost.cost import Cost, Part, described_expectation, described_wait
from neuroshard.layouts import Layout
from neuroshard.models.trust import LEVEL
from neuroshard.plans.moves import Places, TableChange
from neuroshard.plans.picture import plan_png
from neuroshard.plumbing.grouping import grouped
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.stages.search.report.explanation import Explanation, ShardShare
from neuroshard.stages.search.report.page import Picture, Section, texts
from neuroshard.words.placement import Tier


def sections(explanation: Explanation, pictures: tuple[Picture, ...] = ()) -> list[Section]:
    """Return the sections that explain a plan, the most important section first;
    `pictures` are shown in the section on devices.
    """
    warnings = texts({"warning": [*map(str, explanation.warnings)]})
    return [
        _summary(explanation),
        *([Section("Warnings", table=warnings)] if explanation.warnings else []),
        replace(_devices(explanation), pictures=pictures),
        *_details(explanation),
        _bottleneck(explanation),
        _heuristics(explanation),
    ]


def titled(section: Section, name: str) -> Section:
    """Return a copy of the section with the name of a plan in front of the title. If the name is empty, the title stays
    the same.
    """
    title = f"{name}: {section.title[0].lower()}{section.title[1:]}" if name else section.title
    return replace(section, title=title)


def picture(explanation: Explanation) -> Picture:
    """Return a picture with the cost and the memory of every device of a plan."""
    title = f"{explanation.cost.total_ms:.2f} ms predicted"
    caveat = "" if explanation.cost.caveat is None else f"; costs are {explanation.cost.caveat}"
    return Picture(
        "devices", f"cost and memory of every device{caveat}", plan_png(explanation.plan, explanation.cost, title)
    )


def all_shards(explanation: Explanation) -> Section:
    """Return the section with a table of every shard of the plan."""
    shards = _shards(explanation.shards)
    first = {"table": shards["table"], "device": [str(share.placed.device) for share in explanation.shards]}
    return Section("All shards", table=texts(first | shards))


def difference(first: Explanation, second: Explanation, steps: Sequence[TableChange], changes: str = "") -> Section:
    """Return the section that compares two plans: the moves of tables from the first plan to the second plan, the
    largest moves first.

    `steps` are the tables whose placement changes; `changes` describes the differences between the tasks.
    """
    change = second.cost.total_ms - first.cost.total_ms
    facts = {
        "predicted cost": f"{first.cost.total_ms:.2f} -> {second.cost.total_ms:.2f} ms{_caveat(second.cost)}",
        "change": f"{change:+.2f} ms ({change / first.cost.total_ms:+.1%})",
        "tables that change": f"{len(steps):,} of {len(first.plan.task.tables):,}",
        "to be moved": readable_bytes(sum(move.size_bytes for move in steps)),
        **({"changed": changes} if changes else {}),
    }
    text = "\n".join(f"{name}: {value}" for name, value in facts.items())
    return Section("From the first plan to the second", text, _changes(steps) if steps else None)


def _summary(explanation: Explanation) -> Section:
    cost, plan = explanation.cost, explanation.plan
    margin = "" if isnan(cost.margin_ms) else f" ± {cost.margin_ms:.2f} ({LEVEL:.0%} interval)"
    expected, waited = described_expectation(cost.total_ms, cost.expected_ms), described_wait(cost.waited_ms)
    facts = {
        "predicted cost": f"{cost.total_ms:.2f} ms{margin} for {cost.scope}{_caveat(cost)}",
        "expected cost": expected,
        "if spread evenly": _evenly(explanation),
        "bottleneck": _why(explanation),
        "host": waited,
        "tables": plan.described_shards,
        "devices": f"{plan.task.topology.num_devices:,}, batch {plan.task.batch_size:,}",
        "fullest device": _fullest(explanation),
    }
    known = {name: value for name, value in facts.items() if value is not None}
    return Section("Summary", table=texts({"quantity": list(known), "value": list(known.values())}))


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
    plan = explanation.plan
    return f"{plan.described_fullest} (memory counts {plan.task.memory})"


def _devices(explanation: Explanation) -> Section:
    """Return the section on the devices of the plan: the straggler first, and then the other devices by decreasing
    compute time.

    Parts with the same name up to a dot, such as framework.input and framework.kernels, share a column, because a
    terminal does not have room for all.
    """
    cost, plan, order = explanation.cost, explanation.plan, _order(explanation)
    columns = {name: np.sum([part.ms for part in parts], axis=0) for name, parts in _by_first_word(cost).items()}
    times = {"total ms": cost.device_ms, **columns}
    table = texts(
        {
            "device": list(map(str, order)),
            **{name: [f"{ms[device]:.2f}" for device in order] for name, ms in times.items()},
            "columns": [f"{plan.device_dims[device]:,}" for device in order],
            "memory": [readable_bytes(plan.device_bytes[device]) for device in order],
            "of": [readable_bytes(plan.task.shard_memory[device]) for device in order],
        }
    )
    text = "The devices are balanced: there is no straggler."
    if not explanation.is_balanced:
        text = f"Device {explanation.bottleneck}, listed first, is the straggler."
    if not plan.all_column_wise:
        text += " Columns are those of table-wise and column-wise tables."
    for part in cost.parts:
        text += "" if part.counts else f" {part.name.capitalize()}, {part.about}, isn't counted."
    if any(plan.host_bytes):
        used, free = readable_bytes(max(plan.host_bytes)), readable_bytes(plan.task.topology.host_bytes)
        text += f" Of their hosts' memory tables take {used} of {free}, where they take most."
    return Section("Devices", text, table)


def _order(explanation: Explanation) -> list[int]:
    """Return the devices of the plan in order: the straggler first, if there is a straggler, and then by decreasing
    compute time.
    """
    order: list[int] = np.argsort(-explanation.cost.compute, kind="stable").tolist()
    return order if explanation.is_balanced else list(dict.fromkeys([explanation.bottleneck, *order]))


def _by_first_word(cost: Cost) -> dict[str, list[Part]]:
    """Return the parts of a cost in groups, as a dict. The key of a group is the first word in the names of its parts:
    "forward" and "forward.reduce_scatter" are in the group "forward".
    """
    return grouped(cost.parts, lambda part: part.name.partition(".")[0])


def _details(explanation: Explanation) -> Iterator[Section]:
    """Yield a section for each column in the table of devices that adds up several parts of the cost. The section has
    the time of each of these parts on every device, in ms. For example, the column "forward" may add up the parts
    "forward" and "forward.reduce_scatter".
    """
    order = _order(explanation)
    for name, parts in _by_first_word(explanation.cost).items():
        if len(parts) > 1:
            ms = {_detail_of(part): [f"{part.ms[device]:.2f}" for device in order] for part in parts}
            text = f'ms of each part of the column "{name}" above.'
            yield Section(f"Parts of {name}", text, texts({"device": list(map(str, order)), **ms}))


def _detail_of(part: Part) -> str:
    return part.name.partition(".")[2] or part.name


def _shards(shares: Sequence[ShardShare]) -> dict[str, list[str]]:
    return {
        "table": [share.table.name for share in shares],
        "columns": [str(share.placed.shard.dim) for share in shares],
        "of": [f"{share.table.dim}{_unusual_properties(share)}" for share in shares],
        "size": [readable_bytes(share.size_bytes) for share in shares],
        "alone, ms": [f"{share.alone_ms:.3f}" for share in shares],
    }


def _unusual_properties(share: ShardShare) -> str:
    """Return text such as ", data-parallel, 3 features" with the unusual properties of a shard; an empty text if there
    are none. Unusual properties are row-wise, data-parallel, several features, a sequence table, and memory other than
    device memory.
    """
    table, assignment = share.table, share.placed.tier_assignment
    properties = {
        f"{share.placed.shard.rows:,} rows": share.layout.blocks,
        "data-parallel": share.layout.own_samples,
        f"{table.features} features": table.features > 1,
        "sequence": not table.pooled,
        str(assignment): assignment.tier is not Tier.DEVICE,
    }
    return "".join(f", {words}" for words, so in properties.items() if so)


def _bottleneck(explanation: Explanation) -> Section:
    mean = float(np.mean(explanation.plan.device_dims))
    wider = explanation.plan.device_dims[explanation.widest] / mean - 1 if mean else 0.0
    excess = explanation.exchange_excess_ms
    price = f"which costs {excess:.2f} ms" if excess > 0 else "which costs nothing"
    here = texts(_shards([share for share in explanation.shards if share.placed.device == explanation.bottleneck]))
    if explanation.is_balanced:
        return Section(f"Shards on device {explanation.bottleneck}", "No device is slower than the others.", here)
    text = (
        f"Device {explanation.slowest} computes longest: {explanation.compute_excess_ms:.2f} ms above the mean.\n"
        f"Device {explanation.widest} has the most columns: {wider:.1%} above the mean, {price}."
    )
    return Section(f"What slows device {explanation.bottleneck}", text, here)


def _changes(steps: Sequence[TableChange]) -> pd.DataFrame:
    return texts(
        {
            "table": [move.table for move in steps],
            "columns on device, before": [_described(move.before, move.layout_before) for move in steps],
            "after": [_described(move.after, move.layout_after) for move in steps],
            "to be moved": [readable_bytes(move.size_bytes) for move in steps],
        }
    )


def _described(places: Places, layout: Layout) -> str:
    if layout.free:
        return ", ".join(f"{dim} on {device}" for device, dim in places)
    return f"{layout} on {len(places)} devices, {places[0][0]} to {places[-1][0]}"


def _heuristics(explanation: Explanation) -> Section:
    """Return the section that compares the cost of the plan with the costs of plans by heuristics.

    If waits for the host hide differences, the table also has the costs without these waits.
    """
    costs: dict[str, Cost | str] = {"this plan": explanation.cost, **explanation.heuristics}
    ours, known = explanation.cost, {name: cost for name, cost in costs.items() if isinstance(cost, Cost)}
    hidden = any(cost.waited_ms > 0 for cost in known.values())
    beside = {name: f"{cost.total_ms / ours.total_ms - 1:+.1%}" for name, cost in known.items() if cost is not ours}
    table = {
        "method": list(costs),
        "ms": [f"{known[name].total_ms:.2f}" if name in known else "no plan" for name in costs],
        "beside this plan": [beside.get(name, "") for name in costs],
    }
    if hidden:
        without = {name: f"{cost.total_ms - cost.waited_ms:.2f}" for name, cost in known.items()}
        table["ms without host time"] = [without.get(name, "") for name in costs]
    if len(known) < len(costs):
        table["why not"] = ["" if isinstance(cost, Cost) else cost for cost in costs.values()]
    text = "All devices wait for their hosts, which hides differences between plans." if hidden else ""
    return Section("Heuristics compared", text, texts(table))
