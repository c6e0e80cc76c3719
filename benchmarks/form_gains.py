"""Gains of rows and copies over columns, promised and measured: by models as installed, and refined on this machine.

Two devices; tables are of kinds that nothing was tuned to, and the models are refined on others of these kinds. What
kernels and exchanges take is measured, both plans of a task by turns. A run that was stopped goes on.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from shared import CPU, Made, simulator_of
from training_steps import Tables, drawn, several_features

import neuroshard as ns
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.registry import config_of, instantiate_config
from neuroshard.stages.search.runs.in_parts import InParts

MODELS, BATCH_SIZE = "cpu", 4096
SAMPLES, TASKS, REFINED_ON, PASSES = 300, range(24), range(500, 518), 6
_LEAST = 0.005  # that a plan promises; less isn't looked at
KINDS: dict[str, Callable[[int, int], Tables]] = {  # of a seed and a number of tables, 16 to 49
    "32 to 98 of 10 to 3,000 rows": lambda seed, count: drawn(seed, 2 * count, (1, 3.5), (16, 32, 64), (1, 6)),
    "16 to 49 of 10 to 30,000 rows": lambda seed, count: drawn(seed, count, (1, 4.5), (16, 32, 64), (1, 10)),
    "16 to 49 of 64 columns": lambda seed, count: drawn(seed, count, (1.5, 5), (64,), (1, 8)),
    "16 to 49 that one to three features read": lambda seed, count: several_features(
        drawn(seed, count, (2, 4.5), (16, 32, 64), (1, 8))
    ),
    "5 to 16 of 64 or 128 columns": lambda seed, count: drawn(seed, max(count // 3, 4), (2, 4.5), (64, 128), (1, 30)),
    "16 to 49 of 8 to 128 columns": lambda seed, count: drawn(seed, count, (1, 6), (8, 16, 32, 64, 128), (1, 12)),
}


def _kind(number: int) -> str:
    """Choose the kind of task `number`: by turns."""
    return list(KINDS)[number % len(KINDS)]


def _tables(number: int) -> Tables:
    count = int(np.random.default_rng([11, number]).integers(16, 50))
    tables = KINDS[_kind(number)](100 + number, count)
    reuse = (ns.zipf_reuse(table.rows, round(BATCH_SIZE * table.pooling_factor)) for table in tables)
    each = zip(tables, reuse, strict=True)
    return tuple(replace(table, name=f"k{number}_{table.name}", reuse=its) for table, its in each)


def _task(number: int) -> ns.Task:
    return ns.Task(_tables(number), ns.Topology(2, "6GiB"), BATCH_SIZE)


def form_gains(work: Path, small: bool) -> Made:
    """Compare gains that are promised with those that come true: a table of `results.py`."""
    samples, tasks = (40, range(2)) if small else (SAMPLES, TASKS)
    asked = {"model": MODELS, "samples": samples, "out": str(work / "refined")}
    replace(instantiate_config(config_of("refine", asked).run), tasks=tuple(map(_task, REFINED_ON))).run()
    names = {"as installed": MODELS, "refined": str(work / "refined")}
    measured = {name: _measured(work / f"{name}.csv", model, tasks) for name, model in names.items()}
    last = measured[list(names)[-1]]
    lost = last[(last["promised"] > 0.05) & (last["came_true"] < -0.02)]
    single = f"Standard errors of single gains: {last['error'].mean():.1%} in the mean."
    beyond = f"After refining, {len(lost)} of {len(last)} plans predicted to gain above 5% lost more than 2%"
    return Made(
        pd.DataFrame([_row(name, its) for name, its in measured.items()]),
        f"{single} {beyond}; the default search takes {lost['default_takes'].sum()} of these.",
    )


def _row(name: str, gains: pd.DataFrame) -> dict[str, str]:
    """Average gains, promised and true, by kind of task."""
    by_kind = {kind: gains[gains["kind"] == kind] for kind in KINDS} | {"**all**": gains}
    cells = {kind: f"{its['promised'].mean():.1%}, {its['came_true'].mean():.1%}" for kind, its in by_kind.items()}
    return {"models: gain predicted, measured": name, **cells, "worst measured": f"{gains['came_true'].min():.1%}"}


def _measured(path: Path, model: str, tasks: Sequence[int]) -> pd.DataFrame:
    """Measure, in a row each, the tasks whose plan in all forms is predicted to cost less than the one in columns."""
    simulator, done = simulator_of(model), pd.read_csv(path) if path.exists() else pd.DataFrame()
    rows = done.to_dict("records")
    for number in tasks:
        if any(row["task"] == number for row in rows):
            continue
        task = _task(number)
        columns, forms = (
            ns.search(task, simulator, forms=its, choice=None) for its in (["columns"], ["columns", "rows", "copies"])
        )
        before, after = (cost.total_ms for cost in simulator.costs(task, [columns, forms]))
        promised = 1 - after / before
        ratios = _ratios(columns, forms, number) if promised > _LEAST else np.array([np.nan])
        rows.append(
            {
                "task": number,
                "kind": _kind(number),
                "promised": promised,
                "came_true": 1 - np.median(ratios),
                "error": ratios.std() / np.sqrt(len(ratios)),
                "default_takes": ns.search(task, simulator).forms == forms.forms,
            }
        )
        pd.DataFrame(rows).to_csv(path, index=False)
    return pd.DataFrame(rows).dropna()


def _ratios(columns: Plan, forms: Plan, number: int) -> np.ndarray:
    """Measure what one plan takes over what the other does, one after the other, (PASSES,)."""
    ratios = []
    opened = InParts().opened([columns.task], CPU, False, print)
    with TemporaryDirectory() as run, opened as measure:
        for number_of_pass in range(PASSES):
            plans = [columns, forms][:: -1 if number_of_pass % 2 else 1]
            measured = measure(plans, 1000 * number + number_of_pass, lambda _: None, Path(run))
            its = dict(zip(map(id, plans), measured, strict=True))
            ratios.append(its[id(forms)].total_ms / its[id(columns)].total_ms)
    return np.array(ratios)
