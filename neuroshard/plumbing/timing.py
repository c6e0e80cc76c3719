"""Timing of samples (kernel calls or exchanges): the order in which samples run, and the average of measured times."""

from dataclasses import dataclass

import numpy as np

from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.schema import ByteSize, Count, PositiveCount


@dataclass(frozen=True)
class Visit:
    """One run in a timing protocol: the index of the sample to run, and whether the time is recorded (`timed`)."""

    index: int
    timed: bool


@dataclass(frozen=True)
@checked
class TimingProtocol:
    """Settings for the timing of samples (kernel calls or exchanges): how often and in which order the samples are run.

    Each sample is first run `warmup` times untimed. Then, in each of `rounds` rounds, the samples are visited in a new
    random order and timed `repeats_per_round` times in a row. So a sample has R = rounds x repeats_per_round repeats,
    spread over the whole duration of the batch: a slow phase of the machine affects a few repeats of every sample
    instead of all repeats of a few samples. With rounds=1 all repeats of a sample follow each other directly.

    Attributes:
        warmup: number of untimed runs of each sample (a kernel call or an exchange) before its timed runs.
        rounds: number of times that all samples (kernel calls or exchanges) in memory are timed, each time in a new
            random order; larger values average out slow phases of the machine, and take longer.
        repeats_per_round: number of timed runs of each sample (a kernel call or an exchange) directly after one
            another, in each pass over the samples (rounds= sets the number of passes); larger values take longer.
        live: maximum number of samples (kernel calls or exchanges) in memory at once; after these samples are measured,
            the next samples are loaded; larger values need more memory.
        flush_bytes: bytes to write on the device before every run, so that hardware caches contain no table rows; 0
            writes none on a CPU, and a GPU always writes at least twice its L2 cache.
    """

    warmup: Count = 1
    rounds: PositiveCount = 10
    repeats_per_round: PositiveCount = 1
    live: PositiveCount = 64
    flush_bytes: ByteSize = 32 << 20

    def visits(self, count: int, rng: np.random.Generator) -> list[Visit]:
        """Return all runs of `count` samples (kernel calls or exchanges) in order: untimed runs first, then timed runs.
        All these samples are in memory at the same time. `rng` draws the order of the samples in each timed round.
        """
        warm = [Visit(i, timed=False) for i in range(count) for _ in range(self.warmup)]
        timed = [
            Visit(int(i), timed=True)
            for _ in range(self.rounds)
            for i in rng.permutation(count)
            for _ in range(self.repeats_per_round)
        ]
        return warm + timed


def typical_ms(times_ms: FloatArray) -> FloatArray:
    """Return a typical time of each sample in ms: the mean time of the fastest half of the sample's R runs.
    `times_ms` (R, ...) has the times of all runs. The result has the shape of `times_ms` without the first axis.

    Disturbances on a shared machine only add time, so the slower half is left out. Unlike the minimum, this mean does
    not depend on one lucky repeat. Between passes over the same samples, this mean repeats better than the median or
    the minimum (docs/explanation/measuring_costs.md).
    """
    half = (len(times_ms) + 1) // 2
    typical: FloatArray = np.sort(times_ms, axis=0)[:half].mean(axis=0)
    return typical


def repeatability(first_ms: FloatArray, second_ms: FloatArray) -> FloatArray:
    """Return the relative difference between two measured times of each of n samples, (n,).
    The relative difference of the times a and b is |a - b| / mean(a, b).
    """
    difference: FloatArray = np.abs(first_ms - second_ms) / ((first_ms + second_ms) / 2)
    return difference
