"""Tables of the NeuroShard paper with the installed CPU models: methods, ablations and sensitivity, in predicted costs.

The commands in docs/how-to/reproduce.md run the same experiments through Hydra, with more tasks.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import sem, t
from shared import CPU_DATA, Made, found, papers_tasks, simulator_of, total_ms

import neuroshard as ns
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.searching.searcher import Searcher
from neuroshard.stages.search.methods.ablations import OtherModels, WithModels
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.published.grid import GridSettings

BATCH_SIZE, DIMS = 4096, (4, 8, 16, 32, 64, 128)
METHODS = (
    *("random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy"),
    *("torchrec", "dreamshard", "autoshard", "neuroshard_published", "neuroshard"),
)
ABLATIONS = {
    "without column splits": "without_splits",
    "without communication models": "without_communication",
    "with single-table costs instead of the fused model": "with_single_table_costs",
    "without the grid search": "without_grid",
}
PUBLISHED = BeamSearch()
SETTINGS: dict[str, dict[int, Searcher]] = {
    "num_candidates": {value: BeamSearch(num_candidates=value) for value in (1, 2, 5, 10, 20, 40)},
    "beam_width": {value: BeamSearch(beam_width=value) for value in (1, 2, 3, 5, 10)},
    "max_splits": {value: BeamSearch(max_splits=value) for value in (0, 1, 2, 5, 10, 20)},
    "grid.points": {value: BeamSearch(grid=GridSettings(points=value)) for value in (0, 1, 3, 6, 11, 21)},
}


def papers_methods(_work: Path, small: bool) -> Made:
    """Return a table of the mean predicted cost of every method's plans, by number of devices and largest dim."""
    scales = [(4, 128)] if small else [(devices, dim) for devices in (4, 8) for dim in DIMS]
    count = 2 if small else 20
    costs = {
        (devices, dim): _means(METHODS, papers_tasks(devices, BATCH_SIZE, count, max_dim=dim))
        for devices, dim in scales
    }
    rows = [
        {"method": f"`{name}`"} | {f"{devices} devices, dims up to {dim}": f"{costs[devices, dim][name]:.2f}"
                                   for devices, dim in scales}
        for name in METHODS
    ]  # fmt: skip
    return Made(pd.DataFrame(rows), "Mean predicted costs in ms over 20 tasks, which all methods solve.")


def ablations(work: Path, small: bool) -> Made:
    """Return a table of the predicted cost of plans that the published search finds without one of its parts."""
    models = work / "single_tables"
    if not models.exists():
        ns.pretrain(CPU_DATA, models, max_tables=1)
    searchers: dict[str, str | Searcher] = {"whole": PUBLISHED, **ABLATIONS}
    searchers["with models trained on single tables"] = WithModels(PUBLISHED, OtherModels(str(models)))
    costs = _costs(list(searchers.values()), papers_tasks(4, BATCH_SIZE, 2 if small else 50))
    rows = [
        {
            "published search": name,
            "mean predicted cost, ms": f"{its.mean():.2f}",
            "more than the whole": "" if name == "whole" else f"{its.mean() / costs[0].mean() - 1:.1%}",
            "more expensive on": "" if name == "whole" else f"{(its > costs[0]).sum()} of {len(its)}",
        }
        for name, its in zip(searchers, costs, strict=True)
    ]
    return Made(pd.DataFrame(rows), "The whole models predict the costs of all plans; costs repeat exactly.")


def sensitivity(_work: Path, small: bool) -> Made:
    """Return a table of the predicted costs of the published search's plans, by value of each setting."""
    tasks, rows = papers_tasks(4, BATCH_SIZE, 2 if small else 30), list[dict[str, str]]()
    published = _costs([PUBLISHED], tasks)[0]
    for setting, searchers in SETTINGS.items():
        costs = _costs(list(searchers.values()), tasks)
        rows += [
            {
                "setting": f"`{setting}`",
                "value": f"{value}",
                "more than with the published value": f"{its.mean() - 1:+.2%} ± {_half_interval(its):.2%}",
            }
            for value, its in zip(searchers, costs / published, strict=True)
        ]
    return Made(pd.DataFrame(rows), "Means over 30 tasks with 95% intervals; costs repeat exactly.")


def _costs(searchers: Sequence[str | Searcher], tasks: Sequence[ns.Task]) -> FloatArray:
    """Return the predicted costs in ms of the plans that each searcher finds for each task, (searchers, tasks)."""
    simulator = simulator_of("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ns.NeuroShardWarning)
        every = [[total_ms(simulator, found(task, simulator, one)) for task in tasks] for one in searchers]
    return np.array(every)


def _means(searchers: Sequence[str], tasks: Sequence[ns.Task]) -> dict[str, float]:
    """Return the mean predicted cost in ms of each searcher's plans, by the name of the searcher."""
    return dict(zip(searchers, _costs(searchers, tasks).mean(axis=1).tolist(), strict=True))


def _half_interval(ratios: FloatArray) -> float:
    """Return half the width of the 95% interval of the mean of n ratios, by Student's t distribution."""
    return float(sem(ratios) * t.ppf(0.975, len(ratios) - 1))
