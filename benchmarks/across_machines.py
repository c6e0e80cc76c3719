"""What a few samples of a new machine are worth where others were measured before: each machine in turn left out.

usage: across_machines.py DATA [DATA ...] [--made-up 8] [--left-out 0,1,2] [--counts 5,10,20,50,100,200]
                          [--samples 4000] [--seeds 0,1,2] [--members 4] [--epochs 200]

Machines are those of the data directories, the first of which is the one that models come from today, and made-up CPUs
whose bandwidths, latencies and caches differ. Each directory's is left out, and two made-up ones, or those with the
numbers given. Of every other machine the shared model sees so many samples for training. Errors are on unseen tables of
the machine that is left out, medians over seeds, which draw its samples; every fifth of them is for validation. Models
of one machine (the first's, installed where it is called "cpu"; or the second's where the first is left out) are
multiplied by one factor or also fitted further, as `neuroshard refine` learns; the shared model gets the machine's
numbers, or is fitted further from there. "nearest": the known machine in the shared model that does best on the
samples, times one factor. Nothing is measured; CPU time is all that it takes.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from neuroshard.models import CostModels, SumModel
from neuroshard.models.shared import SharedCompute
from neuroshard.plans.form import IN_COLUMNS
from neuroshard.records import DataDirectory
from neuroshard.records.noise import pass_repeatability
from neuroshard.records.samples import Measurement
from neuroshard.records.splits import TRAIN, VALID, split_tables
from neuroshard.registry import compose_config, instantiate_config
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.ratios import LEAST_MS, typical_ratio
from neuroshard.stages.pretrain.refit import Refit
from neuroshard.stages.pretrain.result import predict_compute
from neuroshard.stages.pretrain.scaled import scaled_compute
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements
from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.testing.devices import MADE_UP, measured_compute
from neuroshard.testing.devices.family import drawn_cpu
from neuroshard.threads import torch_threads

CALLS = ComputeAugmentation(max_tables=20, any_width_share=0.5)
BATCH_SIZES = (256, 512, 1024, 2048, 4096, 8192)
NOISE = 0.05
COLUMNS = ("one factor", "fitted further", "nearest", "numbers", "numbers, fitted further")
_TABLES_SEED = 1000  # of made-up machines' tables, which are nobody else's
_DRAWN = 480  # samples of a made-up machine
_NEVER = 1 << 30


@dataclass(frozen=True, eq=False)
class Machine:
    """One that was measured."""

    name: str
    measured: SplitMeasurements
    noise: float


@dataclass(frozen=True)
class Setting:
    """How models are fitted: samples of each machine for training, members, epochs; and by how many of a new one."""

    samples: int
    members: int
    epochs: int
    counts: tuple[int, ...]
    seeds: tuple[int, ...]

    def fitter(self, compute_model: str) -> Any:
        """Of that choice."""
        name = f"compute_model={compute_model}"
        sizes = [f"compute_model.members={self.members}", f"compute_model.member.training.epochs={self.epochs}"]
        return instantiate_config(compose_config("pretrain", [name, *sizes]).compute_model)


def of_directory(path: str) -> Machine:
    """The machine whose samples the directory holds; of columns."""
    samples = [m for m in DataDirectory(Path(path)).compute().read() if m.sample.call == IN_COLUMNS]
    measured = SplitMeasurements.of(samples, "compute samples", path)
    return Machine(Path(path).name, measured, float(np.mean(pass_repeatability(measured.everything))))


def made_up(seed: int) -> Machine:
    """A CPU drawn with the seed."""
    rng = np.random.default_rng(seed)
    device = replace(MADE_UP["cpu"], compute=drawn_cpu(rng))
    split = split_tables(dlrm_like(batch_size=4096, seed=_TABLES_SEED + seed), seed)
    drawn = [CALLS.draw(split, int(rng.choice(BATCH_SIZES)), rng) for _ in range(_DRAWN)]
    name = f"made up {seed}"
    return Machine(name, SplitMeasurements.of(measured_compute(device, drawn, NOISE, rng), "samples", name), NOISE)


@cache
def _alone(machine: Machine, setting: Setting) -> SumModel:
    """A model of one machine, from all its samples; of the first one, the installed."""
    if machine.name == "cpu":
        installed = CostModels.load("cpu").compute
        assert isinstance(installed, SumModel)
        return installed.of_call(IN_COLUMNS)
    model: SumModel = setting.fitter("ensemble").fit(machine.measured, None, 0, _silent)
    return model


def rows(machines: Sequence[Machine], left_out: int, setting: Setting) -> Iterator[str]:
    """Of a markdown table: errors by samples of the machine that is left out."""
    new, others = machines[left_out], [one for i, one in enumerate(machines) if i != left_out]
    known = [one.measured.limited(setting.samples) for one in others]
    alone = _alone(others[0], setting)
    shared = setting.fitter("across").fit_machines(known, [one.name for one in others], 0, _silent)
    yield f"| {new.name} | 0 | {_error(alone, new):.1%} | | | {_error(shared, new):.1%} | | {new.noise:.1%} |"
    for count in setting.counts:
        errors = np.array([_errors(alone, shared, new, count, seed) for seed in setting.seeds])
        cells = " | ".join(f"{error:.1%}" for error in np.median(errors, axis=0))
        yield f"| {new.name} | {count} | {cells} | {new.noise:.1%} |"


def _errors(alone: SumModel, shared: SharedCompute, new: Machine, count: int, seed: int) -> list[float]:
    """As `COLUMNS`, after so many samples."""
    some = _drawn(new, count, seed)
    train = [m for m in some if m.split == TRAIN]
    numbers = _learned(shared, some, _NEVER)
    return [
        _error(_learned(alone, some, _NEVER), new),
        _error(_learned(alone, some, None), new),
        _error(_nearest(shared, train), new),
        _error(numbers, new),
        _error(_learned(numbers, some, None), new),
    ]


def _drawn(new: Machine, count: int, seed: int) -> list[Measurement[Any]]:
    """So many training samples, every fifth of them for validation."""
    order = np.random.default_rng(seed).permutation(len(new.measured.train))[:count]
    return [replace(new.measured.train[i], split=VALID if n % 5 == 4 else TRAIN) for n, i in enumerate(order)]


def _learned(start: SumModel, some: Sequence[Measurement[Any]], least_train: int | None) -> SumModel:
    """As `neuroshard refine` learns; further than a factor or numbers from so many samples on, None: its own."""
    learner: Refit = instantiate_config(compose_config("refine", []).learner)
    learner = learner if least_train is None else replace(learner, least_train=least_train)
    installed = CostModels.load("cpu")
    models = learner.fit(CostModels(start, installed.forward, installed.backward, None), some, [])
    assert isinstance(models.compute, SumModel)
    return models.compute


def _nearest(shared: SharedCompute, train: list[Measurement[Any]]) -> SumModel:
    known = [shared.machine(i) for i in range(len(shared.names))]
    scaled = [scaled_compute(one, typical_ratio(predict_compute(one, train))) for one in known]
    return min(scaled, key=lambda one: _mape(one, train))


def _error(model: SumModel, machine: Machine) -> float:
    return _mape(model, machine.measured.test)


def _mape(model: SumModel, measured: list[Measurement[Any]]) -> float:
    found = predict_compute(model, measured)
    return float(np.mean(np.abs(found.predicted_ms / np.maximum(found.measured_ms, LEAST_MS) - 1)))


def _silent(_epoch: int, _loss: float) -> None:
    pass


def main() -> None:
    asked = _arguments()
    setting = Setting(asked.samples, asked.members, asked.epochs, asked.counts, asked.seeds)
    machines = [of_directory(path) for path in asked.data] + [made_up(seed) for seed in range(asked.made_up)]
    print(f"| left out | samples | {' | '.join(COLUMNS)} | noise |\n{'| --- ' * (len(COLUMNS) + 3)}|")
    for index in asked.left_out or range(len(asked.data) + 2):
        for row in rows(machines, index, setting):
            print(row, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("data", nargs="+")
    for name, count in (("made-up", 8), ("samples", 4000), ("members", 4), ("epochs", 200)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--left-out", type=_counts)
    parser.add_argument("--counts", type=_counts, default=(5, 10, 20, 50, 100, 200))
    parser.add_argument("--seeds", type=_counts, default=(0, 1, 2))
    return parser.parse_args()


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    with torch_threads(1):
        main()
