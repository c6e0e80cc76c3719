"""Other systems: what each can express of plans, tasks whose plans it takes, and plans in its words, by its name."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from glob import escape
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from neuroshard.layouts import Layout
from neuroshard.layouts.sharding_types import COLUMN_WISE, SHARDING_TYPES
from neuroshard.models import CostModels
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError, check_name, warn_of
from neuroshard.plumbing.files import beginning, check_file, has_format, write_atomically, write_json
from neuroshard.plumbing.progress import print_lines
from neuroshard.plumbing.schema import MAX_SHARD_DIM, PathName
from neuroshard.tables import Table
from neuroshard.tasks.constraints import TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task
from neuroshard.words.model_choice import TORCHREC
from neuroshard.words.placement import TIERS, Placement, Tier

_TORCHREC, _PLAIN = "torchrec", "json"
_MODULES = {"sok": "sok", "hugectr": "hugectr", _TORCHREC: "torchrec", _PLAIN: "plain_json"}  # that hold a `TARGET`
TARGETS = tuple(_MODULES)


@dataclass(frozen=True)
class Exported:
    """A plan as another system reads it.

    Attributes:
        content: JSON-ready content.
        snippet: Python code that sets the tables up in the system; None if the system reads the JSON.
        remarks: requirements of the plan for training, a line each.
    """

    content: dict[str, Any]
    snippet: str | None = None
    remarks: tuple[str, ...] = ()

    @property
    def suffix(self) -> str:
        """Suffix of a file with this content."""
        return ".json" if self.snippet is None else ".py"

    def paths(self, out: str | Path) -> tuple[Path, ...]:
        """Name the files that `save` writes, `out` first.

        Raises:
            UserError: `out` has another suffix, or one of them is a directory.
        """
        path = Path(out)
        if path.suffix != self.suffix:
            raise UserError(f"out={out} must end in {self.suffix}")
        paths = (path,) if self.snippet is None else (path, path.with_suffix(".json"))
        for one in paths:
            if one.is_dir():
                raise UserError(f"{one} is a directory; give another out=FILE{self.suffix}")
        return paths

    def save(self, out: str | Path) -> tuple[Path, ...]:
        """Write the snippet to `out`, and the JSON next to it; if there is no snippet, write the JSON to `out`.

        Raises:
            UserError: `out` has another suffix, or is a directory.
        """
        paths = self.paths(out)
        if self.snippet is not None:
            write_atomically(paths[0], self.snippet.encode())
        write_json(paths[-1], self.content)
        return paths


@dataclass(frozen=True)
class Target:
    """A system that trains embedding tables, and what it can express of a plan.

    Attributes:
        name: as settings name it.
        title: as people do.
        write: a plan that it can express, in its words.
        sharding_types: that it has for pooled tables.
        sequence_types: that it has for sequence tables.
        equal_widths: True if all column shards of a table must have equal widths.
        tiers: of memory that it has.
        element_bytes: of weights that it stores.
        remarks: lines on what a plan, which it can express, asks of whoever trains with it.
        host_tables: what keeps its tables in host memory, as `MemoryUse.host_tables` has it; None if any may.
        steps: what costs may count beyond kernels and exchanges: what TorchRec adds to a step where that trains,
            nothing where another framework does, or whatever the models are asked for.
    """

    name: str
    title: str
    write: Callable[[Plan], Exported]
    sharding_types: frozenset[str] = frozenset(SHARDING_TYPES)
    sequence_types: frozenset[str] = frozenset(SHARDING_TYPES)
    equal_widths: bool = False
    tiers: frozenset[Tier] = frozenset(Tier)
    element_bytes: tuple[int, ...] = (2, 4)
    remarks: Callable[[Plan], tuple[str, ...]] = lambda _: ()
    host_tables: str | None = None
    steps: Literal["torchrec", "other", "any"] = "other"

    def export(self, plan: Plan, name: str = "plan") -> Exported:
        """Translate a plan into the target's words.

        Args:
            plan: any.
            name: that errors give a plan that breaks its task.

        Raises:
            UserError: the plan breaks its task, or the target has no words for it, as `check` says.
        """
        if plan.violations:
            raise UserError(f"{name}: doesn't fit its task: {plan.violations[0]}; search again, or mend the task")
        self.check(plan)
        exported = self.write(plan)
        return replace(exported, remarks=(*plan.task.padded_remarks, *exported.remarks))

    def check(self, plan: Plan) -> None:
        """Raise UserError unless the target can lay every table out as planned, with table, limit and what to do."""
        for number, placed in enumerate(plan.by_table):
            table, layout = plan.task.tables[number], plan.layouts[number]
            self._check_stored(table)
            if (why := self._refused(table, layout, placed, plan.task)) is not None:
                raise UserError(f"plan: table {table.name!r} {why}; find another with search target={self.name}")
        own = self._own_memory(plan.task)
        if own is not plan.task and (broken := replace(plan, task=own).violations):
            raise UserError(
                f"plan: {broken[0]}, as {self.title} keeps tables in host memory; find another with search "
                f"target={self.name}"
            )

    def constrained(self, task: Task) -> Task:
        """Add rules to a task that keep its plans to what the target can express; none where that is everything.

        Memory counts as the target takes it.

        Raises:
            UserError: the target can't serve a table of it, or its own rules ask for what the target can't express.
        """
        for table in task.tables:
            self._check_stored(table)
            if table.dim > MAX_SHARD_DIM and COLUMN_WISE not in self.sharding_types:
                raise UserError(
                    f"target={self.name}: table {table.name!r} has {table.dim} columns, shards have {MAX_SHARD_DIM} at "
                    f"most, and {self.title} leaves columns together; make the table narrower, or several of it"
                )
        rules = [self._rule()]
        if (types := _rule_types(self.sequence_types)) is not None:
            rules += [TableRule(escape(table.name), sharding_types=types) for table in task.tables if not table.pooled]
        own = self._own_memory(task)
        if rules == [TableRule("*")]:
            return own
        try:
            return own.with_rules(rules)
        except UserError as error:
            raise UserError(f"target={self.name}: {error}") from None

    def usual_framework(self, measured_in: str | None = None) -> str | None:
        """Return the framework whose overhead counts if nobody chooses one: None, or "torchrec" where TorchRec trains.

        Args:
            measured_in: the framework in whose steps plans are measured; None if in none. It counts if the target
                leaves open what trains.
        """
        return {"torchrec": TORCHREC, "other": None, "any": measured_in}[self.steps]

    def costed(self, models: CostModels) -> CostModels:
        """Adapt models to the target's steps: what TorchRec adds counts where it trains and they know it.

        Models that were loaded with framework="none" stay as they are.

        Raises:
            UserError: it counts, and another framework trains.
        """
        if self.steps == "other" and models.of_whole_steps:
            raise UserError(
                f"costs by {models.label} count what TorchRec adds to a step, and {self.title} trains without it; "
                "leave framework=torchrec out, or search with target=torchrec"
            )
        return models.in_torchrec_if_known() if self.steps == "torchrec" else models

    @property
    def trains(self) -> bool:
        """Whether the target is a system that trains, whose memory holds more than weights."""
        return self.name != _PLAIN

    def memory_warnings(self, task: Task) -> tuple[str, ...]:
        """Return a line if the target trains and the task's memory counts the weights alone."""
        if not self.trains or task.memory != MemoryUse(host_tables=task.memory.host_tables):
            return ()
        return (
            f"memory: plans for {self.title} count the weights alone, so training may run out of memory; give the task "
            "memory=ns.MemoryUse('rowwise_adagrad', batches_in_flight=1), or on the command line memory=training",
        )

    def cost_warnings(self, models: CostModels) -> tuple[str, ...]:
        """Return a warning if the models' costs leave out the target's overhead in a step; none if that is intended."""
        if self.steps == "any" or (self.steps == "torchrec" and models.framework is not None):
            return ()
        return models.left_out(self.title)

    def _own_memory(self, task: Task) -> Task:
        """Return the task with memory counted as the target keeps tables in host memory, if tables may be there."""
        if self.host_tables in (None, task.memory.host_tables) or not task.topology.host_bytes:
            return task
        return replace(task, memory=replace(task.memory, host_tables=self.host_tables))

    def _rule(self) -> TableRule:
        """Return the rule that every table must keep to."""
        return TableRule(
            "*",
            sharding_types=_rule_types(self.sharding_types),
            tiers=None if self.tiers == set(Tier) else tuple(tier for tier in TIERS if tier in self.tiers),
            equal_widths=self.equal_widths,
        )

    def _check_stored(self, table: Table) -> None:
        if table.bytes_per_element not in self.element_bytes:
            raise UserError(
                f"table {table.name!r} has {table.bytes_per_element} bytes per element, and {self.title} stores "
                f"{' or '.join(map(str, self.element_bytes))}; plan it with bytes_per_element="
                f"{self.element_bytes[0]}"
            )

    def _refused(self, table: Table, layout: Layout, placed: Sequence[Placement], task: Task) -> str | None:
        """Return why the target can't express a table's placements, as text; None if it can."""
        types, which = self.sharding_types, "tables"
        if not table.pooled:
            types, which = types & self.sequence_types, "sequence tables"
        if not types & layout.allowed_by(placed, task.topology):
            has = " and ".join(name for name in SHARDING_TYPES if name in types)
            return f"is {layout.sharding_type(placed, task.topology)}, and {self.title} has {has} {which} only"
        if (tier := placed[0].tier_assignment.tier) not in self.tiers:
            return f"is in tier {tier.value}, and {self.title} has {' and '.join(sorted(self.tiers))} only"
        return self._refused_widths(placed) if self.equal_widths else None

    def _refused_widths(self, placed: Sequence[Placement]) -> str | None:
        """Return why the target can't express the column shards of a table, as text; None if it can."""
        widths = {placement.shard.dim for placement in placed}
        if len(widths) > 1:
            wide = " and ".join(map(str, sorted(widths)))
            return f"is in shards of {wide} columns, and {self.title} needs equal widths"
        if len({placement.device for placement in placed}) < len(placed):
            return f"has several shards on one device, and {self.title} has one of each table there"
        return None


