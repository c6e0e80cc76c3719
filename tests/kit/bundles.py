"""Models with all that a bundle can hold, in tests."""

from dataclasses import replace

from neuroshard.models import CostModels
from neuroshard.models.trust import Margin, Margins, Range, Ranges
from neuroshard.records.samples import CommSample, ComputeSample
from neuroshard.testing import random_ensemble, random_set_comm, toy_tables


def newer_models() -> CostModels:
    """Make an ensemble, and exchanges of any number of devices and batch size, with ranges and margins."""
    samples = [ComputeSample(toy_tables(n, seed=n), 64 * n) for n in range(1, 4)]
    ranges = Ranges.of(samples, [CommSample.of_columns((8, 16), (0.0, 1.0), 64)])
    ranges = replace(ranges, others={"compute.rows": (Range("rows", 0.0, 1.0),)})
    margins = Margins(Margin(0.1, 1.5), Margin(0.2, 2.0), Margin(0.3, 2.5))
    return CostModels(random_ensemble(), random_set_comm(), random_set_comm(1), None, ranges, margins)
