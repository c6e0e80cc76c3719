"""Compares searches that accept all predicted gains with the default search, if the cost models have no error margins:
a table of `results.py`.

Models are of four kinds: networks fitted to few and noisy samples of a made-up device; the same networks on another
made-up device, whose every size and time is up to two or three times as large or small; the papers' networks there; and
the datasheet of an H100 on made-up GPUs. No model has margins. Tasks are of kinds that nothing was tuned to
(`tests/kit/kinds.py`), on 8 devices. Each is searched by the published search, by the default one that takes every
predicted gain, and by the default one as it is, which assumes margins; all plans are costed by the true costs.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from shared import Made, found

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from choices import Setting, on_devices

from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from tests.kit.devices import MADE_UP, MadeUpDevice
from tests.kit.kinds import KINDS, task_of

_DEVICES, _SEEDS, _TASKS = 8, 3, 2 * len(KINDS)
_TIMES = {"cpu": 3.0, "gpu": 2.0}  # by which sizes and times of another device differ, at most
_LINK_TIMES = 2.0
_IMPROVEMENT = Improvement(perturbations=3)
_SEARCHERS = {
    "every gain": NeuroShard(acceptance=None, improvement=_IMPROVEMENT),
    "default": NeuroShard(improvement=_IMPROVEMENT),
}


@dataclass(frozen=True)
class Case:
    """Cost models without error margins, and the made-up device for which they are used."""

    models: CostModels
    device: MadeUpDevice


def judged_without_margins(_work: Path, small: bool) -> Made:
    """Return a table of the true costs of each search's plans relative to the published search's plans, for
    every kind of cost models.
    """
    rows, seeds, count = [], 1 if small else _SEEDS, 2 if small else _TASKS
    for kind, cases in _KINDS.items():
        of_seeds = [np.concatenate([_judged(case, seed, count) for case in cases(seed)]) for seed in range(seeds)]
        for number, name in enumerate(_SEARCHERS):
            predicted, true = (np.concatenate(of_seeds)[:, number, which] for which in (0, 1))
            means = [(its[:, number, 1].mean() - 1) for its in of_seeds]
            taken = predicted != 1
            rows.append(
                {
                    "models": kind,
                    "takes": name,
                    "tasks": str(len(true)),
                    "predicted over published": f"{predicted.mean() - 1:+.1%}",
                    "true over published": f"{true.mean() - 1:+.1%} ({min(means):+.1%} to {max(means):+.1%})",
                    "other plan taken": f"{taken.mean():.0%}",
                    "true, where taken": f"{true[taken].mean() - 1:+.1%}" if taken.any() else "",
                }
            )
    return Made(
        pd.DataFrame(rows),
        f"Means over tasks, with the range over {seeds} seeds; {_DEVICES} devices, no models have margins.",
    )


def _judged(case: Case, seed: int, count: int) -> FloatArray:
    """Return the cost of each searcher's plan relative to the published search's plan, predicted and true,
    for some tasks, (T, S, 2).
    """
    simulator, truth, ratios = Simulator(case.models), Simulator(case.device.truth), []
    for number in range(seed * count, (seed + 1) * count):
        task = on_devices(task_of(number), case.device, _DEVICES)
        plans = [found(task, simulator, searcher) for searcher in (BeamSearch(), *_SEARCHERS.values())]
        if plans[0] is not None:
            kept = [plan or plans[0] for plan in plans]
            ms = np.array([[cost.total_ms for cost in by.costs(task, kept)] for by in (simulator, truth)])
            ratios.append((ms[:, 1:] / ms[:, :1]).T)
    return np.array(ratios).reshape(-1, len(_SEARCHERS), 2)


def _few(seed: int) -> Iterator[Case]:
    for name in MADE_UP:
        yield Case(_fitted(name, seed), MADE_UP[name])


def _elsewhere(seed: int, **settings: str) -> Iterator[Case]:
    for name in MADE_UP:
        yield Case(_fitted(name, seed, **settings), _another(name, seed))


def _papers_elsewhere(seed: int) -> Iterator[Case]:
    yield from _elsewhere(seed, compute_model="paper", comm_model="paper")


def _datasheet(seed: int) -> Iterator[Case]:
    yield Case(CostModels.load("roofline:h100"), _another("gpu", seed))


_KINDS = {
    "networks, few samples": _few,
    "networks of another device": _elsewhere,
    "the papers' networks of another device": _papers_elsewhere,
    "datasheet": _datasheet,
}


@cache
def _fitted(name: str, seed: int, **settings: str) -> CostModels:
    """Return cost models without error margins, fitted to 120 samples with 10% noise."""
    fitted = Setting(name, _DEVICES, 120, 0.1, seed=seed, settings=tuple(settings.items())).fitted()
    return replace(fitted, margins=None)


def _another(name: str, seed: int) -> MadeUpDevice:
    """Return a made-up device of the same kind in which every size and time is multiplied by a random factor."""
    rng, usual = np.random.default_rng([11, seed]), MADE_UP[name]
    links = (
        _varied(one, rng, _LINK_TIMES, ("latency_ms", "link_bytes_per_ms")) for one in (usual.forward, usual.backward)
    )
    forward, backward = links
    return replace(usual, compute=_varied(usual.compute, rng, _TIMES[name]), forward=forward, backward=backward)


def _varied(usual: Any, rng: np.random.Generator, times: float, names: tuple[str, ...] = ()) -> Any:
    drawn = names or [field.name for field in fields(usual) if field.name != "rest_vectors"]
    return replace(usual, **{name: getattr(usual, name) * times ** rng.uniform(-1, 1) for name in drawn})
