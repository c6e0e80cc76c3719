"""The same budget spent on random combinations or on what searches propose: models refined on this machine's hardware.

usage: refinement_hardware.py [--random DATA_DIRECTORY] [--budgets 100,200,400,800] [--tasks 5] [--num-devices 4]
                              [--passes 2] [--model cpu] [--out runs/refinement] [SETTING=VALUE ...]

Settings are those of `neuroshard refine`: hardware.embedding.optimizer=rowwise_adagrad or tables.bytes_per_element=2
make another machine of this one. Random combinations are read from a directory that `neuroshard collect
experiment=collect_cpu num_comm_samples=0` filled with the same settings; of budgets beyond what is there refinement
alone is shown. Refinement is one live run of the largest budget, second measurements counted, and models are taken at
each budget; it goes on where it was stopped (`--out`). Both measure kernel calls alone, set out from the same models
and learn alike.

Models are judged by the plans that they find for tasks of tables that neither has seen, measured in so many passes,
those of a task in turns. "error": of devices' compute costs in these plans; "noise": what two passes differ by; "in
90%": share of the devices within the margins; "measured": cost of the plans, relative to those of the models as they
were.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from refinement import SEARCH, counts, errors

from neuroshard.arrays import FloatArray
from neuroshard.cost import Cost
from neuroshard.errors import UserError
from neuroshard.hardware import Hardware
from neuroshard.hardware.meters import meters_of
from neuroshard.hardware.plan_costs import measure_with
from neuroshard.models import CostModels
from neuroshard.plans.form import IN_COLUMNS
from neuroshard.plans.plan import Plan
from neuroshard.records import DataDirectory
from neuroshard.records.samples import ComputeSample, Measurement
from neuroshard.refine.interfaces import DrawsCalls, DrawsExchanges, Learner
from neuroshard.refine.measured import RunSamples
from neuroshard.refine.propose import believing
from neuroshard.refine.rounds import RoundFiles, Shares
from neuroshard.refine.run import Refine
from neuroshard.registry import compose_config, instantiate_config
from neuroshard.run_directory import flat
from neuroshard.searcher import Searcher
from neuroshard.simulator import Simulator
from neuroshard.tasks.task import Task
from neuroshard.threads import blas_threads
from neuroshard.timing import repeatability

_SEARCH = replace(SEARCH, forms=("columns",))  # what is learned
_UNSEEN = 2  # seed of tables that nothing was measured of
_ROUND = 50  # measurements at most; budgets are ends of rounds
COLUMNS = ("budget", "models", "error", "noise", "in 90%", "measured")


@dataclass(frozen=True)
class Machine:
    """What is measured on, for what, and from which models on.

    Attributes:
        asked, unseen: tasks that models are refined for, and others that judge them.
        calls, exchanges: how refinement draws random combinations; exchanges it draws none.
    """

    start: CostModels
    model: str
    hardware: Hardware
    asked: tuple[Task, ...]
    unseen: tuple[Task, ...]
    calls: DrawsCalls
    exchanges: DrawsExchanges
    learner: Learner
    searcher: Searcher
    seed: int = 0

    @classmethod
    def of(cls, model: str, tasks: int, num_devices: int, settings: Sequence[str]) -> "Machine":
        """As `neuroshard refine` has it with these settings."""
        given = ["tasks=paper", f"tasks.draw.count={tasks}", f"topology.num_devices={num_devices}", *settings]
        config, other = (compose_config("refine", [*given, *more]) for more in ([], [f"tables.seed={_UNSEEN}"]))
        built = (instantiate_config(config[name]) for name in ("calls", "exchanges", "learner"))
        hardware, asked, unseen = map(instantiate_config, (config.hardware, config.tasks, other.tasks))
        return cls(CostModels.load(model), model, hardware, asked, unseen, *built, _SEARCH)


Learned = tuple[int, str, CostModels]  # a budget, how it was spent, and what was learned


def from_random(machine: Machine, directory: Path, budgets: Sequence[int]) -> Iterator[Learned]:
    """Models of each budget that the directory has enough for, from its first measurements."""
    _check_alike(machine, directory)
    its = [m for m in DataDirectory(directory).compute().read() if not m.second_pass]
    for budget in (one for one in budgets if one <= len(its)):
        yield budget, "random", _learned(machine, its[:budget])


def _check_alike(machine: Machine, directory: Path) -> None:
    """Raise UserError unless kernels were measured there as they are here, on tables of the same precision."""
    data = DataDirectory(directory)
    there = {table.bytes_per_element for table in data.tables().values()}
    here = {table.bytes_per_element for task in machine.asked for table in task.tables}
    if there != here:
        raise UserError(f"{directory} was measured with tables.bytes_per_element={min(there)}, not {min(here)}")
    begun = data.manifest().config["hardware"]
    for part in ("embedding", "compute_timing"):
        before, now = flat(begun[part]), flat(asdict(getattr(machine.hardware, part)))
        if other := next((key for key in now if before.get(key) != now[key]), None):
            raise UserError(
                f"{directory} was measured with hardware.{part}.{other}={before.get(other)}, not {now[other]}"
            )


def _learned(machine: Machine, measured: Sequence[Measurement[ComputeSample]]) -> CostModels:
    """Every fifth sample is for validation, as in refinement; failed ones count, and teach nothing."""
    split = [
        Measurement(m.sample, m.sample_id, "valid" if i % 5 == 4 else "train", m.seed, m.repeats, m.error)
        for i, m in enumerate(measured)
        if m.repeats is not None and m.sample.call == IN_COLUMNS
    ]
    return machine.learner.fit(machine.start, split, [])


def from_refinement(machine: Machine, budgets: Sequence[int], out: Path) -> Iterator[Learned]:
    """Models after the rounds that come to each budget, of one run of the largest."""
    shares = Shares(measurements=_round_of(budgets), exchanges=0.0)
    searchers = (machine.searcher, believing(machine.searcher))
    Refine(
        machine.model, machine.asked, searchers, machine.hardware, machine.calls, machine.exchanges, machine.learner,
        shares, max(budgets), None, 0.0, machine.seed, str(out),
    ).run()  # fmt: skip
    rounds = RoundFiles(out / "rounds").read()
    spent = np.cumsum([one.measurements for one in rounds]).tolist()
    with meters_of(machine.hardware, print) as meters:
        samples = RunSamples.of(DataDirectory(out / "measured"), machine.hardware, meters, machine.seed)
        for budget in budgets:
            until = rounds[: spent.index(budget) + 1]
            yield budget, "refined", machine.learner.fit(machine.start, samples.calls_of(until), [])


def _round_of(budgets: Sequence[int]) -> int:
    """Measurements of a round, such that every budget is some rounds."""
    return max(size for size in range(1, _ROUND + 1) if all(budget % size == 0 for budget in budgets))


@dataclass(frozen=True)
class Judged:
    """Plans that some models found for the tasks that judge them.

    Attributes:
        plans: one for each task.
        models: that found them.
    """

    plans: tuple[Plan, ...]
    models: CostModels

    @classmethod
    def of(cls, machine: Machine, models: CostModels) -> "Judged":
        """What the models' search finds."""
        simulator = Simulator(models)
        return cls(tuple(machine.searcher.search(task, simulator) for task in machine.unseen), models)

    def row(self, name: str, passes: Sequence[Mapping[Plan, Cost]], before: "Judged") -> str:
        """Of a markdown table; what could not be measured is left out."""
        measured = [plan for plan in self.plans if all(plan in its for its in passes)]
        each = [np.concatenate([its[plan].compute for plan in measured]) for its in passes]
        filled = each[0] > 0
        error, inside = errors(measured, self.models, np.mean(each, axis=0)[filled])
        noise = repeatability(each[0][filled], each[1][filled])
        cost = self._ratios(passes, before)
        scatter = f" ± {cost.std(ddof=1) / len(cost) ** 0.5:.1%}" if len(cost) > 1 else ""
        return (
            f"| {name} | {error.mean():.1%} | {noise.mean():.1%} | {inside.mean():.0%} "
            f"| {cost.mean() - 1:+.1%}{scatter} |"
        )

    def _ratios(self, passes: Sequence[Mapping[Plan, Cost]], before: "Judged") -> FloatArray:
        """(n,) measured cost over that of the other's plan, of each task where both could be measured."""
        pairs = [
            (plan, other)
            for plan, other in zip(self.plans, before.plans, strict=True)
            if all(plan in its and other in its for its in passes)
        ]
        totals = np.array([[(its[a].total_ms, its[b].total_ms) for a, b in pairs] for its in passes]).mean(axis=0)
        ratios: FloatArray = totals[:, 0] / totals[:, 1]
        return ratios


