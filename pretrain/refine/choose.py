"""What of a round's candidates is measured."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic

from neuroshard.records.samples import CommSample, ComputeSample, Sample
from neuroshard.stages.pretrain.refine.rounds import Why


@dataclass(frozen=True)
class Chosen(Generic[Sample]):
    """A sample to be measured, and why it was chosen."""

    sample: Sample
    why: Why


@dataclass(frozen=True)
class Source(Generic[Sample]):
    """Where samples come from, and how many of them are wanted."""

    why: Why
    wanted: int
    samples: Iterable[Sample]


def filled(count: int, sources: Sequence[Source[Sample]]) -> list[Chosen[Sample]]:
    """`count` samples, from each source as many as it is asked for; what one can't give, those behind it do.

    The last source must have any number.
    """
    chosen: list[Chosen[Sample]] = []
    due = 0
    for number, source in enumerate(sources):
        due = count if number == len(sources) - 1 else min(due + source.wanted, count)
        chosen += [Chosen(sample, source.why) for sample in islice(source.samples, due - len(chosen))]
    return chosen


def unseen(samples: Iterable[Sample], seen: set[Hashable], key: Callable[[Sample], Hashable]) -> Iterator[Sample]:
    """Those whose key isn't in `seen`, which gets it."""
    for sample in samples:
        if (its := key(sample)) not in seen:
            seen.add(its)
            yield sample


def content_key(sample: ComputeSample) -> Hashable:
    """Alike for calls of the same tables at the same widths, in one form: of blocks whichever."""
    return frozenset((table.name, table.dim) for table in sample.tables), sample.batch_size, sample.call


def exchange_key(sample: CommSample) -> Hashable:
    """Alike for one collective's exchanges of the same sizes, with the same starts to the millisecond."""
    starts = tuple(round(start) for start in sample.start_ms)
    return sample.size_bytes, starts, sample.batch_size, sample.collective


def in_turn(samples: Iterable[Sample], kind: Callable[[Sample], Hashable]) -> list[Sample]:
    """The samples, one of each kind after the other: the first ones are of all kinds; in order within a kind."""
    found: dict[Hashable, int] = defaultdict(int)
    turns: list[tuple[int, Sample]] = []
    for sample in samples:
        turns.append((found[kind(sample)], sample))
        found[kind(sample)] += 1
    return [sample for _, sample in sorted(turns, key=lambda one: one[0])]
