"""The columns of the tables in docs/results/ that pages show: at most seven, under short headers.

The files hold every column. A table without a view is shown whole.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import pandas as pd
from shared import DEFAULT_PLANNER

_WHOLE = "`cpu, framework=torchrec`"


class View(NamedTuple):
    """The name of a table's file, and a function that returns the part of the table to show."""

    table: str
    part: Callable[[pd.DataFrame], pd.DataFrame]


def view(name: str) -> View:
    """Return the view called `name`; if there is none, a view of the whole table called `name`."""
    return VIEWS.get(name, View(name, lambda frame: frame))


def _columns(table: str, headers: Mapping[str, str]) -> View:
    """Return a view that shows the columns in `headers`, in this order; `headers` maps a column in the file
    to its header on the page.
    """
    return View(table, partial(_renamed, headers=headers))


def _renamed(frame: pd.DataFrame, headers: Mapping[str, str]) -> pd.DataFrame:
    return frame[list(headers)].rename(columns=dict(headers))


def _by_model(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table of methods transposed: one row per model, one column per method."""
    return frame.set_index("plan by").T.rename_axis("tables of the model").reset_index()


def _with_words(frame: pd.DataFrame, words: Mapping[str, str]) -> pd.DataFrame:
    """Return the table with some cells of the first column replaced according to `words`."""
    return frame.replace({frame.columns[0]: dict(words)})


def _papers(devices: int) -> View:
    """Return the view of the table of the papers' methods for a number of devices, one column per largest dim."""
    dims = {f"{devices} devices, dims up to {dim}": f"dims up to {dim}" for dim in (4, 8, 16, 32, 64, 128)}
    return _columns("papers_methods", {"method": "method", **dims})


VIEWS: dict[str, View] = {
    "papers_4": _papers(4),
    "papers_8": _papers(8),
    "summary": _columns(
        "summary",
        {name: name for name in ("where", "NeuroShard's tables", "baseline", "mean", "median", "range", "models")},
    ),
    "summary_noise": _columns(
        "summary", {name: name for name in ("where", "NeuroShard's tables", "baseline", "measured", "noise")}
    ),
    "steps": _columns(
        "steps",
        {
            "tables of the model": "tables of the model",
            f"{DEFAULT_PLANNER}: step, ms": "baseline's step, ms",
            "of it dense": "of it dense",
            f"predicted step / {DEFAULT_PLANNER}": "predicted ratio",
            f"trained step / {DEFAULT_PLANNER}": "trained ratio",
            "lowest to highest of 6 builds": "range of 6 builds",
            "two equal plans differ by": "noise",
        },
    ),
    "steps_by_search": _columns(
        "steps",
        {
            "tables of the model": "tables of the model",
            f"trained step / {DEFAULT_PLANNER}": "any sharding type",
            "column-wise only": "column-wise only",
            "verified": "best of four, `verify=steps`",
            "two equal plans differ by": "noise",
        },
    ),
    "predicted_steps": _columns(
        "predicted_steps",
        {
            "tables of the model": "tables of the model",
            "plans": "plans",
            f"{_WHOLE}: mean error": "mean error",
            f"{_WHOLE}: tau": "tau",
            f"{_WHOLE}: tau beyond noise": "tau beyond noise",
            "tau between builds": "tau between builds",
            "two equal plans differ by": "noise",
        },
    ),
    "predicted_steps_kernels": _columns(
        "predicted_steps",
        {
            "tables of the model": "tables of the model",
            "`cpu`: mean error": "`cpu` alone: mean error",
            "`cpu`: tau": "tau",
            "`cpu`: tau beyond noise": "tau beyond noise",
            f"NeuroShard / {DEFAULT_PLANNER}": "NeuroShard's plan, ratio",
            f"best plan / {DEFAULT_PLANNER}": "best plan, ratio",
        },
    ),
    "steps_by_method": View("steps_by_method", _by_model),
    "mirrored": _columns(
        "mirrored",
        {
            "ranks": "ranks",
            "plan": "plan",
            "input, ms": "input, ms",
            "lookups, ms": "lookups, ms",
            "backward, ms": "backward, ms",
            "all but dense, ms": "all but dense, ms",
            "all but dense, predicted, ms": "predicted, ms",
        },
    ),
    "mirrored_rest": _columns(
        "mirrored",
        {
            "ranks": "ranks",
            "plan": "plan",
            "outputs, ms": "outputs, ms",
            "dense, ms": "dense, ms",
            "gradients, ms": "gradients, ms",
            "reducing data-parallel gradients, ms": "data-parallel all-reduce, ms",
            "data-parallel optimizer, ms": "data-parallel optimizer, ms",
        },
    ),
    "choices": View(
        "choices",
        partial(
            _with_words,
            words={
                "the default's: also no gains below three thousandths, and no exchanges more unbalanced than any "
                "measured": "the default's rule",
            },
        ),
    ),
    "unmeasured": View("unmeasured", partial(_with_words, words={"datasheet": "analytic models"})),
}
