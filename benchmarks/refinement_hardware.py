"""The same budget spent on random combinations or on what searches propose: models refined on this machine's hardware.

usage: refinement_hardware.py [--random DATA_DIRECTORY] [--budgets 100,200,400,800] [--tasks 5] [--num-devices 4]
                              [--passes 2] [--model cpu] [--out runs/refinement] [SETTING=VALUE ...]

Settings are those of `neuroshard refine`: hardware.embedding.optimizer=rowwise_adagrad or tables.bytes_per_element=2
make another machine of this one. Random combinations are read from a directory that `neuroshard collect
experiment=collect_cpu num_comm_samples=0` filled with the same settings; of budgets beyond what is there refinement
alone is shown. Refinement is one live run of the largest budget, second measurements counted, and models are taken at
each budget; it goes on where it was stopped (`--out`). Both measure kernel calls alone, and set out from the same
models with the same learner; refinement knows how fast the machine was in each of its rounds, random combinations
don't.

Models are judged by the plans that they find, whose devices' kernel calls are measured in so many passes, those of a
task together: for the tasks that were refined for ("asked"; what refinement measured there is left out), and for tasks
of tables that neither has seen ("other"). "error": of predictions of what devices hold in the plans of any of the
models; "own": of the model's own plans; "noise": what two passes differ by. "at one speed" they are the same after a
batch's times were divided by how much slower its reference calls were than in the mean batch, and a model's predictions
multiplied by the median of measured over predicted. "in 90%": share of the devices of any plan within the margins;
"cost": of the own plans' slowest devices, at one speed, relative to those of the models as they were.
"""

import argparse
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from refinement import SEARCH, change, counts

from neuroshard.arrays import FloatArray
from neuroshard.errors import UserError
from neuroshard.hardware import Hardware, Meter
from neuroshard.hardware.meters import meters_of
from neuroshard.hardware.plan_samples import kernel_calls
from neuroshard.models import CostModels
from neuroshard.plans.form import IN_COLUMNS
from neuroshard.plans.plan import Plan
from neuroshard.records import DataDirectory
from neuroshard.records.asked import loads_of
from neuroshard.records.samples import ComputeSample, Measurement
from neuroshard.refine.choose import content_key
from neuroshard.refine.interfaces import DrawsCalls, DrawsExchanges, Learner
from neuroshard.refine.learn import fit_levelled
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
from neuroshard.timing import repeatability, typical_ms

_SEARCH = replace(SEARCH, forms=("columns",))  # what is learned
_OTHER = 2  # seed of tables that nothing was measured of
_ROUND = 50  # measurements at most; budgets are ends of rounds
COLUMNS = (
    "budget", "models", "tasks", "devices", "error", "own", "noise", "error at one speed", "own at one speed",
    "noise at one speed", "in 90%", "in 90% at one speed", "cost",
)  # fmt: skip
_REFERENCES = 8  # calls in every batch


@dataclass(frozen=True)
class Machine:
    """What is measured on, for what, and from which models on.

    Attributes:
        asked, other: tasks that models are refined for, and others of other tables.
        calls, exchanges: how refinement draws random combinations; exchanges it draws none.
    """

    start: CostModels
    model: str
    hardware: Hardware
    asked: tuple[Task, ...]
    other: tuple[Task, ...]
    calls: DrawsCalls
    exchanges: DrawsExchanges
    learner: Learner
    searcher: Searcher
    seed: int = 0

    @classmethod
    def of(cls, model: str, tasks: int, num_devices: int, settings: Sequence[str]) -> "Machine":
        """As `neuroshard refine` has it with these settings."""
        given = ["tasks=paper", f"tasks.draw.count={tasks}", f"topology.num_devices={num_devices}", *settings]
        config, its = (compose_config("refine", [*given, *more]) for more in ([], [f"tables.seed={_OTHER}"]))
        built = (instantiate_config(config[name]) for name in ("calls", "exchanges", "learner"))
        hardware, asked, others = map(instantiate_config, (config.hardware, config.tasks, its.tasks))
        return cls(CostModels.load(model), model, hardware, asked, others, *built, _SEARCH)


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
    return fit_levelled(machine.learner, machine.start, split, [], [1.0] * len(split))


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
            yield budget, "refined", samples.learned(machine.learner, machine.start, until)


def _round_of(budgets: Sequence[int]) -> int:
    """Measurements of a round, such that every budget is some rounds."""
    return max(size for size in range(1, _ROUND + 1) if all(budget % size == 0 for budget in budgets))


@dataclass(frozen=True)
class Measured:
    """What devices' contents took.

    Attributes:
        raw: (P, n) ms of n contents in each of P passes.
        level: (P, n) as if all batches had been as fast as the typical one.
        index: of each content, by its key.
    """

    raw: FloatArray
    level: FloatArray
    index: Mapping[Hashable, int]

    @classmethod
    def of(cls, hardware: Hardware, contents: Sequence[ComputeSample], passes: int) -> "Measured":
        """Neighbours among the contents share batches.

        Raises:
            UserError: one can't be measured.
        """
        references = [contents[i] for i in np.linspace(0, len(contents) - 1, _REFERENCES).astype(int)]
        own = max(hardware.compute_timing.live - _REFERENCES, 1)
        chunks = [contents[start : start + own] for start in range(0, len(contents), own)] * passes
        with hardware.compute_meter(print) as meter:
            found = [_costs(meter, [*references, *chunk], seed) for seed, chunk in enumerate(chunks)]
        logs = np.log([ms[:_REFERENCES] for ms in found])
        slower = np.exp(np.median(logs - logs.mean(axis=0), axis=1))
        raw = np.concatenate([ms[_REFERENCES:] for ms in found])
        level = raw / np.repeat(slower, [len(chunk) for chunk in chunks])
        index = {content_key(one): i for i, one in enumerate(contents)}
        return cls(raw.reshape(passes, -1), level.reshape(passes, -1), index)

    def indices(self, contents: Sequence[ComputeSample]) -> list[int]:
        """Where they stand."""
        return [self.index[content_key(call)] for call in contents]


