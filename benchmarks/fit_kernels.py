"""Fits the times of threads that all datasheets share to what one H100 measured: prints `Kernels`, and its errors.

usage: fit_kernels.py    (a minute)

Calls of pooled columns that `benchmarks/data` trains with; errors are those of its test calls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import kendalltau

from neuroshard.models import CostModels
from neuroshard.models.published_points import Widths, kernel_points
from neuroshard.models.roofline import Kernels, RooflineCompute
from neuroshard.records import DataDirectory
from neuroshard.records.sample_loads import loads_of
from neuroshard.records.samples import ComputeSample, Measurement
from neuroshard.words.form import IN_COLUMNS

DATA = Path(__file__).resolve().parent / "data"
FITTED = ("h100", "h100_wide", "h100_hot", "h100_large", "h100_many", "h100_features")
KINDS = {"": FITTED, ", fp16": ("h100_fp16",)}  # of calls to test, and the data that has them
NUMBERS = ("backward_call_ms", "bag_ns", "lookup_ns", "row_ns", "hot_row_ns")


def main() -> None:
    """Fit to logarithms of times, outliers counting less, and print what came out."""
    sheet = CostModels.load("roofline:h100").compute
    training = [one for one in measured(FITTED, "train") if one.sample.call == IN_COLUMNS]
    sets, took_ms = loads_of([one.sample for one in training]), np.array([one.typical_ms for one in training])
    start = asdict(sheet.kernels)

    def off(logs: np.ndarray) -> np.ndarray:
        return np.log(with_kernels(sheet, figures(logs)).predict(sets) / took_ms)

    first = np.log([*(start[name] for name in NUMBERS), *start["saved"]])
    kernels = figures(least_squares(off, first, loss="soft_l1", f_scale=0.05).x)
    print(f"{len(training)} calls: {kernels}")
    for call, its in errors(with_kernels(sheet, kernels)).items():
        print(f"{call}: {its.calls} calls, off by {its.error:.1%}, tau {its.tau:.2f}")


def figures(logs: np.ndarray) -> Kernels:
    """Return the kernels of so many logarithms."""
    numbers = np.exp(logs).tolist()
    return Kernels(**dict(zip(NUMBERS, numbers, strict=False)), saved=tuple(numbers[len(NUMBERS) :]))


def with_kernels(sheet: RooflineCompute, kernels: Kernels) -> RooflineCompute:
    """Return a datasheet with these kernels, and with the published widths that are left beside them."""
    widths = Widths.of(kernel_points(), kernels.forward_call_ms, kernels.bag_ns)
    return replace(sheet, kernels=kernels, widths=widths)


class Errors(NamedTuple):
    """How near a model comes to calls: how many there are, the mean error, and Kendall's tau."""

    calls: int
    error: float
    tau: float


def errors(
    model: RooflineCompute, kinds: Mapping[str, Sequence[str]] = KINDS, splits: Sequence[str] = ("test",)
) -> dict[str, Errors]:
    """Compute the errors of calls of each kind, from the data of each of these names; of fp16 apart."""
    found = {}
    for kind, names in kinds.items():
        test = [one for split in splits for one in measured(names, split)]
        for call in sorted({one.sample.call.name for one in test}):
            its = [one for one in test if one.sample.call.name == call]
            took_ms = np.array([one.typical_ms for one in its])
            predicted = model.predict(loads_of([one.sample for one in its]))
            off, tau = np.abs(predicted / took_ms - 1), kendalltau(predicted, took_ms).statistic
            found[f"{call}{kind}"] = Errors(len(its), float(off.mean()), float(tau))
    return found


def measured(names: Sequence[str], split: str) -> list[Measurement[ComputeSample]]:
    """Read the measurements of a split, from several directories of data."""
    every = (one for name in names for one in DataDirectory(DATA / name).compute().read())
    return [one for one in every if one.split == split and one.error is None and not one.second_pass]


if __name__ == "__main__":
    main()
