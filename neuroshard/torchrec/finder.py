"""Finding plans for a task: from nothing, or from a plan that there was."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuroshard.models.simulator import Simulator
from neuroshard.plans.moves import table_changes
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.threads import blas_threads
from neuroshard.searching.searcher import Searcher
from neuroshard.tasks.task import Task
from neuroshard.torchrec.kept import KeptPlan
from neuroshard.torchrec.replanned import replanned
from neuroshard.words.form import Call, Form

_log = logging.getLogger(__name__)
_CHANGED = {
    "tables",
    "modules",
    "devices",
    "constraints",
    "other parameters",
}  # a kept plan is changed if only these are others


@dataclass(frozen=True)
class Finder:
    """A search method with the cost models that it searches by."""

    searcher: Searcher
    simulator: Simulator

    @property
    def no_sequences(self) -> str | None:
        """Why no plan for sequence tables can be found with these; None where one can."""
        if not self.searcher.takes_sequences:
            return f"{type(self.searcher).__name__} places pooled tables only"
        if Call(Form.COLUMNS, False) not in self.simulator.models.compute.calls:
            return "a sequence table, unknown to these models: collect compute.pooled=[true,false] and pretrain"
        return None

    def found(self, task: Task) -> Plan:
        """From nothing.

        Raises:
            InfeasibleError: no plan fits in memory.
        """
        with blas_threads(1):
            found = self.searcher.find(task, self.simulator)
        if found.warning:
            _log.warning(found.warning)
        return found.plan

    def changed(self, before: Plan, task: Task, max_moved_bytes: int | str | None, **settings: Any) -> Plan:
        """From a plan that there was; see `replanned`."""
        with blas_threads(1):
            return replanned(before, task, self.simulator, self.searcher, max_moved_bytes, **settings)

    def found_after(self, kept: KeptPlan, made_for: Mapping[str, str], task: Task) -> Plan:
        """From a kept plan that was made for something else, if only tables or devices came or went; else from nothing.

        A warning says what differs.
        """
        others = kept.differences(made_for)
        said = f"the kept plan was made for other {', '.join(others)}"
        if kept.plan is None or not _CHANGED.issuperset(others) or not _came_or_went(kept.plan, task):
            _log.warning("%s; searching anew", said)
            return self.found(task)
        try:
            plan = self.changed(kept.plan, task, None)
        except UserError as error:
            _log.warning("%s, and can't be changed (%s); searching anew", said, error)
            return self.found(task)
        _log.warning("%s; it is changed:\n%s", said, "\n".join(map(str, table_changes(kept.plan, plan))))
        return plan


def _came_or_went(before: Plan, task: Task) -> bool:
    """Whether tables or devices did."""
    names = [{table.name for table in some.tables} for some in (before.task, task)]
    return names[0] != names[1] or before.task.topology.num_devices != task.topology.num_devices