def _rule_types(types: frozenset[str]) -> tuple[str, ...] | None:
    """Return sharding types as a rule has them; None if they are all."""
    return None if types.issuperset(SHARDING_TYPES) else tuple(name for name in SHARDING_TYPES if name in types)


def _is_like(path: Path, exported: Exported) -> bool:
    """Tell whether a file is an export to the same system, as its beginning says."""
    if exported.snippet is None or path.suffix == ".json":
        return has_format(path, f'{exported.content["format"]}"')
    return _heading(beginning(path).decode(errors="replace")) == _heading(exported.snippet)


def _heading(text: str) -> str:
    """Find a snippet's first line, which names the system, without the number of its GPUs."""
    return re.sub(r"\d+", "", next(iter(text.splitlines()), ""))


def target_named(name: str | None, module: str = "") -> Target:
    """Load the target of that name: "sok", "hugectr", "torchrec" or "json".

    Args:
        name: of the target; None for "json", which can express every plan.
        module: of TorchRec, path of the collection inside the model that has the tables.

    Raises:
        UserError: there is none, or it has no modules.
    """
    name = _PLAIN if name is None else name
    check_name("target", name, TARGETS)
    held = import_module(f"neuroshard.targets.{_MODULES[name]}")
    target: Target = held.TARGET
    if not module:
        return target
    if name != _TORCHREC:
        raise UserError(f"module={module!r} goes with torchrec only; {target.title} has no modules")
    return replace(target, write=partial(held.write, module=module))


