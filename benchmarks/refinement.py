"""The same budget spent on random combinations or on what searches propose: refined models on made-up devices.

usage: refinement.py [--budgets 100,200,400,800] [--tasks 6] [--num-devices 4] [--noise 0.05] [--samples 1000]
                     [--epochs 60] [--seeds 0] [--away caches]

Models are fitted to one made-up CPU. Another one with slower links is then measured, on which caches and memory are
others ("caches"), or every table and a rest of few columns take much longer ("tables"): random combinations and
exchanges, as `collect experiment=collect_adapt` draws them, or what `neuroshard refine` chooses; both learn alike. The
budget counts all measurements, second ones of refinement too. Errors are of devices in plans that the models then find:
for the tasks that were refined for, and for others, of other tables, whose random placements stand beside them. "in
90%": share of the truth within the margins; "true ms": what plans truly cost, relative to those found with the models
as they were.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from neuroshard.arrays import BoolArray, FloatArray
from neuroshard.loads import LoadSets
from neuroshard.models import Card, CostModels, save_bundle
from neuroshard.models.trust import Ranges
from neuroshard.plans.form import IN_COLUMNS
from neuroshard.plans.plan import Plan
from neuroshard.records.samples import BACKWARD, FORWARD
from neuroshard.records.splits import TableSplit, split_tables
from neuroshard.refine.propose import believing
from neuroshard.refine.rounds import Shares
from neuroshard.refine.run import Refine
from neuroshard.registry import compose_config, instantiate_config
from neuroshard.simulator import Simulator
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.fit_all import margins_of
from neuroshard.stages.pretrain.measured import Measured
from neuroshard.stages.pretrain.refit import Refit
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Random
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing.devices import MADE_UP, MadeUpCpu, MadeUpDevice, MadeUpExchange, measured_comm, measured_compute
from neuroshard.testing.devices.hardware import MadeUpHardware
from neuroshard.threads import blas_threads, torch_threads
from neuroshard.traffic import Collective

HOME = MADE_UP["cpu"]
_SLOW_LINKS = {"forward": MadeUpExchange(0.3, 2e6, 1.2), "backward": MadeUpExchange(0.4, 1.6e6, 1.2)}
AWAY = {
    "caches": replace(
        HOME,
        compute=MadeUpCpu(
            table_ms=0.06, near_bytes=0.5e6, last_bytes=16e6, near_ms=2e-6, last_ms=12e-6, memory_ms=44e-6,
            memory_line_ms=4e-6, vector_ms=1.2e-6,
        ),
        **_SLOW_LINKS,
    ),
    "tables": replace(HOME, compute=MadeUpCpu(table_ms=0.5, rest_vectors=4.0), **_SLOW_LINKS),
}  # fmt: skip
CALLS, EXCHANGES = ComputeAugmentation(any_width_share=0.5), CommAugmentation(max_start_ms=40.0)
SEARCH = NeuroShard(improvement=Improvement(shakes=40))
_SEEN, _ASKED, _UNSEEN = 0, 1, 2  # seeds of the tables at home, of the user's, and of tasks that nobody asked for
_EXCHANGE_SHARE = 0.25


@dataclass(frozen=True)
class Setting:
    """How many tasks are refined for and tested on, for how many devices, how noisy measuring is, which seed."""

    device: str
    tasks: int
    num_devices: int
    noise: float
    seed: int = 0

    @property
    def away(self) -> MadeUpDevice:
        """What is measured."""
        return AWAY[self.device]

    def tasks_of(self, tables: int) -> tuple[Task, ...]:
        """Of the tables with that seed."""
        draw = TaskDraw(count=self.tasks, seed=self.seed)
        return drawn(_tables(tables), Topology(self.num_devices, 4 << 30), HOME.batch_size, draw)


@cache
def _tables(seed: int) -> Any:
    return dlrm_like(batch_size=HOME.batch_size, seed=seed)


def at_home(setting: Setting, samples: int, epochs: int) -> CostModels:
    """Models fitted to so many samples of the device at home, a third as many of them exchanges."""
    compute, comm = _random(HOME, split_tables(_tables(_SEEN), setting.seed), samples, setting)
    member, training = f"compute_model.member.training.epochs={epochs}", f"comm_model.training.epochs={epochs}"
    config = compose_config("pretrain", [member, training])
    compute_fitter, comm_fitter = (instantiate_config(config[f"{kind}_model"]) for kind in ("compute", "comm"))
    with torch_threads(1):
        model = compute_fitter.fit(compute, None, setting.seed, _silent)
        both = [comm_fitter.fit(comm, way, None, setting.seed, _silent) for way in (FORWARD, BACKWARD)]
    ranges = Ranges.of([m.sample for m in compute.train], [m.sample for m in comm.train])
    models = CostModels(model, *both, None, ranges)
    measured = Measured({IN_COLUMNS: compute}, {Collective.ALL_TO_ALL: comm})
    return replace(models, margins=margins_of(models, measured))


def _random(
    device: MadeUpDevice, split: TableSplit, budget: int, setting: Setting
) -> tuple[SplitMeasurements, SplitMeasurements]:
    """So many kernel calls and exchanges, measured on the device."""
    rng = np.random.default_rng([setting.seed, budget])
    exchanges = round(_EXCHANGE_SHARE * budget)
    calls = [CALLS.draw(split, device.batch_size, rng) for _ in range(budget - exchanges)]
    comm = [EXCHANGES.draw(setting.num_devices, device.batch_size, rng) for _ in range(exchanges)]
    return (
        _by_split(measured_compute(device, calls, setting.noise, rng)),
        _by_split(measured_comm(device, comm, setting.noise, rng)),
    )


def _by_split(measurements: list[Any]) -> SplitMeasurements:
    train, valid, test = ([m for m in measurements if m.split == name] for name in ("train", "valid", "test"))
    return SplitMeasurements(train, valid, test, measurements)


def _silent(_epoch: int, _loss: float) -> None:
    pass


def learner() -> Refit:
    """As `neuroshard refine` has it."""
    refit: Refit = instantiate_config(compose_config("refine", []).learner)
    return refit


def adapted(start: CostModels, budget: int, setting: Setting) -> CostModels:
    """By random combinations of the user's tables, every fifth of them for validation."""
    tables = tuple({t.name: t for task in setting.tasks_of(_ASKED) for t in task.tables}.values())
    both = _random(setting.away, TableSplit(tables, tables, tables), budget, setting)
    calls, exchanges = (
        [replace(m, split="valid" if i % 5 == 4 else "train") for i, m in enumerate(its.everything)] for its in both
    )
    return learner().fit(start, calls, exchanges)


