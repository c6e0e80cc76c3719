"""Plans for other systems, by the system's name; and tasks whose plans it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from neuroshard.models import CostModels
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError, unknown_name, warn_of
from neuroshard.plumbing.progress import print_lines
from neuroshard.plumbing.schema import PathName
from neuroshard.searching.equal_parts import EqualParts
from neuroshard.searching.searcher import Searcher
from neuroshard.targets.hugectr import HUGECTR
from neuroshard.targets.plain_json import PLAIN
from neuroshard.targets.sok import SOK
from neuroshard.targets.target import Exported, Splits, Target
from neuroshard.targets.torchrec import TORCHREC, in_module
from neuroshard.tasks.task import Task

TARGETS = {target.name: target for target in (SOK, HUGECTR, TORCHREC, PLAIN)}


def target_named(name: str, module: str = "") -> Target:
    """The target of that name: "sok", "hugectr", "torchrec" or "json".

    Args:
        name: of the target.
        module: of TorchRec, path of the collection inside the model that has the tables.

    Raises:
        UserError: there is none, or it has no modules.
    """
    if name not in TARGETS:
        raise unknown_name("target", name, TARGETS)
    if not module:
        return TARGETS[name]
    if TARGETS[name] is not TORCHREC:
        raise UserError(f"module={module!r} goes with torchrec only; {TARGETS[name].title} has no modules")
    return in_module(module)


def export_plan(plan: Plan, to: str, module: str = "") -> Exported:
    """A plan in another system's words; `save(out)` of what is returned writes them.

    Args:
        plan: any; `search target=...` finds those that a system can express.
        to: "sok" (NVIDIA's SparseOperationKit), "hugectr" (its embedding collection), "torchrec", or "json" for plain
            placements.
        module: of TorchRec, path of the collection inside the model that has the tables, such as "sparse_arch.ebc".

    What the plan asks of whoever trains with it is in `remarks` of what is returned, and one `NeuroShardWarning`.

    Raises:
        UserError: there is no such system, or it can't express the plan; the line names the table and the limit.
    """
    exported = target_named(to, module).export(plan)
    warn_of("neuroshard.export_plan", exported.remarks)
    return exported


def remarks_on(plan: Plan, target: str | None) -> tuple[str, ...]:
    """What a plan that was found for a target asks of whoever trains with it, a line each.

    Raises:
        UserError: there is no such target.
    """
    return () if target is None else target_named(target).remarks(plan)


def constrained(tasks: Sequence[Task], target: str | None) -> tuple[Task, ...]:
    """The tasks, their plans kept to what a target can express; as they are without one.

    Raises:
        UserError: there is no such target, or it can't serve a task's tables or rules.
    """
    return tuple(tasks) if target is None else tuple(target_named(target).constrained(task) for task in tasks)


def costed(models: CostModels, target: str | None) -> CostModels:
    """The models as a target's steps are costed: what TorchRec adds counts where it trains and the models know it.

    Raises:
        UserError: there is no such target.
    """
    counts = target is not None and target_named(target).framework and models.framework is not None
    return models.in_torchrec() if counts else models


def for_target(searcher: Searcher, target: str | None) -> Searcher:
    """The searcher for tasks that are constrained to a target: one that tries more than halves, where parts are equal.

    Raises:
        UserError: there is no such target.
    """
    if target is None or target_named(target).splits is not Splits.EQUAL:
        return searcher
    return EqualParts(searcher)


@dataclass(frozen=True)
@checked
class Export:
    """Everything `neuroshard export` needs.

    Attributes:
        plan: a plan file, without a key: export PLAN.json.
        to: sok | hugectr | torchrec | json: sok is NVIDIA's SparseOperationKit, hugectr its embedding collection, json
            plain placements.
        out: to=sok, to=hugectr: a file *.py, beside which a *.json says the same; else a file *.json.
        module: to=torchrec: path of the collection inside the model that has the tables, such as sparse_arch.ebc.
    """

    plan: PathName
    to: str
    out: PathName
    module: str = ""

    def run(self) -> "ExportResult":
        """Read the plan, and write it in the target's words.

        Raises:
            UserError: there is no such target, the file is no plan, the target can't express it, or `out` is the plan
                itself or can't be written.
        """
        target = target_named(self.to, self.module)
        plan = Plan.load(self.plan)
        exported = target.export(plan)
        for path in exported.paths(self.out):
            if path.exists() and path.samefile(self.plan):
                raise UserError(f"{path} is the plan that is exported; give another out=FILE{exported.suffix}")
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
