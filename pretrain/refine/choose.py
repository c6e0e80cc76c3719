"""What of a round's candidates is measured."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
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


def chosen_of(
    count: int,
    measured: Sequence[Sample],
    key: Callable[[Sample], Hashable],
    sources: Sequence[Source[Sample]],
    random: Iterator[Sample],
) -> list[Chosen[Sample]]:
    """`count` samples: new ones of the sources, of what was measured least first, and where these end random ones.

    New is what has another `key` than what was measured, or was taken from a source before.
    """
    seen: set[Hashable] = set(map(key, measured))
    new: list[Source[Sample]] = [
        Source(its.why, its.wanted, unseen(in_turn(list(its.samples), measured), seen, key)) for its in sources
    ]
    new.append(Source("random", count, random))
    return filled(count, new)


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


def in_turn(samples: Sequence[Sample], measured: Sequence[Sample]) -> list[Sample]:
    """The samples, first of the kernel calls or collectives that the fewest were measured of; of one kind in order."""
    counts = Counter(map(_kind, measured))
    turns = []
    for sample in samples:
        turns.append(counts[_kind(sample)])
        counts[_kind(sample)] += 1
    pairs = sorted(zip(turns, samples, strict=True), key=itemgetter(0))
    return [sample for _, sample in pairs]


def _kind(sample: Sample) -> Hashable:
    if isinstance(sample, ComputeSample):
        return sample.call
    return sample.collective if isinstance(sample, CommSample) else None