def export_plan(plan: Plan, to: str, module: str = "") -> Exported:
    """Translate a plan for another system; `export_plan(...).save(out)` writes the result to a file.

    Args:
        plan: a plan that keeps its task's limits; `search target=...` finds plans that a system can express.
        to: "sok" (NVIDIA's SparseOperationKit), "hugectr" (the embedding collection of NVIDIA's HugeCTR), "torchrec",
            or "json" for plain placements.
        module: for "torchrec", path of the collection of the tables inside the model, such as "sparse_arch.ebc".

    Requirements of the plan for training are in `remarks` of the result, and in one `NeuroShardWarning`.

    Raises:
        UserError: there is no such system, the plan breaks its task, or the system can't express it; the line names the
            table and the limit.
    """
    exported = target_named(to, module).export(plan)
    warn_of("neuroshard.export_plan", exported.remarks)
    return exported


def constrained(tasks: Sequence[Task], target: str | None) -> tuple[Task, ...]:
    """Constrain tasks to plans that a target can express; leave them as they are without one.

    Raises:
        UserError: there is no such target, or it can't serve a task's tables or rules.
    """
    return tuple(target_named(target).constrained(task) for task in tasks)


def memory_for(
    target: str | None = None,
    optimizer: str | None = None,
    batches_in_flight: int | None = None,
    pipeline: str | None = None,
    dense_optimizer: str | None = None,
) -> MemoryUse:
    """Return what counts against a device's memory in addition to the weights, if nobody says more.

    Plans for a system that trains count the state of row-wise Adagrad and the buffers of a batch; other plans count the
    weights alone, as in the papers.

    Args:
        target: sok | hugectr | torchrec | json: the system that plans are for; null for none.
        optimizer: sgd | rowwise_adagrad | adagrad | partial_rowwise_adam | adam: whose state counts; null for
            rowwise_adagrad with a target, else for none.
        batches_in_flight: batches whose inputs and outputs are in memory at once; null for 1 with a target, else for 0.
        pipeline: none | sparse_dist | prefetch | semi_sync: the training pipeline whose buffers count instead.
        dense_optimizer: sgd | rowwise_adagrad | adagrad | partial_rowwise_adam | adam: the optimizer that updates
            data-parallel tables; null counts the state of `optimizer`.
    """
    trains = target_named(target).trains
    usual = MemoryUse("rowwise_adagrad", batches_in_flight=1) if trains else MemoryUse()
    batches = usual.batches_in_flight if batches_in_flight is None else batches_in_flight
    return MemoryUse(optimizer or usual.optimizer, batches, pipeline, dense_optimizer)


