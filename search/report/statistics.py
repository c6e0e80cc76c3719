"""Methods compared on the tasks that all of them solved."""

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from neuroshard.arrays import FloatArray

_LEVEL = 0.95
_SETTING = re.compile(r"^(\w+)=([\d.]+)$")


def comparisons(frame: pd.DataFrame, group: str, cost: str) -> pd.DataFrame:
    """One row for each method in each group.

    Args:
        frame: with the columns `group`, method, task, `cost`, seconds, solved.
        group: what tells tasks apart.
        cost: the column of costs, ms.

    Returns:
        group, method, tasks, solved, common (tasks that all solved), mean_ms with half the width of its 95% interval
        (ci_ms), saved (mean over common tasks of what the group's cheapest method costs less, relative) with its
        interval (saved_ci) and p, the probability of so large a difference if there were none (Wilcoxon's signed-rank
        test; NaN for the cheapest itself), median seconds of search.
    """
    rows = [row for name, part in frame.groupby(group, sort=False) for row in _compared(str(name), part, cost)]
    return pd.DataFrame(rows)


def _compared(group: str, part: pd.DataFrame, cost: str) -> Iterator[dict[str, object]]:
    solved = part[part["solved"].astype(bool)]
    costs = solved.pivot_table(index="task", columns="method", values=cost).reindex(columns=part["method"].unique())
    common = costs.dropna()
    means = common.mean()
    best = common[means.idxmin()].to_numpy() if len(common) else np.zeros(0)
    for method in means.sort_values().index if len(common) else costs.columns:
        mine, of_method = common[method].to_numpy(), part[part["method"] == method]
        saved = 1 - best / mine
        yield {
            "group": group,
            "method": method,
            "tasks": len(of_method),
            "solved": int(of_method["solved"].sum()),
            "common": len(common),
            "mean_ms": _mean(mine),
            "ci_ms": interval(mine),
            "saved": _mean(saved),
            "saved_ci": interval(saved),
            "p": _p_value(best, mine),
            "seconds": float(of_method["seconds"].median()),
        }


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def interval(values: FloatArray) -> float:
    """Half the width of the mean's 95% interval (Student's t); NaN for fewer than two values."""
    if len(values) < 2:
        return float("nan")
    return float(stats.sem(values) * stats.t.ppf((1 + _LEVEL) / 2, len(values) - 1))


def _p_value(one: FloatArray, other: FloatArray) -> float:
    different = one != other
    if different.sum() < 2:
        return float("nan")
    return float(stats.wilcoxon(one[different], other[different]).pvalue)


def sensitivities(searched: pd.DataFrame) -> pd.DataFrame:
    """Of methods that are named "setting=value", on the tasks that all values of a setting solved.

    Returns:
        tasks, setting, value, mean_ms; relative: mean over tasks of the cost over the task's mean over all values, less
        1, with half the width of its 95% interval (relative_ci): tasks differ more than settings do.
    """
    named = searched["method"].astype(str).str.extract(_SETTING.pattern)
    frame = searched.assign(setting=named[0], value=named[1].astype(float))[named[0].notna()]
    rows = [
        row
        for (tasks, setting), part in frame.groupby(["tasks", "setting"], sort=False)
        for row in _by_value(str(tasks), str(setting), part[part["solved"].astype(bool)])
    ]
    return pd.DataFrame(rows, columns=["tasks", "setting", "value", "mean_ms", "relative", "relative_ci"])


def _by_value(tasks: str, setting: str, part: pd.DataFrame) -> Iterator[dict[str, object]]:
    costs = part.pivot_table(index="task", columns="value", values="predicted_ms").dropna()
    relative = costs.div(costs.mean(axis=1), axis=0) - 1
    for value in costs:
        yield {
            "tasks": tasks,
            "setting": setting,
            "value": value,
            "mean_ms": _mean(costs[value].to_numpy()),
            "relative": _mean(relative[value].to_numpy()),
            "relative_ci": interval(relative[value].to_numpy()),
        }
