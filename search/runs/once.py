"""What finalists are measured in, once over all of them: kernels and exchanges one by one, or training steps."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from neuroshard.hardware import Hardware
from neuroshard.hardware.hardware import Warn
from neuroshard.hardware.meters import Meters, meters_of
from neuroshard.hardware.plan_costs import Advance, measure_with, steps
from neuroshard.hardware.step_meters import StepMeters, check_steps, step_meters
from neuroshard.hardware.step_samples import StepProtocol
from neuroshard.plans.plan import Plan
from neuroshard.stages.search.results.finalist_files import MeasuredOnce
from neuroshard.tasks.task import Task


class Once(Protocol):
    """Measures all of some plans of one task once, in the order that they are given in."""

    def measure(self, plans: Sequence[Plan], seed: int, count_input: bool, advance: Advance) -> list[MeasuredOnce]:
        """What each cost; the seed fixes the lookups, and `advance` is told of what is done."""
        ...

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        """What `advance` is told of in all."""
        ...


class Means(Protocol):
    """How plans are measured."""

    def check(self, tasks: Sequence[Task], hardware: Hardware) -> None:
        """Raise UserError unless plans of the tasks can be measured so."""
        ...

    def follow(self, hardware: Hardware) -> None:
        """Take part, as one of torchrun's processes other than rank 0."""
        ...

    def opened(self, tasks: Sequence[Task], hardware: Hardware, warn: Warn) -> AbstractContextManager[Once]:
        """Start the processes that these tasks need, and end them with the block.

        Raises:
            UserError: torchrun started another number of processes than a task has devices.
        """
        ...


@dataclass(frozen=True)
class InParts:
    """Kernels and exchanges are measured one by one."""

    def check(self, tasks: Sequence[Task], hardware: Hardware) -> None:
        """Raise UserError unless the hardware has the hosts that the tasks need."""
        for task in tasks:
            hardware.check_hosts(task.topology)

    def follow(self, hardware: Hardware) -> None:
        """Take part in the exchanges."""
        hardware.follow()

    @contextmanager
    def opened(self, tasks: Sequence[Task], hardware: Hardware, warn: Warn) -> Iterator["_OpenMeters"]:
        """The processes stay for all passes."""
        with meters_of(hardware, warn) as meters:
            meters.join(task.topology for task in tasks)
            yield _OpenMeters(meters)


@dataclass(frozen=True)
class _OpenMeters:
    meters: Meters

    def measure(self, plans: Sequence[Plan], seed: int, count_input: bool, advance: Advance) -> list[MeasuredOnce]:
        return list(map(MeasuredOnce.of, measure_with(self.meters, plans, seed, advance, count_input)))

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        return steps(plans, count_input)


@dataclass(frozen=True)
class InSteps:
    """TorchRec trains on each plan: a pass is one build of all of them, in fresh processes."""

    protocol: StepProtocol = field(default_factory=StepProtocol)

    def check(self, tasks: Sequence[Task], hardware: Hardware) -> None:
        """Raise UserError unless the hardware has the tasks' hosts, and TorchRec is installed."""
        import neuroshard.torchrec  # noqa: F401  # says what to install

        for task in tasks:
            hardware.check_hosts(task.topology)

    def follow(self, hardware: Hardware) -> None:
        """Take part in the steps."""
        hardware.follow_steps(self.protocol.timing)

    @contextmanager
    def opened(self, tasks: Sequence[Task], hardware: Hardware, warn: Warn) -> Iterator["_Builds"]:
        """Under torchrun the processes stay."""
        with step_meters(hardware, self.protocol, warn) as meters:
            meters.join(tasks[0].topology)
            yield _Builds(meters)


@dataclass(frozen=True)
class _Builds:
    meters: StepMeters

    def measure(self, plans: Sequence[Plan], seed: int, count_input: bool, advance: Advance) -> list[MeasuredOnce]:
        """Build every plan and time its training steps: the median over the build, or the error that stopped it."""
        check_steps(plans, self.meters.hardware)
        built = self.meters.build(plans, [seed])
        advance(1)
        return [
            MeasuredOnce(error=one.error)
            if one.error is not None
            else MeasuredOnce(step_ms=float(np.median(one.step_ms)))
            for one in built
        ]

    def amount(self, plans: Sequence[Plan], count_input: bool) -> int:
        return 1
