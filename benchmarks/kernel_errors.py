"""Errors of a compute model on kernel calls that were measured on one H100 and that no model was fitted
to: tables of two pages.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import kendalltau

from neuroshard.measure.store import DataDirectory
from neuroshard.measure.store.noise import fastest
from neuroshard.measure.store.sample_loads import loads_of
from neuroshard.measure.store.samples import ComputeSample, Measurement
from neuroshard.models import ComputeModel

DATA = Path(__file__).resolve().parent / "data"
FITTED = ("h100", "h100_wide", "h100_hot", "h100_large", "h100_many", "h100_features")
KINDS = {"": FITTED, ", fp16": ("h100_fp16",)}  # of calls to test, and the data that has them


class Errors(NamedTuple):
    """The errors of a model on kernel calls: the number of calls, the mean relative error, and Kendall's tau."""

    calls: int
    error: float
    tau: float


def errors(
    model: ComputeModel, kinds: Mapping[str, Sequence[str]] = KINDS, splits: Sequence[str] = ("test",)
) -> dict[str, Errors]:
    """Return the errors of a model for each kind of kernel call. `kinds` gives the data directories of each kind; by
    default, fp16 tables are a kind of their own.
    """
    found = {}
    for kind, names in kinds.items():
        test = [one for split in splits for one in _measured(names, split)]
        for call in sorted({one.sample.call.name for one in test}):
            its = [one for one in test if one.sample.call.name == call]
            took_ms = np.array([one.typical_ms for one in its])
            predicted = model.predict(loads_of([one.sample for one in its]))
            off, tau = np.abs(predicted / took_ms - 1), kendalltau(predicted, took_ms).statistic
            found[f"{call}{kind}"] = Errors(len(its), float(off.mean()), float(tau))
    return found


def _measured(names: Sequence[str], split: str) -> list[Measurement[ComputeSample]]:
    """Return the measurements of a split ("train", "valid" or "test") from several data directories, without
    errors and second passes.
    """
    every = (one for name in names for one in fastest(DataDirectory(DATA / name).compute().each()))
    return [one for one in every if one.split == split and one.error is None and not one.second_pass]
