"""Statistics for reports: compares methods on the tasks that all methods solved, and compares the values
of a setting in a sweep.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from neuroshard.plumbing.arrays import FloatArray

_LEVEL = 0.95
_COMPARED = [
    "group", "method", "tasks", "solved", "common", "mean_ms", "ci_ms", "saved", "saved_ci", "p", "seconds", "caveat",
]  # fmt: skip
_CURVE = ["tasks", "setting", "value", "solved", "mean_ms", "relative", "relative_ci", "caveat"]


def comparisons(frame: pd.DataFrame, group: str, cost: str) -> pd.DataFrame:
    """Compare sharding methods by mean cost. Return a table with one row for each method in each group of tasks.

    Args:
        frame: table with the columns `group`, method, task, `cost`, seconds, solved, and caveat if costs may have one.
        group: the column that distinguishes sets of tasks.
        cost: the column of costs, in ms.

    Returns:
        group, method, tasks, solved, common (number of tasks that all methods solved that solved any), mean_ms with
            half the width of its 95% interval (ci_ms), saved (relative saving of the group's cheapest method, mean over
            common tasks) with its interval (saved_ci) and p, the probability of such a large difference by chance
            (Wilcoxon's signed-rank test; NaN for the cheapest method itself), median seconds of search, and the caveats
            of the costs. Values of methods that solved no task are NaN.
    """
    rows = [row for name, subset in frame.groupby(group, sort=False) for row in _compared(str(name), subset, cost)]
    return pd.DataFrame(rows, columns=_COMPARED)


def _compared(group: str, subset: pd.DataFrame, cost: str) -> Iterator[dict[str, object]]:
    solved = subset[subset["solved"].astype(bool)]
    costs = solved.pivot_table(index="task", columns="method", values=cost).reindex(columns=subset["method"].unique())
    common = costs.dropna(axis=1, how="all").dropna()
    means = common.mean()
    best = common[means.idxmin()].to_numpy() if len(common) else np.zeros(0)
    ranked = means.sort_values().index if len(common) else costs.columns
    for method in [*ranked, *costs.columns.difference(ranked, sort=False)]:
        mine = common[method].to_numpy() if method in common else np.zeros(0)
        theirs, of_method = best[: len(mine)], subset[subset["method"] == method]
        saved = 1 - np.divide(theirs, mine, out=np.ones_like(mine), where=mine > 0)
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
            "p": _p_value(theirs, mine),
            "seconds": float(of_method["seconds"].median()),
            "caveat": _caveats(of_method),
        }


def _caveats(subset: pd.DataFrame) -> str | None:
    """Return the different caveats of the costs in `subset`, joined by semicolons; None if there are no caveats."""
    return "; ".join(subset["caveat"].dropna().unique()) or None if "caveat" in subset else None


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def interval(values: FloatArray) -> float:
    """Return half the width of the 95% interval of the mean of `values` (Student's t);
    NaN for fewer than two values.
    """
    if len(values) < 2:
        return float("nan")
    return float(stats.sem(values) * stats.t.ppf((1 + _LEVEL) / 2, len(values) - 1))


def _p_value(first_ms: FloatArray, second_ms: FloatArray) -> float:
    """Return the p-value of Wilcoxon's signed-rank test for the costs of two methods on the same tasks. Return NaN if
    fewer than two tasks have different costs.
    """
    different = first_ms != second_ms
    if different.sum() < 2:
        return float("nan")
    return float(stats.wilcoxon(first_ms[different], second_ms[different]).pvalue)


def in_sweep(searched: pd.DataFrame) -> "pd.Series[bool]":
    """Return a mask for n searches, (n,): True if the search is part of a sweep of a setting. A sweep is two or more
    searches with the same tasks that give the setting different values.
    The table `searched` has a row for each search, with the columns tasks, setting and value.
    """
    values = searched.groupby(["tasks", "setting"])["value"].transform("nunique")
    return searched["setting"].notna() & (values > 1)


def sensitivities(searched: pd.DataFrame) -> pd.DataFrame:
    """Compare the costs of plans between the values of each setting in a sweep. Return a table with one row for each
    value of each setting on each set of tasks. Mean costs count only the tasks that were solved with all values.

    Returns:
        tasks, setting, value, solved (number of tasks), mean_ms; relative: mean over tasks of the cost relative to the
            task's mean over all values, minus 1, with half the width of its 95% interval (relative_ci). Relative costs
            are used because tasks differ more than settings do. NaN if no task was solved with every value. caveat: the
            caveats of the costs.
    """
    rows = [
        row
        for (tasks, setting), subset in searched[in_sweep(searched)].groupby(["tasks", "setting"], sort=False)
        for row in _by_value(str(tasks), str(setting), subset)
    ]
    return pd.DataFrame(rows, columns=_CURVE)


def _by_value(tasks: str, setting: str, subset: pd.DataFrame) -> Iterator[dict[str, object]]:
    solved, values = subset[subset["solved"]], np.sort(subset["value"].unique())
    costs = solved.pivot_table(index="task", columns="value", values="predicted_ms").reindex(columns=values).dropna()
    relative = costs.div(costs.mean(axis=1), axis=0) - 1
    for value in values:
        yield {
            "tasks": tasks,
            "setting": setting,
            "value": float(value),
            "solved": int((solved["value"] == value).sum()),
            "mean_ms": _mean(costs[value].to_numpy()),
            "relative": _mean(relative[value].to_numpy()),
            "relative_ci": interval(relative[value].to_numpy()),
            "caveat": _caveats(subset[subset["value"] == value]),
        }
