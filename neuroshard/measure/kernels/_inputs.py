"""The inputs of measured kernel calls, and kernel calls that are ready to be timed.

Calls on tables in host memory get new lookups every time, with the same popular rows, and use a warm cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType

from neuroshard.measure.kernels.drawn_lookups import PopularRows, draw_batch, held, seen_in
from neuroshard.measure.store.samples import BlockLookups, ComputeSample
from neuroshard.plumbing.errors import UserError
from neuroshard.words.placement import Tier

LookUp = Callable[[torch.Tensor, torch.Tensor], object]  # takes indices and offsets
PRECISIONS = {4: (SparseType.FP32, torch.float32), 2: (SparseType.FP16, torch.float16)}
LEARNING_RATE = 1e-3
FUSED = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}  # optimizers


@dataclass(frozen=True)
class Prepared:
    """A kernel call that is ready to be timed, with inputs and weights in memory.

    Attributes:
        run: trains the sample's tables once.
        seen: the lookups in the sample's row blocks, if it has any.
        afresh: draws new lookups and returns the function that trains the tables with them; None if every run is `run`.
    """

    run: Callable[[], None]
    seen: tuple[BlockLookups, ...]
    afresh: Callable[[], Callable[[], None]] | None = None

    def next_run(self) -> Callable[[], None]:
        """Return the function to time in the next run of the kernel call.
        For tables in host memory, the function uses newly drawn lookups. For other tables, the function is the same in
        every run.
        """
        return self.run if self.afresh is None else self.afresh()


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of one kernel call: the looked up rows, the offsets, and the gradient of the outputs.

    Attributes:
        indices: (L,) looked up rows, table by table.
        offsets: (F x batch size + 1,) where the lookups of each of the F features of all tables begin in each sample.
        gradient: gradient of the outputs: (batch size, columns of all features) if pooled, (L, columns) if sequences.
        seen: the lookups in each of the sample's row blocks, if it has any.
    """

    indices: torch.Tensor
    offsets: torch.Tensor
    gradient: torch.Tensor
    seen: tuple[BlockLookups, ...]


def draw_inputs(sample: ComputeSample, device: torch.device, rng: np.random.Generator) -> Inputs:
    """Draw random inputs for one kernel call, on the device; the state of `rng` fixes the inputs."""
    generator = torch.Generator(device).manual_seed(int(rng.integers(1 << 62)))
    return inputs_of(sample, draw_batch(sample, generator), generator)


def inputs_of(
    sample: ComputeSample, drawn: list[tuple[torch.Tensor, torch.Tensor]], generator: torch.Generator
) -> Inputs:
    """Return the inputs of one kernel call in FBGEMM's form: indices, offsets and a random gradient of the outputs.
    `drawn` has the indices and lengths of each of the sample's n tables.
    """
    lengths = torch.cat([lengths for _, lengths in drawn])
    indices = torch.cat([indices for indices, _ in drawn])
    return Inputs(
        indices,
        torch.nn.functional.pad(lengths.cumsum(0), (1, 0)),
        torch.randn(_outputs(sample, len(indices)), generator=generator, device=generator.device),
        tuple(seen_in(indices) for indices, _ in drawn) if sample.blocks else (),
    )


def _outputs(sample: ComputeSample, lookups: int) -> tuple[int, int]:
    """Return the shape of the outputs of a kernel call, given the number of lookups."""
    if sample.call.pooled:
        return sample.batch_size, sum(table.dim * table.features for table in sample.tables)
    return lookups, sample.tables[0].dim


def table_of_feature(sample: ComputeSample) -> list[int]:
    """Return the index of the table that each of F features looks up, (F,).
    The features are in the order of the tables: all features of the first table come first.
    """
    return [number for number, table in enumerate(sample.tables) for _ in range(table.features)]


def common_precision(sample: ComputeSample) -> int:
    """Return the bytes per weight of the tables in a kernel call; all tables must have the same number.
    Raise UserError if the tables have different numbers of bytes per weight.
    """
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
    """Prepare a kernel call on tables in host memory, with new lookups in each run.
    The same lookups would all hit the cache from the second run on.

    Args:
        train: runs one step with the given inputs.
        look_up: runs the forward call alone; it first fills the cache with the most popular rows.
        sample: the tables to look up.
        device: the device that runs the call.
        rng: fixes the lookups.
    """
    popular = [PopularRows.of(table, sample.batch_size, device) for table in sample.tables]
    generator = torch.Generator(device).manual_seed(int(rng.integers(1 << 62)))
    if sample.tier_assignment.tier is Tier.UVM_CACHING:
        _fill(look_up, sample, popular)

    def drawn() -> Inputs:
        """Draw the lookups of one more batch, and return the inputs of a kernel call with these lookups.
        Popular rows are looked up more often than other rows.
        """
        return inputs_of(sample, held(sample, [rows.batch(generator) for rows in popular]), generator)

    first = drawn()
    return Prepared(partial(train, first), first.seen, lambda: partial(train, drawn()))


def _fill(look_up: LookUp, sample: ComputeSample, popular: Sequence[PopularRows]) -> None:
    """Fill the cache with the most popular rows of each table that fit into the cache.
    To do so, look up these rows in several calls, the most popular row last.
    """
    hottest = [chosen.hottest(sample.tier_assignment.cached_share) for chosen in popular]
    rows = [chosen for chosen, _ in held(sample, [(chosen, torch.ones_like(chosen)) for chosen in hottest])]
    turns = max(ceil(len(chosen) / table_rows.lookups) for chosen, table_rows in zip(rows, popular, strict=True))
    for turn in range(turns):
        chunks = [chosen.tensor_split(turns)[turn] for chosen in rows]
        lengths = torch.zeros(sum(table.features for table in sample.tables), dtype=torch.int64)
        first = 0
        for chunk, table in zip(chunks, sample.tables, strict=True):  # all lookups count for the table's first feature
            lengths[first] = len(chunk)
            first += table.features
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        indices = torch.cat(chunks)
        with torch.no_grad():
            look_up(indices, offsets.to(indices.device))
