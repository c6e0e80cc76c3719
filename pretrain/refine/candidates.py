"""The samples of a round: half of what is proposed, some that models are in doubt of, some at random."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from neuroshard.cost.cost import BACKWARD
from neuroshard.hardware.plan_samples import of_share
from neuroshard.models import CostModels
from neuroshard.models.parts import exchange_part
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import DIM_MULTIPLE
from neuroshard.records.samples import CommSample, ComputeSample
from neuroshard.records.splits import TEST, TRAIN, VALID, Split
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.pretrain.pieces import by_part
from neuroshard.stages.pretrain.refine.propose import (
    Chosen,
    PlanSamples,
    Sources,
    chosen_of,
    content_key,
    exchange_key,
    most_doubtful,
    plans_for,
    random_plan,
    share_name,
)
from neuroshard.stages.pretrain.refine.rounds import Shares
from neuroshard.tables import Table
from neuroshard.tasks.task import Task
from neuroshard.words.collective import collective_named


class DrawsCalls(Protocol):
    """A source of random combinations of tables."""

    @property
    def tiers(self) -> Sequence[str]:
        """The memory that the tables lie in."""

    def check(self, split: Split) -> None:
        """Raise UserError unless it can draw from these tables."""

    def draw(self, split: Split, batch_size: int, rng: np.random.Generator) -> tuple[ComputeSample, str]:
        """Draw one combination at a global batch size, and name the split that its tables are of."""


class DrawsExchanges(Protocol):
    """A source of random exchanges."""

    @property
    def collectives(self) -> tuple[str, ...]:
        """Names of those that are drawn."""

    def check(self, devices_per_host: int | None) -> None:
        """Raise UserError if one needs several hosts and all devices are on one, which None says."""

    def draw(
        self, num_devices: int, batch_size: int, rng: np.random.Generator, devices_per_host: int | None = None
    ) -> tuple[CommSample, str]:
        """Draw one exchange, and name the split that it belongs to."""


@dataclass(frozen=True)
class RoundSamples:
    """New samples of a round, and how many of each type are measured again."""

    calls: list[Chosen[ComputeSample]]
    calls_again: int
    exchanges: list[Chosen[CommSample]]
    exchanges_again: int


@dataclass(frozen=True)
class Candidates:
    """The sources of the samples of rounds.

    Attributes:
        tasks, searchers: whose plans are proposals.
        calls, exchanges: draw random ones.
        devices_per_host: of so many devices that exchange on the hardware, as `Hardware` has it.
    """

    tasks: tuple[Task, ...]
    searchers: tuple[Searcher, ...]
    calls: DrawsCalls
    exchanges: DrawsExchanges
    shares: Shares
    devices_per_host: Callable[[int], int | None]

    def check(self, models: CostModels) -> None:
        """Raise UserError if random samples can't be drawn of the tasks here, or the models can't foresee them.

        Or two tables have one name.
        """
        self.calls.check(self._any_table)
        for task in self._exchanging:
            self.exchanges.check(self.devices_per_host(task.topology.num_devices))
        known = by_part(models)
        for name in self.exchanges.collectives:
            if exchange_part(BACKWARD, collective_named(name)) not in known:
                raise UserError(
                    f"exchanges.collectives={name}: the models {models.name} know no such exchanges to be fitted "
                    "further; leave it out, or pretrain models of it"
                )

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """The tables of all tasks; each once, whatever its widths there.

        Raises:
            UserError: two tables have one name.
        """
        by_name: dict[str, Table] = {}
        for task in self.tasks:
            for table in task.tables:
                before = by_name.setdefault(table.name, table)
                if before.with_dim(DIM_MULTIPLE) != table.with_dim(DIM_MULTIPLE):
                    raise UserError(f"table {table.name!r} is another one in another task; refine for each by itself")
        return tuple(by_name.values())

    @property
    def recorded(self) -> tuple[Table, ...]:
        """The tables by which samples are kept: those of all tasks, and what copies see of them."""
        shared = sorted({task.topology.num_devices for task in self._exchanging})
        pairs = [(table, count) for count in shared for table in self.tables if table.pooled]
        copies = (replace(of_share(table, count), name=share_name(table, count)) for table, count in pairs)
        return (*self.tables, *copies)

    def of_round(
        self,
        measurements: int,
        models: CostModels,
        calls: Sequence[ComputeSample],
        exchanges: Sequence[CommSample],
        rng: np.random.Generator,
    ) -> RoundSamples:
        """Choose the samples of a round of so many measurements.

        What is proposed or doubtful, and was measured before, is left out.

        Raises:
            InfeasibleError: no task has a plan.
        """
        of = self._shares.of(measurements)
        (new_calls, calls_again), (new_exchanges, exchanges_again) = of["compute"], of["exchange"]
        tasks = [self.tasks[i] for i in rng.permutation(len(self.tasks))[: self.shares.tasks].tolist()]
        simulator = Simulator(models)
        proposals = PlanSamples.of(plans_for(tasks, self.searchers, simulator), simulator).shuffled(rng)
        drawn = (random_plan(task, models, rng) for task in tasks for _ in range(self.shares.placements))
        others = PlanSamples.of(drawn, simulator).shuffled(rng)
        call_sources: Sources[ComputeSample] = (
            ("proposal", round(self.shares.proposals * new_calls), proposals.calls),
            ("doubt", round(self.shares.doubts * new_calls), most_doubtful(others.calls, models)),
        )
        exchange_sources: Sources[CommSample] = (
            ("proposal", round(self.shares.proposals * new_exchanges), proposals.exchanges),
            ("random", new_exchanges, others.exchanges),
        )
        new = chosen_of(new_calls, calls, content_key, call_sources, self._random_calls(rng))
        other = chosen_of(new_exchanges, exchanges, exchange_key, exchange_sources, self._random_exchanges(rng))
        return RoundSamples(new, calls_again, other, exchanges_again)

    def _random_calls(self, rng: np.random.Generator) -> Iterator[ComputeSample]:
        while True:
            yield self.calls.draw(self._any_table, _any(self.tasks, rng).batch_size, rng)[0]

    def _random_exchanges(self, rng: np.random.Generator) -> Iterator[CommSample]:
        while True:
            task = _any(self._exchanging, rng)
            devices = task.topology.num_devices
            yield self.exchanges.draw(devices, task.batch_size, rng, self.devices_per_host(devices))[0]

    @property
    def _any_table(self) -> Split:
        """Any table in every split: of random combinations some samples are held out, not some tables."""
        return dict.fromkeys((TRAIN, VALID, TEST), self.tables)

    @property
    def _exchanging(self) -> tuple[Task, ...]:
        return tuple(task for task in self.tasks if task.topology.num_devices > 1)

    @property
    def _shares(self) -> Shares:
        """The shares as set, without exchanges where no task has any."""
        return self.shares if self._exchanging else replace(self.shares, exchanges=0.0)


def _any(tasks: Sequence[Task], rng: np.random.Generator) -> Task:
    return tasks[int(rng.integers(len(tasks)))]
