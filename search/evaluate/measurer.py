"""The interface of the ways to measure plans: by kernels, by training steps and by mirrored training steps."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from neuroshard.measure import Hardware
from neuroshard.measure.hardware import Warn
from neuroshard.measure.plan_costs import Advance
from neuroshard.measure.steps.step_samples import StepProtocol
from neuroshard.measure.store.plan_measurements import Pass
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import warn_of
from neuroshard.stages.search.evaluate.comparison import Evaluated
from neuroshard.stages.search.evaluate.evaluate_result import EvaluateResult
from neuroshard.tasks.task import Task
from neuroshard.words.fingerprint import Fingerprint
from neuroshard.words.model_choice import TORCHREC

# Measures plans of one task once, as the pass with the given number. The sequence is the seed of the lookups and of the
# order of the plans, the callback receives the progress, and measurements that models can be fitted to are stored in
# the run's directory.
Measure = Callable[[Sequence[Plan], int, Sequence[int], Advance, Path], Pass]


class Measurer(ABC):
    """A way to measure plans: the candidate plans of a search, or the plans of an evaluation, both in passes.

    Attributes:
        kind: name of the way, as in `measure=` and `verify=`.
        framework: the framework whose training steps are measured; None if no steps are measured.
    """

    kind: ClassVar[str]
    framework: ClassVar[str | None] = None

    @property
    def passes(self) -> int:
        """The number of passes of an evaluation."""
        return 1

    def settings(self, count_input: bool) -> dict[str, object]:
        """Return the settings that the measurements of an evaluation depend on; JSON-ready."""
        return {"count_input": True} if count_input else {}

    @abstractmethod
    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError if plans of these tasks, or the given plans of each task together,
        cannot be measured in this way.
        """

    @abstractmethod
    def follow(self, hardware: Hardware) -> None:
        """Take part in the measurements, as one of torchrun's processes other than rank 0."""

    @abstractmethod
    def opened(
        self, tasks: Sequence[Task], hardware: Hardware, count_input: bool, warn: Warn
    ) -> AbstractContextManager[Measure]:
        """Start the processes that these tasks need; they end with the context.

        Raises:
            UserError: torchrun started another number of processes than a task has devices.
        """

    @abstractmethod
    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """Return the total progress that measuring these plans once reports."""

    def lineup(self, plans: Sequence[Plan]) -> list[Plan]:
        """Return the plans that each pass of an evaluation measures, given the plans of a task."""
        return list(plans)

    @abstractmethod
    def wrong(self, plans: Sequence[Plan], rows: Pass) -> str | None:
        """Return the reason why these rows cannot be a pass of this measurer, as a predicate; None if they can."""

    @abstractmethod
    def result(
        self, run: Path, entries: Sequence[Evaluated], measured: Mapping[int, Sequence[Pass]], here: Fingerprint
    ) -> EvaluateResult:
        """Return the result of an evaluation from the passes over each task's plans, by number of the task."""


@dataclass(frozen=True)
class TorchRecMeasurer(Measurer):
    """A way to measure plans by training steps of TorchRec; each pass is one build of all plans.

    An evaluation builds the first plan of a task twice; the difference of both is the smallest reliable difference.

    Attributes:
        protocol: how steps are timed.
    """

    framework: ClassVar[str | None] = TORCHREC

    protocol: StepProtocol = field(default_factory=StepProtocol)

    @property
    def passes(self) -> int:
        """The number of builds."""
        return self.protocol.builds

    def settings(self, count_input: bool) -> dict[str, object]:
        """Return the protocol; the input dist counts as far as no pipeline hides it."""
        return asdict(self.protocol)

    def lineup(self, plans: Sequence[Plan]) -> list[Plan]:
        """Return the plans, and the first plan once more."""
        return [*plans, plans[0]]

    def check(self, tasks: Sequence[Task], plans: Sequence[Sequence[Plan]], hardware: Hardware) -> None:
        """Raise UserError if TorchRec is not installed,
        or if a task's plans cannot be measured together on this machine.
        """
        import neuroshard.torchrec  # noqa: F401  # says what to install

        for plans_of_task in plans:
            self.check_together(plans_of_task, hardware)
        counted = (*tasks, *(plans_of_task[0].task for plans_of_task in plans))
        warn_of("neuroshard.evaluate", self.protocol.remarks(counted))

    @abstractmethod
    def check_together(self, plans: Sequence[Plan], hardware: Hardware) -> None:
        """Raise UserError if these plans of one task, all live together, cannot be measured on this machine."""
