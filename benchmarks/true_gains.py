"""Whether the default search's gains are true: models fitted on made-up devices, plans costed with the truth.

usage: true_gains.py [--devices gpu,cpu] [--forms default,paper] [--noise 0.05] [--samples 400] [--num-devices 4,8]
                     [--tasks 20] [--seeds 0] [--regret 0] [--epochs N]

Samples are drawn as `neuroshard collect` draws them, "measured" on a made-up device, and models are fitted to them as
`neuroshard pretrain` fits them. Tasks are of tables that no sample held. A row is a device, form of models, noise
(standard deviation of the logarithm of what is measured), number of compute samples (half as many exchanges) and
number of devices in the tasks. Gains are the default search's over the published one, relative; --regret: on so many
tasks, plans are also compared with a small beam search that knows the truth, some seconds a task.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.models import CostModels
from neuroshard.models.trust import Ranges
from neuroshard.plans.plan import Plan
from neuroshard.records.samples import BACKWARD, FORWARD
from neuroshard.records.splits import split_tables
from neuroshard.registry import build, compose_config, instantiate_config
from neuroshard.searcher import Searcher
from neuroshard.simulator import Simulator
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.measured import Measured
from neuroshard.stages.pretrain.result import margins_of
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.placement.grid import GridSettings
from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing.devices import MADE_UP, MadeUpDevice, measured_comm, measured_compute
from neuroshard.threads import blas_threads, torch_threads

_FORMS = {"default": [], "paper": ["compute_model=paper", "comm_model=paper"]}
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
        config = compose_config("pretrain", [*_FORMS[self.form], *self._epochs()])
        compute_fitter, comm_fitter = (instantiate_config(config[f"{kind}_model"]) for kind in ("compute", "comm"))
        with torch_threads(1):
            model = compute_fitter.fit(compute, None, self.seed, _silent)
            forward, backward = (comm_fitter.fit(comm, way, None, self.seed, _silent) for way in (FORWARD, BACKWARD))
        ranges = Ranges.of([m.sample for m in compute.train], [m.sample for m in comm.train])
        models = CostModels(model, forward, backward, self.made_up.batch_size, ranges)
        return replace(models, margins=margins_of(models, compute, comm))

    def _measured(self) -> tuple[Measured, Measured]:
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

    def _epochs(self) -> list[str]:
        if self.epochs is None:
            return []
        member = "member.training" if self.form == "default" else "training"
        return [f"compute_model.{member}.epochs={self.epochs}", f"comm_model.training.epochs={self.epochs}"]

    def tasks(self, count: int) -> tuple[Task, ...]:
        """Of unseen tables, as the papers draw them."""
        tables = _tables(self.made_up.batch_size, _UNSEEN)
        topology = Topology(self.num_devices, _MEMORY_BYTES)
        return drawn(tables, topology, self.made_up.batch_size, TaskDraw(count=count, seed=self.seed))


@cache
def _tables(batch_size: int, seed: int) -> Any:
    return dlrm_like(batch_size=batch_size, seed=seed)


def _by_split(measurements: list[Any]) -> Measured:
    parts = ([m for m in measurements if m.split == name] for name in ("train", "valid", "test"))
    return Measured(*parts, measurements)


def _silent(_epoch: int, _loss: float) -> None:
    pass


@dataclass(frozen=True)
class Costs:
    """Of N plans, (N,) ms each: as predicted, half the width of the 90% interval, and in truth."""

    predicted: FloatArray
    margin: FloatArray
    true: FloatArray

    @classmethod
    def of(cls, plans: Sequence[Plan], models: CostModels, truth: CostModels) -> "Costs":
        """Plans of several tasks."""
        costs = [Simulator(models).cost(plan.task, plan) for plan in plans]
        return cls(
            np.array([cost.total_ms for cost in costs]),
            np.array([cost.margin_ms for cost in costs]),
            true_ms(plans, truth),
        )

    @property
    def bias(self) -> float:
        """By how much the prediction is off, mean over plans, relative to the truth."""
        return float((self.predicted / self.true - 1).mean())

    @property
    def covered(self) -> float:
        """Share of the plans whose true cost lies within the interval."""
        return float((np.abs(self.predicted - self.true) <= self.margin).mean())


def true_ms(plans: Sequence[Plan], truth: CostModels) -> FloatArray:
    """(N,) true costs."""
    return np.array([Simulator(truth).cost(plan.task, plan).total_ms for plan in plans])


@dataclass(frozen=True)
class Comparison:
    """The published search's plans, the default search's, and those of a search that knows the truth (R, ms)."""

    published: Costs
    default: Costs
    knowing: FloatArray

    @property
    def predicted_gain(self) -> FloatArray:
        """(N,) relative."""
        return 1 - self.default.predicted / self.published.predicted

    @property
    def true_gain(self) -> FloatArray:
        """(N,) relative."""
        return 1 - self.default.true / self.published.true

    def joined(self, other: "Comparison") -> "Comparison":
        """Both one after the other."""
        both = (
            Costs(*(np.concatenate([getattr(a, f), getattr(b, f)]) for f in ("predicted", "margin", "true")))
            for a, b in ((self.published, other.published), (self.default, other.default))
        )
        return Comparison(*both, np.concatenate([self.knowing, other.knowing]))

    def row(self) -> str:
        """Of a markdown table."""
        predicted, true = self.predicted_gain, self.true_gain
        error = true.std(ddof=1) / len(true) ** 0.5
        known = len(self.knowing)
        regret = (
            " / ".join(f"{(c.true[:known] / self.knowing - 1).mean():.1%}" for c in (self.published, self.default))
            if known
            else "-"
        )
        return (
            f"{predicted.mean():.2%} | {true.mean():.2%} ± {error:.2%} | {(true < -_WORSE).mean():.0%} "
            f"| {self.published.bias:+.1%} / {self.default.bias:+.1%} "
            f"| {self.published.covered:.0%} / {self.default.covered:.0%} | {regret} |"
        )


COLUMNS = (
    "device | models | noise | samples | devices | predicted gain | true gain | worse by > 1% "
    "| bias: published / default | in 90%: published / default | above a search that knows: published / default"
)


def compared(setting: Setting, searchers: Sequence[Searcher], tasks: int, known: int) -> Comparison:
    """The first search beside the second, with models fitted for `setting`; on `known` tasks with the truth, too."""
    models, truth, asked = setting.fitted(), setting.made_up.truth, setting.tasks(tasks)
    plans = [[searcher.search(task, Simulator(models)) for task in asked] for searcher in searchers]
    best = [_TRUTH_SEARCH.search(task, Simulator(truth)) for task in asked[:known]]
    published, default = (Costs.of(some, models, truth) for some in plans)
    return Comparison(published, default, true_ms(best, truth))


def main() -> None:
    asked = _arguments()
    searchers = [build("searcher", name) for name in ("neuroshard_published", "neuroshard")]
    print(f"{asked.tasks} tasks, {len(asked.seeds)} fit(s)\n\n| {COLUMNS} |\n{'| --- ' * (COLUMNS.count('|') + 1)}|")
    for one in _settings(asked):
        parts = [
            compared(replace(one, seed=seed), searchers, asked.tasks, asked.regret if first else 0)
            for first, seed in ((number == 0, seed) for number, seed in enumerate(asked.seeds))
        ]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.joined(part)
        print(
            f"| {one.device} | {one.form} | {one.noise:.0%} | {one.samples} | {one.num_devices} | {whole.row()}",
            flush=True,
        )


def _settings(asked: argparse.Namespace) -> Iterator[Setting]:
    for values in product(asked.devices, asked.forms, asked.noise, asked.samples, asked.num_devices):
        yield Setting(*values, epochs=asked.epochs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__)
    many = {
        "devices": (str, list(MADE_UP)), "forms": (str, list(_FORMS)), "noise": (float, [0.05]),
        "samples": (int, [400]), "num-devices": (int, [4, 8]), "seeds": (int, [0]),
    }  # fmt: skip
    for name, (kind, default) in many.items():
        parser.add_argument(
            f"--{name}", default=default, type=lambda text, kind=kind: [kind(part) for part in text.split(",")]
        )
    for name, count in (("tasks", 20), ("regret", 0), ("epochs", None)):
        parser.add_argument(f"--{name}", default=count, type=int)
    return parser.parse_args()


if __name__ == "__main__":
    with blas_threads(1):
        main()
