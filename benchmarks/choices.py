"""Which of the plans at hand to believe: a table of `results.py`. The truth of made-up devices judges rules of choice.

Samples are drawn as `neuroshard collect` draws them and "measured" on two made-up devices; models are fitted to them as
by `neuroshard pretrain`, for 2, 4 and 8 devices each. Tasks are of kinds that nothing was tuned to, of tables that no
sample held (`tests/kit/kinds.py`). Of each the plans of the published search, of even layouts, of heuristics, and of
local search are costed by the models and in truth; a rule chooses by what the models say of all.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from shared import Made

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import InfeasibleError
from neuroshard.plumbing.registry import config_of, instantiate_config
from neuroshard.plumbing.threads import torch_threads
from neuroshard.records.splits import split_tables
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.fit import Fit, margins_of
from neuroshard.stages.pretrain.measurements import Measured
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import SCORES, Greedy
from neuroshard.stages.search.methods.improved import EvenLayouts, ImprovedSearch
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.tables.reuse import ZIPF_EXPONENT, zipf_reuse
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing.devices import MADE_UP, MadeUpDevice, measured_comm, measured_compute
from tests.kit.kinds import task_of

_EVEN = ImprovedSearch((EvenLayouts(),), Improvement(shakes=0), max_moved_bytes=0)
_EPOCHS = "compute_model.member.training.epochs", "comm_model.training.epochs"
_AT_HAND: tuple[Searcher, ...] = (BeamSearch(), NeuroShard(choice=None), _EVEN, *map(Greedy, SCORES))
# Of (K, 3) predicted and expected costs, and how far the exchanges are beyond those that the models were fitted to, the
# published search's first: the plan that is taken.
RULES: dict[str, Callable[[FloatArray], int]] = {
    "the published search's": lambda _: 0,
    "least predicted": lambda costs: int(costs[:, 0].argmin()),
    "least expected": lambda costs: int(costs[:, 1].argmin()),
    "least expected of those predicted no dearer than the published": (
        lambda costs: int(np.where(costs[:, 0] <= costs[0, 0], costs[:, 1], np.inf).argmin())
    ),
    "the same without plans of more lopsided exchanges than any measured": (
        lambda costs: int(np.where((costs[:, [0, 2]] <= costs[0, [0, 2]]).all(axis=1), costs[:, 1], np.inf).argmin())
    ),
}


@dataclass(frozen=True)
class Setting:
    """What models are fitted to, and how: half as many exchanges as compute samples; noise is of their logarithms."""

    device: str
    num_devices: int
    samples: int = 400
    noise: float = 0.05
    epochs: int | None = None

    @property
    def made_up(self) -> MadeUpDevice:
        """The made-up device itself."""
        return MADE_UP[self.device]

    def fitted(self) -> CostModels:
        """Fit models to samples that were measured on the device, with margins."""
        fewer = {} if self.epochs is None else dict.fromkeys(_EPOCHS, self.epochs)
        config = config_of("pretrain", fewer)
        compute_fitter, comm_fitter = (instantiate_config(config[f"{kind}_model"]) for kind in ("compute", "comm"))
        measured = self._measured()
        with torch_threads(1):
            models = Fit(compute_fitter, comm_fitter)(measured)
        return replace(models, margins=margins_of(models, measured))

    def _measured(self) -> Measured:
        rng, device = np.random.default_rng([0, self.samples]), self.made_up
        split = split_tables(dlrm_like(batch_size=device.batch_size, seed=0), 0)
        sets = ComputeAugmentation(max_tables=20, any_width_share=0.5)
        exchanges = CommAugmentation((self.num_devices,), max_start_ms=device.max_start_ms)
        compute = [sets.draw(split, device.batch_size, rng) for _ in range(self.samples)]
        comm = [exchanges.draw(self.num_devices, device.batch_size, rng) for _ in range(self.samples // 2)]
        calls = measured_compute(device, compute, self.noise, rng)
        return Measured.split(calls, measured_comm(device, comm, self.noise, rng))


def judged_rules(_work: Path, small: bool) -> Made:
    """Judge every rule by its true costs on tasks of all kinds."""
    devices, counts, tasks = (("cpu",), (2,), 2) if small else (("gpu", "cpu"), (2, 4, 8), 56)
    judged = [its for each in product(devices, counts) for its in _judged(Setting(*each), tasks)]
    every: dict[str, Callable[[FloatArray], int] | None] = {**RULES, "least true cost": None}
    rows = []
    for name, rule in every.items():
        taken = [int(true.argmin()) if rule is None else rule(costs) for costs, true in judged]
        over = np.array([true[plan] / true[0] - 1 for plan, (_, true) in zip(taken, judged, strict=True)])
        expected = np.array([said[plan, 1] / said[0, 1] - 1 for plan, (said, _) in zip(taken, judged, strict=True)])
        rows.append(
            {
                "taken": name,
                "expected cost over the published search's": f"{expected.mean():+.2%}",
                "true cost over the published search's": f"{over.mean():+.2%} ± {over.std() / len(over) ** 0.5:.2%}",
                "worse by > 1%": f"{(over > 0.01).mean():.1%}",
                "better by > 1%": f"{(over < -0.01).mean():.1%}",
            }
        )
    noise = f"Standard errors are over {len(judged)} tasks; models are fitted to 400 samples with 5% noise."
    return Made(pd.DataFrame(rows), noise)


def _judged(setting: Setting, count: int) -> list[tuple[FloatArray, FloatArray]]:
    """Cost each task's plans at hand: predicted and expected ms and how far beyond (K, 3), and true ms (K,)."""
    models, truth = setting.fitted(), Simulator(setting.made_up.truth)
    simulator, judged = Simulator(models), []
    for number in range(count):
        task = _on(setting, task_of(number))
        plans = []
        for searcher in _AT_HAND:
            try:
                plans.append(searcher.find(task, simulator).plan)
            except InfeasibleError:
                plans += plans[:1]
        if len(plans) == len(_AT_HAND):
            costs = np.array([[one.total_ms, one.expected_ms, one.beyond] for one in simulator.costs(task, plans)])
            judged.append((costs, np.array([cost.total_ms for cost in truth.costs(task, plans)])))
    return judged


def _on(setting: Setting, task: Task) -> Task:
    """Move a task's tables to the setting's devices, at its batch size, with memory to spare."""
    batch = setting.made_up.batch_size
    reuse = (zipf_reuse(table.rows, batch * table.pooling_factor, ZIPF_EXPONENT) for table in task.tables)
    tables = tuple(replace(table, reuse=its) for table, its in zip(task.tables, reuse, strict=True))
    memory = max(2 * sum(table.size_bytes for table in tables) // setting.num_devices, 64 << 20)
    return Task(tables, Topology(setting.num_devices, memory), batch)