def compared(machine: Machine, learned: Sequence[Learned], passes: int) -> Iterator[str]:
    """Rows of the table, the models as they were first."""
    every = [(0, "as they were", machine.start), *learned]
    judged = [Judged.of(machine, models) for _, _, models in every]
    turns = zip(*(one.plans for one in judged), strict=True)  # the plans of one task stand together
    plans = list(dict.fromkeys(plan for turn in turns for plan in turn))
    measured = _measured(machine.hardware, plans, passes)
    for (budget, name, _), one in zip(every, judged, strict=True):
        yield one.row(f"{budget} | {name}", measured, judged[0])


def _measured(hardware: Hardware, plans: Sequence[Plan], passes: int) -> list[dict[Plan, Cost]]:
    """What each plan cost in each pass."""
    with meters_of(hardware, print) as meters:
        each = [measure_with(meters, plans, number, lambda _: None) for number in range(passes)]
    for error in (one for outcomes in each for one in outcomes if isinstance(one, str)):
        print(f"not measured: {error}")
    return [{p: one for p, one in zip(plans, outcomes, strict=True) if isinstance(one, Cost)} for outcomes in each]


def main() -> None:
    asked = _arguments()
    machine = Machine.of(asked.model, asked.tasks, asked.num_devices, asked.settings)
    random = [] if asked.random is None else [*from_random(machine, asked.random, asked.budgets)]
    learned = sorted([*random, *from_refinement(machine, asked.budgets, asked.out)], key=lambda one: one[0])
    print(f"{', '.join(asked.settings) or 'as models were fitted'}; {asked.tasks} tasks, {asked.num_devices} devices\n")
    print(f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|")
    for row in compared(machine, learned, asked.passes):
        print(row, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--random", type=Path)
    parser.add_argument("--budgets", type=counts, default=[100, 200, 400, 800])
    parser.add_argument("--model", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/refinement"))
    for name, count in (("tasks", 5), ("num-devices", 4)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--passes", type=int, default=2, choices=range(2, 100), metavar="PASSES")
    return parser.parse_args()


if __name__ == "__main__":
    with blas_threads(1):
        main()
