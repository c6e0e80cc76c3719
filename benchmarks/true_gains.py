"""Whether the default search's gains are true: models fitted on made-up devices, plans costed with the truth.

usage: true_gains.py [--devices gpu,cpu] [--forms default,paper] [--noise 0.05] [--samples 400] [--num-devices 4,8]
                     [--tasks 20] [--seeds 0] [--regret 0] [--epochs N]

Samples are drawn as `neuroshard collect` draws them, "measured" on a made-up device, and models are fitted to them as
`neuroshard pretrain` fits them. Tasks are of tables that no sample held. A row is a device, form of models, noise
(standard deviation of the logarithm of what is measured), number of compute samples (half as many exchanges) and
number of devices in the tasks. Gains are relative, over the published search: of the default search, and of the same
where it takes every predicted gain for true (searcher.choice=null). --regret: on so many tasks of each row, plans are
also compared with those of a small beam search that knows the truth, some seconds a task.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, reduce
from itertools import product
from typing import Any

import numpy as np
from shared import silent

from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.models.trust import Ranges
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import BoolArray, FloatArray
from neuroshard.plumbing.registry import config_of, instantiate_config
from neuroshard.plumbing.threads import blas_threads, torch_threads
from neuroshard.records.samples import BACKWARD, FORWARD
from neuroshard.records.splits import split_tables
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.fit import margins_of
from neuroshard.stages.pretrain.measurements import Measured, SplitMeasurements
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.placement.grid import GridSettings
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing.devices import MADE_UP, MadeUpDevice, measured_comm, measured_compute
from neuroshard.words.collective import Collective
from neuroshard.words.form import IN_COLUMNS

_FORMS = {"default": {}, "paper": {"compute_model": "paper", "comm_model": "paper"}}
_TRUTH_SEARCH = BeamSearch(num_candidates=3, beam_width=1, max_splits=4, grid=GridSettings(points=4))
_SEEN, _UNSEEN = 0, 1  # seeds of the tables that are measured, and of those that are searched for
_MEMORY_BYTES = 4 << 30
_WORSE = 0.01


@dataclass(frozen=True)
class Setting:
    """What models are fitted to, and how."""

    device: str
    form: str
    noise: float
    samples: int
    num_devices: int
    seed: int = 0
    epochs: int | None = None

    @property
    def made_up(self) -> MadeUpDevice:
        """The device itself."""
        return MADE_UP[self.device]

    def fitted(self) -> CostModels:
        """Models fitted to samples that were measured on the device, with margins."""
        compute, comm = self._measured()
        config = config_of("pretrain", _FORMS[self.form] | self._epochs())
        compute_fitter, comm_fitter = (instantiate_config(config[f"{kind}_model"]) for kind in ("compute", "comm"))
        with torch_threads(1):
            model = compute_fitter.fit(compute, None, self.seed, silent)
            forward, backward = (comm_fitter.fit(comm, way, None, self.seed, silent) for way in (FORWARD, BACKWARD))
        ranges = Ranges.of([m.sample for m in compute.train], [m.sample for m in comm.train])
        models = CostModels(model, forward, backward, self.made_up.batch_size, ranges)
        measured = Measured({IN_COLUMNS: compute}, {Collective.ALL_TO_ALL: comm})
        return replace(models, margins=margins_of(models, measured))

    def _measured(self) -> tuple[SplitMeasurements, SplitMeasurements]:
        rng, device = np.random.default_rng([self.seed, self.samples]), self.made_up
        split = split_tables(_tables(device.batch_size, _SEEN), self.seed)
        sets = ComputeAugmentation(max_tables=20, any_width_share=0.5)
        exchanges = CommAugmentation((self.num_devices,), max_start_ms=device.max_start_ms)
        compute = [sets.draw(split, device.batch_size, rng) for _ in range(self.samples)]
        comm = [exchanges.draw(self.num_devices, device.batch_size, rng) for _ in range(self.samples // 2)]
        return (
            _by_split(measured_compute(device, compute, self.noise, rng)),
            _by_split(measured_comm(device, comm, self.noise, rng)),
        )

    def _epochs(self) -> dict[str, int]:
        if self.epochs is None:
            return {}
        member = "member.training" if self.form == "default" else "training"
        return {f"compute_model.{member}.epochs": self.epochs, "comm_model.training.epochs": self.epochs}

    def tasks(self, count: int) -> tuple[Task, ...]:
        """Of unseen tables, as the papers draw them."""
        tables = _tables(self.made_up.batch_size, _UNSEEN)
        topology = Topology(self.num_devices, _MEMORY_BYTES)
        return drawn(tables, topology, self.made_up.batch_size, TaskDraw(count=count, seed=self.seed))


@cache
def _tables(batch_size: int, seed: int) -> Any:
    return dlrm_like(batch_size=batch_size, seed=seed)


def _by_split(measurements: list[Any]) -> SplitMeasurements:
    train, valid, test = ([m for m in measurements if m.split == name] for name in ("train", "valid", "test"))
    return SplitMeasurements(train, valid, test, measurements)


@dataclass(frozen=True)
class Costs:
    """Of N plans, (N,) ms each: as predicted, as expected of devices whose predictions err, half the width of the 90%
    interval, and in truth."""

    predicted: FloatArray
    expected: FloatArray
    margin: FloatArray
    true: FloatArray

    @classmethod
    def of(cls, plans: Sequence[Plan], models: CostModels, truth: CostModels) -> "Costs":
        """Plans of several tasks."""
        costs = [Simulator(models).cost(plan.task, plan) for plan in plans]
        return cls(
            np.array([cost.total_ms for cost in costs]),
            np.array([cost.expected_ms for cost in costs]),
            np.array([cost.margin_ms for cost in costs]),
            true_ms(plans, truth),
        )

    @property
    def biases(self) -> str:
        """By how much predicted and expected costs are off, mean over plans, relative to the truth."""
        return ", ".join(f"{(ms / self.true - 1).mean():+.1%}" for ms in (self.predicted, self.expected))

    def gain(self, kind: str, over: "Costs") -> FloatArray:
        """(N,) relative, over other plans of the same tasks."""
        gain: FloatArray = 1 - getattr(self, kind) / getattr(over, kind)
        return gain

    @property
    def covered(self) -> float:
        """Share of the plans whose true cost lies within the interval."""
        return float((np.abs(self.predicted - self.true) <= self.margin).mean())

    def where(self, chosen: BoolArray, other: "Costs") -> "Costs":
        """These plans where `chosen` (N,), elsewhere the other ones."""
        pairs = ((getattr(self, part.name), getattr(other, part.name)) for part in fields(self))
        return Costs(*(np.where(chosen, *pair) for pair in pairs))

    def joined(self, other: "Costs") -> "Costs":
        """Both one after the other."""
        pairs = ((getattr(self, part.name), getattr(other, part.name)) for part in fields(self))
        return Costs(*(np.concatenate(pair) for pair in pairs))


def true_ms(plans: Sequence[Plan], truth: CostModels) -> FloatArray:
    """(N,) true costs."""
    return np.array([Simulator(truth).cost(plan.task, plan).total_ms for plan in plans])


@dataclass(frozen=True)
class Comparison:
    """Plans of the published search, of the default one, and of the default one without its choice.

    Attributes:
        taken: (N,) whether the choice took the improved plan.
        knowing: (R,) true ms of plans for the first R tasks by a search that knows the truth.
    """

    published: Costs
    improved: Costs
    taken: BoolArray
    knowing: FloatArray

    def joined(self, other: "Comparison") -> "Comparison":
        """Both one after the other; only one may know the truth."""
        return Comparison(
            self.published.joined(other.published),
            self.improved.joined(other.improved),
            np.concatenate([self.taken, other.taken]),
            np.concatenate([self.knowing, other.knowing]),
        )

    def rows(self) -> tuple[str, str]:
        """Of a markdown table: every gain taken for true, and the default."""
        return self._row("every gain", self.improved), self._row(
            "default", self.improved.where(self.taken, self.published)
        )

    def _row(self, name: str, ours: Costs) -> str:
        predicted, expected, true = (ours.gain(kind, self.published) for kind in ("predicted", "expected", "true"))
        error = true.std(ddof=1) / len(true) ** 0.5
        known = len(self.knowing)
        above = [f"{(costs.true[:known] / self.knowing - 1).mean():.1%}" for costs in (self.published, ours) if known]
        cells = (
            name, f"{(predicted != 0).mean():.0%}", f"{predicted.mean():.2%}", f"{expected.mean():.2%}",
            f"{true.mean():.2%} ± {error:.2%}", f"{(true < -_WORSE).mean():.0%}",
            f"{self.published.biases} / {ours.biases}", f"{self.published.covered:.0%} / {ours.covered:.0%}",
            " / ".join(above) or "-",
        )  # fmt: skip
        return " | ".join(cells) + " |"


COLUMNS = (
    "device", "models", "noise", "samples", "devices", "search", "other plans", "predicted gain", "expected gain",
    "true gain", "worse by > 1%", "bias, predicted and expected: published / this", "in 90%: published / this",
    "above a search that knows: published / this",
)  # fmt: skip


def compared(setting: Setting, tasks: int, known: int) -> Comparison:
    """With models fitted for `setting`; on the first `known` tasks beside a search that knows the truth."""
    models, truth, asked = setting.fitted(), setting.made_up.truth, setting.tasks(tasks)
    simulator, default = Simulator(models), NeuroShard()
    assert default.choice is not None
    published = [BeamSearch().find(task, simulator).plan for task in asked]
    improved = [replace(default, choice=None).find(task, simulator).plan for task in asked]
    pairs = zip(published, improved, strict=True)
    choices = (default.choice.among(simulator.costs(pair[0].task, pair), pair[0].task, simulator) for pair in pairs)
    taken = np.array([chosen == 1 for chosen, _ in choices])
    knowing = [_TRUTH_SEARCH.find(task, Simulator(truth)).plan for task in asked[:known]]
    costs = [Costs.of(plans, models, truth) for plans in (published, improved)]
    return Comparison(costs[0], costs[1], taken, true_ms(knowing, truth))


def main() -> None:
    asked = _arguments()
    print(f"{asked.tasks} tasks, {len(asked.seeds)} fit(s)\n")
    print(f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|")
    for one in _settings(asked):
        parts = [
            compared(replace(one, seed=seed), asked.tasks, asked.regret if seed == asked.seeds[0] else 0)
            for seed in asked.seeds
        ]
        for row in reduce(Comparison.joined, parts).rows():
            print(
                f"| {one.device} | {one.form} | {one.noise:.0%} | {one.samples} | {one.num_devices} | {row}", flush=True
            )


def _settings(asked: argparse.Namespace) -> Iterator[Setting]:
    for values in product(asked.devices, asked.forms, asked.noise, asked.samples, asked.num_devices):
        yield Setting(*values, epochs=asked.epochs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--devices", type=_several(str), default=list(MADE_UP))
    parser.add_argument("--forms", type=_several(str), default=list(_FORMS))
    parser.add_argument("--noise", type=_several(float), default=[0.05])
    parser.add_argument("--samples", type=_several(int), default=[400])
    parser.add_argument("--num-devices", type=_several(int), default=[4, 8])
    parser.add_argument("--seeds", type=_several(int), default=[0])
    for name, count in (("tasks", 20), ("regret", 0), ("epochs", None)):
        parser.add_argument(f"--{name}", type=int, default=count)
    return parser.parse_args()


def _several(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [kind(part) for part in text.split(",")]


if __name__ == "__main__":
    with blas_threads(1):
        main()
