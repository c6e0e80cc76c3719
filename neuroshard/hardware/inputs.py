"""The inputs of every kernel that is measured, and what it gives back ready to run.

Tables in host memory are given other lookups every time, in which the same rows are popular, through a warm cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType

from neuroshard.hardware.drawn_lookups import PopularRows, draw_batch, held, seen_in
from neuroshard.plumbing.errors import UserError
from neuroshard.records.samples import BlockLookups, ComputeSample
from neuroshard.words.placement import Tier

LookUp = Callable[[torch.Tensor, torch.Tensor], object]  # of indices and offsets
PRECISIONS = {4: (SparseType.FP32, torch.float32), 2: (SparseType.FP16, torch.float16)}
LEARNING_RATE = 1e-3
FUSED = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}  # optimizers


@dataclass(frozen=True)
class Prepared:
    """A sample ready to be timed.

    Attributes:
        run: trains its tables once.
        seen: what is looked up in its blocks, if any.
        afresh: draws other lookups, and gives what trains the tables with them; None where it is `run` every time.
    """

    run: Callable[[], None]
    seen: tuple[BlockLookups, ...]
    afresh: Callable[[], Callable[[], None]] | None = None

    def next_run(self) -> Callable[[], None]:
        """Return what is to be timed next, with lookups drawn again where the sample asks for it."""
        return self.run if self.afresh is None else self.afresh()


@dataclass(frozen=True, eq=False)
class Inputs:
    """What one call reads.

    Attributes:
        indices: (L,) rows looked up, table by table.
        offsets: (F x batch size + 1,) where the lookups of each of all tables' F features begin in each sample.
        gradient: (batch size, columns of all features) of the pooled embeddings; of sequence tables, (L, columns).
        seen: what is looked up in each of the sample's blocks, if it has any.
    """

    indices: torch.Tensor
    offsets: torch.Tensor
    gradient: torch.Tensor
    seen: tuple[BlockLookups, ...]


def draw_inputs(sample: ComputeSample, device: torch.device, rng: np.random.Generator) -> Inputs:
    """Draw the inputs of one call, on the device; the state of `rng` fixes them."""
    generator = torch.Generator(device).manual_seed(int(rng.integers(1 << 62)))
    return inputs_of(sample, draw_batch(sample, generator), generator)


def inputs_of(
    sample: ComputeSample, drawn: list[tuple[torch.Tensor, torch.Tensor]], generator: torch.Generator
) -> Inputs:
    """Make the inputs of one call with the indices and lengths (n,) of the sample's tables."""
    lengths = torch.cat([lengths for _, lengths in drawn])
    indices = torch.cat([indices for indices, _ in drawn])
    return Inputs(
        indices,
        torch.nn.functional.pad(lengths.cumsum(0), (1, 0)),
        torch.randn(_outputs(sample, len(indices)), generator=generator, device=generator.device),
        tuple(seen_in(indices) for indices, _ in drawn) if sample.blocks else (),
    )


def _outputs(sample: ComputeSample, lookups: int) -> tuple[int, int]:
    """Return the shape of what so many lookups give."""
    if sample.call.pooled:
        return sample.batch_size, sum(table.dim * table.features for table in sample.tables)
    return lookups, sample.tables[0].dim


def table_of_feature(sample: ComputeSample) -> list[int]:
    """List which of the sample's tables each feature reads, (F,), table by table."""
    return [number for number, table in enumerate(sample.tables) for _ in range(table.features)]


def common_precision(sample: ComputeSample) -> int:
    """Return the bytes per element of all tables; raise UserError if the tables have several precisions."""
    widths = {table.bytes_per_element for table in sample.tables}
    if len(widths) > 1:
        raise UserError(
            "kernel-call-mixed-precisions",
            f"the tables of one fused kernel call have bytes_per_element {sorted(widths)}",
            limit="all tables of a fused kernel call must have the same precision",
            remedy="Give these tables the same bytes_per_element",
        )
    return widths.pop()


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
    if sample.tier_assignment.tier is Tier.UVM_CACHING:
        _fill(look_up, sample, popular)

    def drawn() -> Inputs:
        """Draw lookups by the popularity of rows."""
        return inputs_of(sample, held(sample, [its.batch(generator) for its in popular]), generator)

    first = drawn()
    return Prepared(partial(train, first), first.seen, lambda: partial(train, drawn()))


def _fill(look_up: LookUp, sample: ComputeSample, popular: Sequence[PopularRows]) -> None:
    """Look up as many rows of each table as its share of the cache holds, the most popular last, some at a time."""
    hottest = [its.hottest(sample.tier_assignment.cached_share) for its in popular]
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
