"""The sections of a report: each section has a table, pictures, and a sentence that says how to read the table."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from neuroshard.models.trust import LEVEL
from neuroshard.plans.picture import curves_png
from neuroshard.stages.search.report.figures import MOST_BARS, comparison_bars, scatter, sensitivity_curve
from neuroshard.stages.search.report.page import Picture, Section, in_words

_LEAST_POINTS = 3  # minimum number of points for a scatter plot or a rank correlation
_HOW = (
    "Means are of the tasks that they are compared on: those solved by every method that solved any. ± is half of "
    "Student's 95% interval. “Cheapest saves”: how much less the cheapest method costs, task by task; p: Wilcoxon's "
    "signed-rank test of those pairs."
)
_COMPARED = {
    "method": ("method", ""),
    "solved": ("solved", "d"),
    "of": ("tasks", "d"),
    "compared on": ("common", "d"),
    "mean ms": ("mean_ms", ".3f"),
    "± ms": ("ci_ms", ".3f"),
    "cheapest saves": ("saved", ".1%"),
    "± saved": ("saved_ci", ".1%"),
    "p": ("p", ".2g"),
    "search s": ("seconds", ".3f"),
    "these costs are": ("caveat", ""),
}
_CURVE = {
    "tasks": ("tasks", ""),
    "setting": ("setting", ""),
    "value": ("value", "g"),
    "solved": ("solved", "d"),
    "mean ms": ("mean_ms", ".3f"),
    "beside the task's mean": ("relative", "+.2%"),
    "±": ("relative_ci", ".2%"),
    "these costs are": ("caveat", ""),
}
_TRUST = {
    "plans": ("plans", "d"),
    "mean error": ("mean", ".1%"),
    "median error": ("median", ".1%"),
    "Kendall's tau": ("tau", ".3f"),
    "with an interval": ("judged", "d"),
    "inside it": ("inside", "d"),
    "expected inside": ("expected", ".0f"),
}
_TRAINING = {"run": ("run", ""), "best validation ms": ("best", ".3f"), "rounds": ("rounds", "d")}


def compared_shown(compared: pd.DataFrame, title: str, group: str, axis: str) -> Section | None:
    """Return the section of a report that compares the costs of methods; None if there are no methods. The section has
    a picture for each group with costs of two or more methods. A group is a set of tasks or an evaluation.

    Args:
        compared: the result of `comparisons`.
        title: title of the section.
        group: title of the column that distinguishes groups.
        axis: name of the costs.
    """
    if compared.empty:
        return None
    pictures = list[Picture]()
    for name, subset in compared.groupby("group", sort=False):
        if (count := int(subset["mean_ms"].notna().sum())) > 1:
            most = f", the cheapest {MOST_BARS} of {count:,} methods" if count > MOST_BARS else ""
            bars = comparison_bars(subset, axis)
            pictures.append(Picture(f"{title.lower()}-{len(pictures)}", f"{axis}, {name}{most}", bars))
    return Section(title, _HOW, in_words(compared, {group: ("group", ""), **_COMPARED}), tuple(pictures))


def sensitivities_shown(curves: pd.DataFrame) -> Section | None:
    """Return the section on sweeps over numeric values of a setting; None if there are no sweeps.

    A sweep has a curve if a task was solved with every value.
    """
    if curves.empty:
        return None
    pictures = list[Picture]()
    for (tasks, setting), subset in curves.groupby(["tasks", "setting"], sort=False):
        if subset["relative"].notna().any():
            curve = sensitivity_curve(subset, str(setting))
            pictures.append(Picture(f"sensitivity-{len(pictures)}", f"cost by {setting}, {tasks}", curve))
    text = "Means and differences are of the tasks that were solved with every value of the setting."
    return Section("Sensitivity", text, in_words(curves, _CURVE), tuple(pictures))


def trust_shown(measured: pd.DataFrame) -> Section | None:
    """Return the section that compares predicted costs with measured costs; None if no plan has both costs."""
    known = measured.dropna(subset=["predicted_ms", "measured_ms"])
    known = known[known["measured_ms"] > 0]
    if known.empty:
        return None
    enough = len(known) >= _LEAST_POINTS
    pictures = (Picture("scatter", "every plan that was run", scatter(known)),) if enough else ()
    text = f"Errors are of the predicted costs; intervals are meant to hold {LEVEL:.0%} of the measured costs."
    return Section("Predicted against measured", text, in_words(_trust(known), _TRUST), pictures)


def _trust(known: pd.DataFrame) -> pd.DataFrame:
    """Return a table of one row that compares predicted costs with measured costs: the mean and median error, Kendall's
    tau, and how many measured costs are within the margins of the predicted costs. Unknown values are NaN.
    """
    error = (known["predicted_ms"] / known["measured_ms"] - 1).abs()
    tau = known["predicted_ms"].corr(known["measured_ms"], method="kendall") if len(known) >= _LEAST_POINTS else np.nan
    judged = known.dropna(subset=["margin_ms"])
    inside = ((judged["predicted_ms"] - judged["measured_ms"]).abs() <= judged["margin_ms"]).sum()
    of_judged = (len(judged), inside, LEVEL * len(judged)) if len(judged) else (None, None, None)
    row = (len(known), error.mean(), error.median(), tau, *of_judged)
    return pd.DataFrame([row], columns=[name for name, _ in _TRUST.values()])


def learning_shown(learned: pd.DataFrame, references: Mapping[str, dict[str, float]]) -> Section | None:
    """Return the section on the training of learned policies, by round; None if there are no trainings.

    Args:
        learned: one row for each round, as in `Gathered`.
        references: ms of other methods by run; they are drawn if all runs have the same.
    """
    if learned.empty:
        return None
    rounds = learned.assign(valid_ms=learned["valid_ms"].replace(np.inf, np.nan)).groupby("run", sort=False)
    table = in_words(rounds["valid_ms"].agg(best="min", rounds="size").reset_index(), _TRAINING)
    curves = [(str(subset["method"].iloc[0]), subset["valid_ms"].to_numpy()) for _, subset in rounds]
    if all(np.isnan(ms).all() for _, ms in curves):
        return Section("Learned policies", "No round's policy found a plan for a validation task.", table)
    common = list(references.values())
    shared = common[0] if all(other == common[0] for other in common) else {}
    picture = Picture("learning", "cost of the policy's plans, by round", curves_png(curves, shared))
    return Section("Learned policies", "", table, (picture,))
