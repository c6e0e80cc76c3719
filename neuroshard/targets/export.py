"""Plans for other systems, by the system's name; and tasks whose plans it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

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
from neuroshard.targets.target import Exported, Target
from neuroshard.targets.torchrec import TORCHREC, in_module
from neuroshard.tasks.task import Task

TARGETS = {target.name: target for target in (SOK, HUGECTR, TORCHREC, PLAIN)}


def target_named(name: str | None, module: str = "") -> Target:
    """The target of that name: "sok", "hugectr", "torchrec" or "json".

    Args:
        name: of the target; None for "json", which can express every plan.
        module: of TorchRec, path of the collection inside the model that has the tables.

    Raises:
        UserError: there is none, or it has no modules.
    """
    name = PLAIN.name if name is None else name
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


def constrained(tasks: Sequence[Task], target: str | None) -> tuple[Task, ...]:
    """The tasks, their plans kept to what a target can express; as they are without one.

    Raises:
        UserError: there is no such target, or it can't serve a task's tables or rules.
    """
    return tuple(target_named(target).constrained(task) for task in tasks)


def for_target(searcher: Searcher, target: str | None) -> Searcher:
    """The searcher for tasks that are constrained to a target: one that tries more than halves, where parts are equal.

    Raises:
        UserError: there is no such target.
    """
    return EqualParts(searcher) if target_named(target).splits == "equal" else searcher


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
