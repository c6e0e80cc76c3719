"""The interface of a system to which plans are exported, the systems by name, and the command `neuroshard export`."""

import re
from collections.abc import Callable, Mapping, Sequence
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
from neuroshard.plans.kept_files import kept_modules
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError, check_name, warn_of
from neuroshard.plumbing.files import beginning, check_file, has_format, write_atomically, write_json
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.progress import print_lines
from neuroshard.plumbing.schema import MAX_SHARD_DIM, PathName, readable_list
from neuroshard.tables import Table
from neuroshard.tasks.constraints import TableRule
from neuroshard.tasks.memory import MemoryUse
from neuroshard.tasks.task import Task
from neuroshard.words.model_choice import TORCHREC
from neuroshard.words.placement import TIERS, Placement, Tier

_TORCHREC, _PLAIN = "torchrec", "json"
_MODULES = {  # the module in this package with the `TARGET` of each name
    "sok": "sok",
    "hugectr": "hugectr",
    _TORCHREC: "torchrec",
    _PLAIN: "plain_json",
}
TARGETS = tuple(_MODULES)
_SHOWN = 8  # maximum number of tables that a warning names


@dataclass(frozen=True)
class Exported:
    """A plan in the format of another system, such as TorchRec, HugeCTR or SOK, which can be saved to files.

    Attributes:
        content: JSON-ready content.
        snippet: Python code that creates the tables in the system; None if the system reads the JSON.
        remarks: requirements of the plan for training.
    """

    content: dict[str, Any]
    snippet: str | None = None
    remarks: tuple[Message, ...] = ()

    @property
    def suffix(self) -> str:
        """The suffix of the exported file: ".py" if the export has Python code, which creates the tables, else
        ".json".
        """
        return ".json" if self.snippet is None else ".py"

    def paths(self, out: str | Path) -> tuple[Path, ...]:
        """Return the paths of the files that `save` writes: first `out`, then the path of the JSON if `out` is Python
        code.

        Raises:
            UserError: `out` has another suffix, or one of the paths is a directory.
        """
        path = Path(out)
        if path.suffix != self.suffix:
            raise UserError(
                "export-out-suffix",
                f"out is {str(out)!r}",
                limit=f"this export writes a *{self.suffix} file",
                remedy=f"Set out=FILE{self.suffix}",
            )
        paths = (path,) if self.snippet is None else (path, path.with_suffix(".json"))
        for file in paths:
            if file.is_dir():
                raise UserError(
                    "export-out-directory",
                    f"the path {str(file)!r} is a directory",
                    limit="the export writes a file of this name",
                    remedy=f"Set another out=FILE{self.suffix}",
                )
        return paths

    def save(self, out: str | Path) -> tuple[Path, ...]:
        """Write the exported plan to the file `out`.
        If the export has Python code, write the code to `out`, and the JSON to the same path with the suffix ".json".
        If the export has only JSON, write the JSON to `out`.

        Returns:
            The paths of the written files.

        Raises:
            UserError: `out` has another suffix, or one of the paths is a directory.
        """
        paths = self.paths(out)
        if self.snippet is not None:
            write_atomically(paths[0], self.snippet.encode())
        write_json(paths[-1], self.content)
        return paths


