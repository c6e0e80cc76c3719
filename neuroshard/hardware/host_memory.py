"""Timing tables in host memory: other lookups every time, in which the same rows are popular, through a warm cache."""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil

import numpy as np
import torch

from neuroshard.hardware.drawn_lookups import PopularRows, held
from neuroshard.hardware.inputs import Inputs, Prepared, inputs_of
from neuroshard.records.samples import ComputeSample
from neuroshard.words.placement import Tier

LookUp = Callable[[torch.Tensor, torch.Tensor], object]  # of indices and offsets


def host_run(
    train: Callable[[Inputs], None],
    look_up: LookUp,
    sample: ComputeSample,
    device: torch.device,
    rng: np.random.Generator,
) -> Prepared:
    """Prepare a call over tables in host memory, each time other lookups: the same would all be in the cache.

    Args:
        train: one step with some inputs.
        look_up: the forward call alone; a cache is first filled with the most popular rows by it.
    """
    popular = [PopularRows.of(table, sample.batch_size, device) for table in sample.tables]
    generator = torch.Generator(device).manual_seed(int(rng.integers(1 << 62)))
    if sample.home.tier is Tier.CACHED:
        _fill(look_up, sample, popular)

    def drawn() -> Inputs:
        """Draw lookups by the popularity of rows."""
        return inputs_of(sample, held(sample, [its.batch(generator) for its in popular]), generator)

    first = drawn()
    return Prepared(partial(train, first), first.seen, lambda: partial(train, drawn()))


def _fill(look_up: LookUp, sample: ComputeSample, popular: Sequence[PopularRows]) -> None:
    """Look up as many rows of each table as its share of the cache holds, the most popular last, some at a time."""
    hottest = [its.hottest(sample.home.cached_share) for its in popular]
    rows = [its for its, _ in held(sample, [(its, torch.ones_like(its)) for its in hottest])]
    turns = max(ceil(len(its) / many.lookups) for its, many in zip(rows, popular, strict=True))
    for turn in range(turns):
        chunks = [its.tensor_split(turns)[turn] for its in rows]
        lengths = torch.zeros(sum(table.features for table in sample.tables), dtype=torch.int64)
        first = 0
        for chunk, table in zip(chunks, sample.tables, strict=True):  # all in the list of the table's first feature
            lengths[first] = len(chunk)
            first += table.features
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        indices = torch.cat(chunks)
        with torch.no_grad():
            look_up(indices, offsets.to(indices.device))