@dataclass(frozen=True)
@checked
class Export:
    """Everything `neuroshard export` needs.

    Attributes:
        plan: a plan file, without a key: export PLAN.json.
        to: sok | hugectr | torchrec | json: sok is NVIDIA's SparseOperationKit, hugectr the embedding collection of
            NVIDIA's HugeCTR, json plain placements.
        out: with to=sok and to=hugectr a file *.py, next to which a *.json has the same content; else a file *.json.
        module: with to=torchrec, path of the collection of the tables inside the model, such as sparse_arch.ebc.
    """

    plan: PathName
    to: str
    out: PathName
    module: str = ""

    def run(self) -> "ExportResult":
        """Read the plan, and write it in the target's words.

        Raises:
            UserError: there is no such target, the file is no plan or breaks its task, the target can't express it, or
                `out` holds something else than an earlier export or can't be written.
        """
        target = target_named(self.to, self.module)
        plan = Plan.load(self.plan)
        exported = target.export(plan, self.plan)
        paths = exported.paths(self.out)
        there = [path for path in paths if path.exists()]
        for path in there:
            if path.samefile(self.plan):
                raise UserError(f"{path} is the plan that is exported; give another out=FILE{exported.suffix}")
        for path in there:
            if not _is_like(path, exported):
                raise UserError(f"{path} is no earlier export; give another out=FILE{exported.suffix}")
        check_file(paths[0])
        return ExportResult(target, plan, exported.save(self.out), exported.remarks)


@dataclass(frozen=True)
class ExportResult:
    """What was written, and what it asks of whoever trains with it."""

    target: Target
    plan: Plan
    paths: tuple[Path, ...]
    remarks: tuple[str, ...] = ()

    def show(self, console: Console) -> None:
        """Print the files written and what the target's users must know."""
        task = self.plan.task
        what = f"{len(task.tables)} tables on {task.topology.num_devices} devices for {self.target.title}"
        print_lines(console, [f"{what}: {', '.join(map(str, self.paths))}", *self.remarks])