@dataclass(frozen=True)
class Target:
    """A system that trains embedding tables or reads plans, and the sharding types, memory tiers and data types that
    the system supports.

    Attributes:
        name: name of the system in settings.
        title: name of the system in messages.
        write: function that translates a plan that the system can express.
        sharding_types: the system's sharding types for pooled tables.
        sequence_types: the system's sharding types for sequence tables.
        equal_widths: True if all column shards of a table must have equal widths.
        tiers: the system's memory tiers.
        element_bytes: bytes of each weight in the data types that the system stores.
        remarks: function that returns warnings about training with a plan.
        host_tables: library that keeps the system's tables in host memory, as in `MemoryUse.host_tables`; None if the
            system works with any library.
        steps: the framework overhead that costs may include: "torchrec" for TorchRec's overhead; "other" for none,
            because another framework trains; "any" for the overhead that the user asks for.
        hierarchical: True if the system's all-to-alls between hosts go through the devices of each host first, so that
            a network card exchanges only with the cards of the same place on the other hosts.
        write_kept: function that translates a plan that a planner kept, with all tables of the model; None if the
            system gets only the tables that NeuroShard planned.
    """

    name: str
    title: str
    write: Callable[[Plan], Exported]
    sharding_types: frozenset[str] = frozenset(SHARDING_TYPES)
    sequence_types: frozenset[str] = frozenset(SHARDING_TYPES)
    equal_widths: bool = False
    tiers: frozenset[Tier] = frozenset(Tier)
    element_bytes: tuple[int, ...] = (2, 4)
    remarks: Callable[[Plan], tuple[Message, ...]] = lambda _: ()
    host_tables: str | None = None
    steps: Literal["torchrec", "other", "any"] = "other"
    hierarchical: bool = False
    write_kept: Callable[[Plan, Mapping[str, Any]], Exported] | None = None

    def export(self, plan: Plan, name: str = "plan", kept: Mapping[str, Mapping[str, Any]] | None = None) -> Exported:
        """Return a plan in the format of the target.

        Args:
            plan: a plan.
            name: name of the plan in the error that the plan breaks a limit of its task.
            kept: the plan of the whole model, as `kept_modules` returns it, if a planner kept the plan in a file.

        Raises:
            UserError: the plan breaks a limit of its task, or the target cannot express the plan (see `check`).
        """
        if plan.violations:
            raise UserError(
                "export-plan-breaks-task",
                "the plan breaks a limit of its task",
                where=name,
                limit=plan.violations[0],
                remedy="Search again, or correct the task",
            )
        self.check(plan)
        remarks = plan.task.padded_remarks
        if kept is None:
            exported = self.write(plan)
        elif self.write_kept is not None:
            exported = self.write_kept(plan, kept)
        else:
            exported = self.write(plan)
            remarks = (*remarks, *_left_out_remarks(plan, kept))
        return replace(exported, remarks=(*remarks, *exported.remarks))

    def check(self, plan: Plan) -> None:
        """Raise UserError if the target (such as the system that trains with the plan) cannot store a table's data
        type, cannot shard a table as planned, or needs more memory for the plan than the task has.
        """
        for number, placed in enumerate(plan.by_table):
            table, layout = plan.task.tables[number], plan.layouts[number]
            self._check_stored(table)
            if (refused := self._refused(table, layout, placed, plan.task)) is not None:
                predicate, limit = refused
                raise UserError(
                    "export-table-unsupported",
                    f"table {table.name!r} {predicate}",
                    where="plan",
                    limit=limit,
                    remedy=f"Search for another plan with target={self.name}",
                )
        own = self._own_memory(plan.task)
        if own is not plan.task and (broken := replace(plan, task=own).violations):
            raise UserError(
                "export-host-memory",
                broken[0],
                where="plan",
                limit=f"{self.title} needs more memory for tables in host memory than the plan assumes",
                remedy=f"Search for another plan with target={self.name}",
            )

    def constrained(self, task: Task) -> Task:
        """Return a copy of the task with additional rules, so that only plans that the target can express are allowed.

        The memory for tables in host memory is counted as the target needs it. If the target can express all plans, no
        rules are added.

        Raises:
            UserError: the target cannot store a table of the task, or the task's own rules contradict the new rules.
        """
        for table in task.tables:
            self._check_stored(table)
            if table.dim > MAX_SHARD_DIM and COLUMN_WISE not in self.sharding_types:
                raise UserError(
                    "target-table-wide",
                    f"table {table.name!r} has {table.dim} columns",
                    where=f"target={self.name}",
                    limit=f"{self.title} does not split columns, and a shard has at most {MAX_SHARD_DIM} columns",
                    remedy="Make the table narrower, or replace it by several tables",
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
            raise error.at(f"target={self.name}") from None

    def usual_framework(self, measured_in: str | None = None) -> str | None:
        """Return the name of the training framework whose overhead is included in plan costs by default.
        The name is "torchrec" for the target TorchRec. Return None if plan costs include no overhead by default.

        This is the default of the setting `framework` for plans for this target.

        Args:
            measured_in: framework in whose steps plans are measured; None if plans are not measured in steps. This
                framework is returned if the target does not determine the framework (json).
        """
        return {"torchrec": TORCHREC, "other": None, "any": measured_in}[self.steps]

    def costed(self, models: CostModels) -> CostModels:
        """Return cost models for plans for this target, made from `models`. The models predict the costs of training
        steps. If the target trains with TorchRec, and the overhead of TorchRec is known to `models`, the predicted
        costs include this overhead.

        If the target exchanges by hierarchical all-to-alls, analytic models predict these. Models that were loaded with
        framework="none" do not get TorchRec's overhead.

        Raises:
            UserError: the models include TorchRec's overhead, but another framework trains.
        """
        if self.steps == "other" and models.of_whole_steps:
            raise UserError(
                "target-other-framework",
                f"the cost models {models.label!r} count the overhead of TorchRec",
                limit=f"{self.title} trains without TorchRec",
                remedy="Remove framework=torchrec, or search with target=torchrec",
            )
        if self.hierarchical:
            models = models.with_links(lambda model: replace(model, links=replace(model.links, hierarchical=True)))
        return models.in_torchrec_if_known() if self.steps == "torchrec" else models

    @property
    def trains(self) -> bool:
        """True if the target trains, so that it needs memory for more than the weights; False for plain JSON."""
        return self.name != _PLAIN

    def memory_warnings(self, task: Task) -> tuple[Message, ...]:
        """Return a warning if the target trains, but the task counts only the memory of the weights.
        Training also needs memory for optimizer state and batches. Return an empty tuple if the task counts more than
        the weights, or if the target (plain JSON) does not train.
        """
        if not self.trains or task.memory != MemoryUse(host_tables=task.memory.host_tables):
            return ()
        return (
            Message(
                "memory-weights-only",
                f"plans for {self.title} count only the memory of the weights",
                where="memory",
                limit="optimizer state and batches need memory too, so training may run out of memory",
                remedy="Pass memory=ns.MemoryUse('rowwise_adagrad', batches_in_flight=1) to the task, or "
                "memory=training on the command line",
            ),
        )

    def cost_warnings(self, models: CostModels) -> tuple[Message, ...]:
        """Return a warning if the cost models do not know the overhead of the target's training framework.
        Predicted costs of training steps then lack this overhead. Return an empty tuple if the models know the
        overhead, or if the target is plain JSON, which does not train.
        """
        if self.steps == "any" or (self.steps == "torchrec" and models.framework is not None):
            return ()
        return models.left_out(self.title)

    def _own_memory(self, task: Task) -> Task:
        """Return a copy of the task in which tables in host memory take as much memory as in the target's library.
        FBGEMM and HKV, the two libraries for such tables, need different amounts of memory. The task is returned
        unchanged if the task has no host memory, or if the target works with any library.
        """
        if self.host_tables in (None, task.memory.host_tables) or not task.topology.host_bytes:
            return task
        return replace(task, memory=replace(task.memory, host_tables=self.host_tables))

    def _rule(self) -> TableRule:
        """Return a rule for all tables that allows only the sharding types and memory tiers that the target supports.
        If the target needs column shards of equal widths, the rule also requires equal widths.
        """
        return TableRule(
            "*",
            sharding_types=_rule_types(self.sharding_types),
            tiers=None if self.tiers == set(Tier) else tuple(tier for tier in TIERS if tier in self.tiers),
            equal_widths=self.equal_widths,
        )

    def _check_stored(self, table: Table) -> None:
        """Raise UserError if the target cannot store weights in the data type of a table."""
        if table.bytes_per_element not in self.element_bytes:
            raise UserError(
                "target-element-bytes",
                f"table {table.name!r} has {table.bytes_per_element} bytes per element",
                limit=f"{self.title} stores {' or '.join(map(str, self.element_bytes))} bytes per element",
                remedy=f"Plan the table with bytes_per_element={self.element_bytes[0]}",
            )

    def _refused(self, table: Table, layout: Layout, placed: Sequence[Placement], task: Task) -> tuple[str, str] | None:
        """Return the reason why the target cannot express the sharding or the memory tier of a table in a plan.
        The reason is a pair of texts for an error message: a predicate of the table, such as "is in tier uvm", and the
        limit of the target, such as "HugeCTR has tables only in tier device". Return None if the target can express the
        sharding and the tier.
        """
        types, noun = self.sharding_types, "tables"
        if not table.pooled:
            types, noun = types & self.sequence_types, "sequence tables"
        if not types & layout.allowed_by(placed, task.topology):
            allowed = " and ".join(name for name in SHARDING_TYPES if name in types)
            return f"is {layout.sharding_type(placed, task.topology)}", f"{self.title} has only {allowed} {noun}"
        if (tier := placed[0].tier_assignment.tier) not in self.tiers:
            return (
                f"is in tier {tier.value}",
                f"{self.title} has tables only in tier {' and '.join(sorted(self.tiers))}",
            )
        return self._refused_widths(placed) if self.equal_widths else None

    def _refused_widths(self, placed: Sequence[Placement]) -> tuple[str, str] | None:
        """Return the reason why the target cannot express the column shards of a table; None if there is no reason.
        The target needs shards of equal width, at most one on each device. The reason is a pair of texts for an error
        message: a predicate of the table, such as "is in shards of 32 and 64 columns", and the limit of the target.
        """
        widths = {placement.shard.dim for placement in placed}
        if len(widths) > 1:
            wide = " and ".join(map(str, sorted(widths)))
            return f"is in shards of {wide} columns", f"{self.title} needs column shards of equal width"
        if len({placement.device for placement in placed}) < len(placed):
            return "has several shards on one device", f"{self.title} allows only one shard of a table on each device"
        return None


def _rule_types(types: frozenset[str]) -> tuple[str, ...] | None:
    """Return the value for `TableRule.sharding_types` that allows only the sharding types in `types`.
    The value has the names of the types in the order of `SHARDING_TYPES`, or is None if all types are allowed.
    """
    return None if types.issuperset(SHARDING_TYPES) else tuple(name for name in SHARDING_TYPES if name in types)


def _left_out_remarks(plan: Plan, kept: Mapping[str, Mapping[str, Any]]) -> tuple[Message, ...]:
    """Return a warning that names the tables of a kept plan that NeuroShard did not plan: an export lacks these tables.
    Return an empty tuple if there are no such tables.

    `plan` has the tables that NeuroShard planned, and `kept` has all tables of the model, by module and name.
    """
    planned = {table.name for table in plan.task.tables}
    full_names = [(f"{path}.{name}" if path else name, name) for path, tables in kept.items() for name in tables]
    missing = sorted(full_name for full_name, name in full_names if planned.isdisjoint((full_name, name)))
    if not missing:
        return ()
    return (
        Message(
            "export-tables-left-out",
            f"the export lacks {number_of(len(missing), 'table')} of the kept plan ({readable_list(missing, _SHOWN)})",
            limit="TorchRec's planner planned these tables, or they come from the plan in given=",
            remedy="Place these tables yourself, or export with to=torchrec, which has all tables of the plan",
        ),
    )


def _is_like(path: Path, exported: Exported) -> bool:
    """Return True if the file at `path` seems to be an export to the same system, such as HugeCTR, as `exported`.
    Only the beginning of the file is compared: the first line of Python code, or the field "format" of JSON.
    """
    if exported.snippet is None or path.suffix == ".json":
        return has_format(path, f'{exported.content["format"]}"')
    return _heading(beginning(path).decode(errors="replace")) == _heading(exported.snippet)


def _heading(text: str) -> str:
    """Return the first line of the exported Python code `text`, without the digits in this line.
    The line names the system for which the code was written. Without digits, the line is the same for every number of
    GPUs.
    """
    return re.sub(r"\d+", "", next(iter(text.splitlines()), ""))


def target_named(name: str | None, module: str = "") -> Target:
    """Return the target called `name`: "sok", "hugectr", "torchrec" or "json".

    Args:
        name: name of the target; None for "json", which can express every plan.
        module: for TorchRec, path of the collection inside the model that has the tables.

    Raises:
        UserError: no target has this name, or `module` is set for another target than TorchRec.
    """
    name = _PLAIN if name is None else name
    check_name("target", name, TARGETS)
    target_module = import_module(f"neuroshard.targets.{_MODULES[name]}")
    target: Target = target_module.TARGET
    if not module:
        return target
    if name != _TORCHREC:
        raise UserError(
            "target-without-modules",
            f"module is set to {module!r}",
            limit=f"module applies to exports to TorchRec only, not to {target.title}",
            remedy="Remove module, or export with to=torchrec",
        )
    return replace(
        target,
        write=partial(target_module.write, module=module),
        write_kept=partial(target_module.write_kept, module=module),
    )


def export_plan(plan: Plan, to: str, module: str = "") -> Exported:
    """Return a plan in the format of another system; `export_plan(...).save(out)` writes the result to a file.

    Args:
        plan: a plan that keeps its task's limits; `search target=...` finds plans that a system can express.
        to: "sok" (NVIDIA's SparseOperationKit), "hugectr" (the embedding collection of NVIDIA's HugeCTR), "torchrec",
            or "json" for plain placements.
        module: for "torchrec", path of the collection of the tables inside the model, such as "sparse_arch.ebc".

    Requirements of the plan for training are in `remarks` of the result, and in one `NeuroShardWarning`.

    Raises:
        UserError: there is no such system, the plan breaks its task, or the system cannot express the plan; the error
            names the table and the limit.
    """
    exported = target_named(to, module).export(plan)
    warn_of("neuroshard.export_plan", exported.remarks)
    return exported


def constrained(tasks: Sequence[Task], target: str | None) -> tuple[Task, ...]:
    """Return the tasks with rules that allow only plans that a target can express.

    With target None, the tasks have no further rules.

    Raises:
        UserError: there is no such target, or the target cannot store a table or contradicts the rules of a task.
    """
    return tuple(target_named(target).constrained(task) for task in tasks)


def memory_for(
    target: str | None = None,
    optimizer: str | None = None,
    batches_in_flight: int | None = None,
    pipeline: str | None = None,
    dense_optimizer: str | None = None,
) -> MemoryUse:
    """Return a `MemoryUse`: the settings from which the memory of plans is computed. The memory always includes the
    weights; the settings say which other memory counts, such as optimizer states. The defaults of `optimizer` and
    `batches_in_flight` depend on the target.

    Plans for a system that trains count the state of row-wise Adagrad and the buffers of a batch; other plans count
    only the weights, as in the papers.

    Args:
        target: sok | hugectr | torchrec | json: system that trains with the plans (NVIDIA's SOK or HugeCTR, TorchRec,
            or a reader of JSON), which sets the defaults of memory.optimizer and memory.batches_in_flight; None means
            no system.
        optimizer: sgd | rowwise_adagrad | adagrad | partial_rowwise_adam | adam: optimizer of the tables, whose state
            counts as memory; None: rowwise_adagrad for target sok, hugectr or torchrec, else sgd (no state).
        batches_in_flight: number of batches whose inputs and outputs are in device memory at once, from 0 (no buffers)
            to 1000; None: 1 for target sok, hugectr or torchrec, else 0.
        pipeline: none | sparse_dist | prefetch | semi_sync: TorchRec's training pipeline, whose buffers count as memory
            in place of batches_in_flight: none (no overlap of batches), TrainPipelineSparseDist,
            PrefetchTrainPipelineSparseDist or TrainPipelineSemiSync; None counts batches_in_flight.
        dense_optimizer: sgd | rowwise_adagrad | adagrad | partial_rowwise_adam | adam: optimizer of data-parallel
            tables, whose state counts as memory; None means the same optimizer as for other tables.
    """
    trains = target_named(target).trains
    usual = MemoryUse("rowwise_adagrad", batches_in_flight=1) if trains else MemoryUse()
    batches = usual.batches_in_flight if batches_in_flight is None else batches_in_flight
    return MemoryUse(optimizer or usual.optimizer, batches, pipeline, dense_optimizer)


@dataclass(frozen=True)
@checked
class Export:
    """The settings of `neuroshard export`, and the command itself (`run`).

    Attributes:
        plan: path of the plan file; required; give it as a plain argument, without 'plan=', as in: export PLAN.json.
        to: sok | hugectr | torchrec | json: system to export for: sok (NVIDIA's SparseOperationKit), hugectr (the
            embedding collection of NVIDIA's HugeCTR), torchrec, or json (a plain list of placements for other tools).
        out: path of the file to write; the name ends in .json for torchrec and json, and in .py for sok and hugectr,
            which also write the content as .json.
        module: path of the embedding collection inside your model, such as sparse_arch.ebc, allowed only with
            to=torchrec; if empty, the file names no collection.
    """

    plan: PathName
    to: str
    out: PathName
    module: str = ""

    def run(self) -> "ExportResult":
        """Read the plan, and write it in the format of the target.

        Raises:
            UserError: there is no such target, the file is not a plan, the plan breaks its task, the target cannot
                express the plan, or `out` cannot be written or exists and is not an earlier export.
        """
        target = target_named(self.to, self.module)
        plan = Plan.load(self.plan)
        kept = kept_modules(self.plan)
        exported = target.export(plan, self.plan, kept)
        num_tables = len(plan.task.tables)
        if kept is not None and target.write_kept is not None:
            num_tables = sum(map(len, kept.values()))
        check_file(Path(self.out))
        paths = exported.paths(self.out)
        existing = [path for path in paths if path.exists()]
        for path in existing:
            if path.samefile(self.plan):
                raise UserError(
                    "export-out-is-plan",
                    f"the export would overwrite {str(path)!r}, which is the plan that is exported",
                    remedy=f"Set another out=FILE{exported.suffix}",
                )
        for path in existing:
            if not _is_like(path, exported):
                raise UserError(
                    "export-out-other-file",
                    f"the file {str(path)!r} exists and is not an earlier export to {target.name}",
                    limit="an export overwrites only an earlier export to the same target",
                    remedy=f"Set another out=FILE{exported.suffix}, or delete the file",
                )
        return ExportResult(target, plan, exported.save(self.out), exported.remarks, num_tables)


@dataclass(frozen=True)
class ExportResult:
    """The files of an export, and the plan's requirements for training.

    Attributes:
        target: the system that the files are for.
        plan: the plan, with the tables that NeuroShard planned.
        paths: the files.
        remarks: the plan's requirements for training, and warnings about the export.
        num_tables: number of tables in the files.
    """

    target: Target
    plan: Plan
    paths: tuple[Path, ...]
    remarks: tuple[Message, ...]
    num_tables: int

    def show(self, console: Console) -> None:
        """Print the files and the plan's requirements for training."""
        devices = number_of(self.plan.task.topology.num_devices, "device")
        summary = f"{number_of(self.num_tables, 'table')} on {devices} for {self.target.title}"
        print_lines(console, [f"{summary}: {', '.join(map(str, self.paths))}", *map(str, self.remarks)])