def refined(start: CostModels, budget: int, setting: Setting) -> CostModels:
    """By what searches for the user's tasks propose."""
    with tempfile.TemporaryDirectory() as folder:
        save_bundle(Path(folder) / "start", start, Card())
        found = Refine(
            str(Path(folder) / "start"), setting.tasks_of(_ASKED), (SEARCH, believing(SEARCH)),
            MadeUpHardware(made_up=setting.away, noise=setting.noise), CALLS, EXCHANGES, learner(),
            Shares(measurements=max(50, budget // 4)), budget, None, 0.0, setting.seed, str(Path(folder) / "out"),
        ).run()  # fmt: skip
        assert found is not None
        return CostModels.load(found.models)


@dataclass(frozen=True)
class Quality:
    """How models do.

    Attributes:
        asked: (n,) relative errors of devices' compute costs in searched plans for the tasks that were refined for.
        plans, placements: the same for other tasks, and in random placements.
        covered: share of the devices in plans for other tasks within the margins.
        asked_ms, plans_ms: (N,) true costs of the searched plans for the tasks that were refined for, and for others.
    """

    asked: FloatArray
    plans: FloatArray
    placements: FloatArray
    covered: float
    asked_ms: FloatArray
    plans_ms: FloatArray

    @classmethod
    def of(cls, models: CostModels, setting: Setting) -> "Quality":
        """Of the models' own plans."""
        simulator, truth, tasks = Simulator(models), setting.away.truth, setting.tasks_of(_UNSEEN)
        asked = [SEARCH.search(task, simulator) for task in setting.tasks_of(_ASKED)]
        plans = [SEARCH.search(task, simulator) for task in tasks]
        placements = [Random().search(task, simulator) for task in tasks]
        (own, _), (other, inside), (there, _) = (
            errors(its, models, truth.compute.predict(_contents(its))) for its in (asked, plans, placements)
        )
        costs = [[Simulator(truth).cost(plan.task, plan).total_ms for plan in its] for its in (asked, plans)]
        return cls(own, other, there, float(inside.mean()), *map(np.array, costs))

    def row(self, name: str, before: "Quality") -> str:
        """Of a markdown table."""
        errors = " | ".join(f"{its.mean():.1%}" for its in (self.asked, self.plans, self.placements))
        costs = (change(self.asked_ms / before.asked_ms), change(self.plans_ms / before.plans_ms))
        return f"| {name} | {errors} | {self.covered:.0%} | {' | '.join(costs)} |"


def change(ratios: FloatArray) -> str:
    """The mean of (N,) ratios, beside 1, and its standard error."""
    error = f" ± {ratios.std(ddof=1) / len(ratios) ** 0.5:.1%}" if len(ratios) > 1 else ""
    return f"{ratios.mean() - 1:+.1%}{error}"


def errors(plans: Sequence[Plan], models: CostModels, true: FloatArray) -> tuple[FloatArray, BoolArray]:
    """(n,) of every device that has something: the relative error of its compute cost, and whether margins hold it.

    Where its true cost is (n,) ms; plans are of columns alone.
    """
    sets = _contents(plans)
    predicted = models.compute.predict(sets)
    assert models.margins is not None
    inside = np.abs(predicted - true) <= models.margins.compute(predicted, models.compute.spread_ms(sets))
    return np.abs(predicted / true - 1), inside


def _contents(plans: Sequence[Plan]) -> LoadSets:
    """What every device holds that has something."""
    sets = LoadSets.joined([plan.device_loads for plan in plans])
    return sets.take(np.flatnonzero(sets.counts))


COLUMNS = (
    "device",
    "budget",
    "models",
    "error in the tasks' plans",
    "in others",
    "in random placements",
    "in 90%",
    "true ms of the tasks' plans",
    "of others",
)


def compared(setting: Setting, start: CostModels, budgets: Sequence[int]) -> Iterator[str]:
    """Rows of the table, the models as they were first."""
    before = Quality.of(start, setting)
    yield before.row(f"{setting.device} | 0 | as they were", before)
    for budget in budgets:
        for name, learn in (("random", adapted), ("refined", refined)):
            found = Quality.of(learn(start, budget, setting), setting)
            yield found.row(f"{setting.device} | {budget} | {name}", before)


def main() -> None:
    asked = _arguments()
    print(f"{asked.tasks} tasks, noise {asked.noise:.0%}, {asked.num_devices} devices\n")
    print(f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|")
    for seed in asked.seeds:
        settings = [Setting(device, asked.tasks, asked.num_devices, asked.noise, seed) for device in asked.away]
        start = at_home(settings[0], asked.samples, asked.epochs)
        for setting in settings:
            for row in compared(setting, start, asked.budgets):
                print(row, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--budgets", type=counts, default=[100, 200, 400, 800])
    parser.add_argument("--away", type=lambda text: text.split(","), default=["caches"])
    parser.add_argument("--seeds", type=counts, default=[0])
    parser.add_argument("--noise", type=float, default=0.05)
    for name, count in (("tasks", 6), ("num-devices", 4), ("samples", 1000), ("epochs", 60)):
        parser.add_argument(f"--{name}", type=int, default=count)
    return parser.parse_args()


def counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    with blas_threads(1):
        main()
