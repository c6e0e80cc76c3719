"""Compares rules for choosing among several plans of a task, on tasks whose true costs are known:
two tables of `results.py`.

Samples are drawn as `neuroshard collect` draws them, and "measured" on two made-up devices, whose costs are formulas.
Models are fitted to the samples as `neuroshard pretrain` does, for 2, 4 and 8 devices each. Nothing was tuned to the
kinds of tasks (`tests/kit/kinds.py`), and no sample has their tables. For each task, the published search, even
layouts, heuristics and local search find plans. The models predict the costs of all plans, and the made-up device gives
the true costs. A rule chooses a plan from the predictions alone.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pandas as pd
from shared import Made, found

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neuroshard.cost.cost import Cost
from neuroshard.measure.store.splits import split_tables
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.registry import config_of, instantiate_config
from neuroshard.plumbing.threads import torch_threads
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.fit import Fit, margins_of
from neuroshard.stages.pretrain.measurements import Measured
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.local.starts import EvenLayouts
from neuroshard.stages.search.methods.acceptance import Acceptance, cheapest, choose, likeliest
from neuroshard.stages.search.methods.heuristics import SCORES, Greedy
from neuroshard.stages.search.methods.improved import ImprovedSearch
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.tables.reuse import ZIPF_EXPONENT, zipf_reuse
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.task import Task
from neuroshard.words.topology import Topology
from tests.kit.devices import MADE_UP, MadeUpDevice, measured_comm, measured_compute
from tests.kit.kinds import task_of

_EVEN = ImprovedSearch((EvenLayouts(),), Improvement(perturbations=0), max_moved_bytes=0)
_SIZES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 1.0)  # of gains, relative
_EPOCHS = "compute_model.member.training.epochs", "comm_model.training.epochs"
_SEARCHERS: tuple[Searcher, ...] = (BeamSearch(), NeuroShard(acceptance=None), _EVEN, *map(Greedy, SCORES))


@dataclass(frozen=True, eq=False)
class AvailablePlans:
    """The plans of a task from which a rule chooses, with predicted costs and true costs in ms. The first plan is
    from the published search.
    """

    task: Task
    simulator: Simulator
    costs: Sequence[Cost]
    true_ms: Sequence[float]


def _least_expected_of_no_more_expensive(plans: AvailablePlans) -> int:
    affordable = [number for number, cost in enumerate(plans.costs) if cost.total_ms <= plans.costs[0].total_ms]
    return affordable[likeliest([plans.costs[number] for number in affordable])]


# Which of the available plans is taken.
RULES: dict[str, Callable[[AvailablePlans], int]] = {
    "the published search's": lambda _: 0,
    "least predicted": lambda plans: cheapest(plans.costs),
    "least expected": lambda plans: likeliest(plans.costs),
    "least expected of those predicted no more expensive than the published": _least_expected_of_no_more_expensive,
    "the default's: also no gains below three thousandths, and no exchanges more unbalanced than any measured": (
        lambda plans: choose(Acceptance().assess(plans.costs, plans.task, plans.simulator))[0]
    ),
    "least true cost": lambda plans: int(np.argmin(plans.true_ms)),
}


@dataclass(frozen=True)
class Setting:
    """The made-up device and the samples to which cost models are fitted, and the settings of the fit. There are half
    as many samples of exchanges as of kernels.

    `noise` is the standard deviation of the logarithms of the measured times. `seed` is the seed of the tables and
    samples, and `settings` are settings of `pretrain`.
    """

    device: str
    num_devices: int
    samples: int = 400
    noise: float = 0.05
    epochs: int | None = None
    seed: int = 0
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def made_up(self) -> MadeUpDevice:
        """The made-up device with the name `device`."""
        return MADE_UP[self.device]

    def fitted(self) -> CostModels:
        """Return cost models, with error margins, fitted to samples that were "measured" on the made-up device."""
        fewer = {} if self.epochs is None else dict.fromkeys(_EPOCHS, self.epochs)
        config = config_of("pretrain", {**fewer, **dict(self.settings)})
        compute_fitter, comm_fitter = (instantiate_config(config[f"{name}_model"]) for name in ("compute", "comm"))
        measured = self._measured()
        with torch_threads(1):
            models = Fit(compute_fitter, comm_fitter)(measured)
        return replace(models, margins=margins_of(models, measured))

    def _measured(self) -> Measured:
        rng, device = np.random.default_rng([self.seed, self.samples]), self.made_up
        split = split_tables(dlrm_like(batch_size=device.batch_size, seed=self.seed), self.seed)
        sets = ComputeAugmentation(max_tables=20, arbitrary_dim_fraction=0.5)
        exchanges = CommAugmentation((self.num_devices,), max_start_ms=device.max_start_ms)
        compute = [sets.draw(split, device.batch_size, rng) for _ in range(self.samples)]
        comm = [exchanges.draw(self.num_devices, device.batch_size, rng) for _ in range(self.samples // 2)]
        calls = measured_compute(device, compute, self.noise, rng)
        return Measured.split(calls, measured_comm(device, comm, self.noise, rng))


def judged_rules(_work: Path, small: bool) -> Made:
    """Return a table of the rules: by how much the plan that a rule chooses differs in true cost from the published
    search's plan, over all tasks.
    """
    rows, judged = [], _on_all(small)
    for name, rule in RULES.items():
        taken = [rule(plans) for plans in judged]
        over = np.array([its.true_ms[plan] / its.true_ms[0] - 1 for plan, its in zip(taken, judged, strict=True)])
        expected_ms = [[cost.expected_ms for cost in its.costs] for its in judged]
        expected = np.array([ms[plan] / ms[0] - 1 for plan, ms in zip(taken, expected_ms, strict=True)])
        rows.append(
            {
                "taken": name,
                "expected cost over the published search's": f"{expected.mean():+.2%}",
                "true cost over the published search's": f"{over.mean():+.2%} ± {over.std() / len(over) ** 0.5:.2%}",
                "worse by > 1%": f"{(over > 0.01).mean():.1%}",
                "better by > 1%": f"{(over < -0.01).mean():.1%}",
            }
        )
    return Made(pd.DataFrame(rows), _noise(judged))


def gains_by_size(_work: Path, small: bool) -> Made:
    """Return a table that compares predicted, expected and true gains over the published search's plan, with the plans
    grouped by predicted gain.
    """
    rows, judged = [], _on_all(small)
    gains = np.concatenate([_gains(plans) for plans in judged])
    for least, most in pairwise(_SIZES):
        predicted, expected, true = gains[(gains[:, 0] > least) & (gains[:, 0] <= most)].T
        if len(true):
            rows.append(
                {
                    "gain predicted": f"{least:.1%} to {most:.1%}" if most < 1 else f"more than {least:.1%}",
                    "plans": str(len(true)),
                    "predicted on average": f"{predicted.mean():.2%}",
                    "expected": f"{expected.mean():.2%}",
                    "true": f"{true.mean():.2%} ± {true.std() / len(true) ** 0.5:.2%}",
                }
            )
    return Made(pd.DataFrame(rows), _noise(judged))


def _gains(plans: AvailablePlans) -> FloatArray:
    """Return the relative gains of the other K - 1 plans over the first plan, (K - 1, 3):
    predicted, expected and true gain.
    """
    ms = np.array(
        [[*(cost.total_ms for cost in plans.costs)], [*(cost.expected_ms for cost in plans.costs)], plans.true_ms]
    )
    gains: FloatArray = (1 - ms[:, 1:] / ms[:, :1]).T
    return gains


def _noise(judged: Sequence[AvailablePlans]) -> str:
    return f"Standard errors are over {len(judged)} tasks; models are fitted to 400 samples with 5% noise."


@cache
def _on_all(small: bool) -> tuple[AvailablePlans, ...]:
    """Return the plans of all tasks with predicted and true costs, on every made-up device and number of devices."""
    devices, counts, tasks = (("cpu",), (2,), 2) if small else (("gpu", "cpu"), (2, 4, 8), 112)
    return tuple(its for each in product(devices, counts) for its in _judged(Setting(*each), tasks))


def _judged(setting: Setting, count: int) -> list[AvailablePlans]:
    """Return the plans of each of `count` tasks, with the costs that the fitted models predict and with true costs."""
    models, truth = setting.fitted(), Simulator(setting.made_up.truth)
    simulator, judged = Simulator(models), []
    for number in range(count):
        task = on_devices(task_of(number), setting.made_up, setting.num_devices)
        published, *others = (found(task, simulator, searcher) for searcher in _SEARCHERS)
        if published is not None:
            plans = [published, *(plan or published for plan in others)]
            true_ms = [cost.total_ms for cost in truth.costs(task, plans)]
            judged.append(AvailablePlans(task, simulator, simulator.costs(task, plans), true_ms))
    return judged


def on_devices(task: Task, device: MadeUpDevice, count: int) -> Task:
    """Return the task with the same tables on `count` made-up devices: with the batch size of the device, and with
    about twice the memory that the tables need.
    """
    reuse = (zipf_reuse(table.rows, device.batch_size * table.pooling_factor, ZIPF_EXPONENT) for table in task.tables)
    tables = tuple(replace(table, reuse=its) for table, its in zip(task.tables, reuse, strict=True))
    memory = max(2 * sum(table.size_bytes for table in tables) // count, 64 << 20)
    return Task(tables, Topology(count, memory), device.batch_size)