def _contents(plan: Plan) -> list[ComputeSample]:
    return [call for calls in kernel_calls(plan) for call in calls]


def _costs(meter: Meter[ComputeSample], samples: Sequence[ComputeSample], seed: int) -> FloatArray:
    seeds = np.random.default_rng(seed).integers(1 << 31, size=len(samples)).tolist()
    outcomes = meter.measure(samples, seeds)
    if failed := next((one.error for one in outcomes if one.repeats is None), None):
        raise UserError(f"a plan can't be measured: {failed}")
    return np.array([typical_ms(one.repeats.times_ms) for one in outcomes if one.repeats is not None])


@dataclass(frozen=True)
class Judged:
    """Plans that some models found for tasks.

    Attributes:
        plans: one for each task.
        models: that found them.
    """

    plans: tuple[Plan, ...]
    models: CostModels

    @classmethod
    def of(cls, machine: Machine, models: CostModels, tasks: Sequence[Task]) -> "Judged":
        """What the models' search finds."""
        simulator = Simulator(models)
        return cls(tuple(machine.searcher.search(task, simulator) for task in tasks), models)

    def row(self, name: str, measured: Measured, contents: Sequence[ComputeSample], before: "Judged") -> str:
        """Of a markdown table; of the contents, those of its own plans stand by themselves too."""
        own = {content_key(call) for plan in self.plans for call in _contents(plan)}
        mine = np.array([content_key(call) in own for call in contents], dtype=bool)
        where, sets = measured.indices(contents), loads_of(contents)
        predicted, spread = self.models.compute.predict(sets), self.models.compute.spread_ms(sets)
        assert self.models.margins is not None
        true, level = (ms[:, where].mean(axis=0) for ms in (measured.raw, measured.level))
        margin, factor = self.models.margins.compute(predicted, spread), np.median(level / predicted)
        inside = [np.abs(predicted - ms) <= margin for ms in (true, level / factor)]
        error, at_one_speed = predicted / true - 1, predicted * factor / level - 1
        figures = (
            error, error[mine], repeatability(*measured.raw[:2, where]),
            at_one_speed, at_one_speed[mine], repeatability(*measured.level[:2, where]),
        )  # fmt: skip
        means = " | ".join(f"{np.abs(its).mean():.1%}" if len(its) else "-" for its in figures)
        cost = self._costs(measured) / before._costs(measured)
        held = " | ".join(f"{its.mean():.0%}" for its in inside)
        return f"| {name} | {len(contents)} | {means} | {held} | {change(cost)} |"

    def _costs(self, measured: Measured) -> FloatArray:
        """(N,) ms of each plan's slowest device."""
        its = (measured.level[:, measured.indices(_contents(plan))] for plan in self.plans)
        return np.array([ms.mean(axis=0).max() for ms in its])


def compared(machine: Machine, learned: Sequence[Learned], passes: int, known: Set[Hashable]) -> Iterator[str]:
    """Rows of the table, the models as they were first."""
    every = [(0, "as they were", machine.start), *learned]
    groups = {"asked": machine.asked, "other": machine.other}
    judged = {name: [Judged.of(machine, models, its) for _, _, models in every] for name, its in groups.items()}
    contents = {name: _contents_of(ones) for name, ones in judged.items()}
    every_one = {content_key(call): call for its in contents.values() for call in its}
    measured = Measured.of(machine.hardware, list(every_one.values()), passes)
    for name, ones in judged.items():
        fresh = [call for call in contents[name] if content_key(call) not in known]
        if not fresh:
            raise UserError(f"refinement measured everything that plans for the {name} tasks hold; give more --tasks")
        for (budget, how, _), one in zip(every, ones, strict=True):
            yield one.row(f"{budget} | {how} | {name}", measured, fresh, ones[0])


def _contents_of(judged: Sequence[Judged]) -> list[ComputeSample]:
    """Of all their plans, those of one task together, each once."""
    turns = zip(*(one.plans for one in judged), strict=True)
    return list({content_key(call): call for turn in turns for plan in turn for call in _contents(plan)}.values())


def main() -> None:
    asked = _arguments()
    machine = Machine.of(asked.model, asked.tasks, asked.num_devices, asked.settings)
    random = [] if asked.random is None else [*from_random(machine, asked.random, asked.budgets)]
    learned = sorted([*random, *from_refinement(machine, asked.budgets, asked.out)], key=lambda one: one[0])
    print(f"{', '.join(asked.settings) or 'as models were fitted'}; {asked.tasks} tasks, {asked.num_devices} devices\n")
    print(f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|")
    known = {content_key(m.sample) for m in DataDirectory(asked.out / "measured").compute().read()}
    for row in compared(machine, learned, asked.passes, known):
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
