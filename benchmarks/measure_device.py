"""Everything that can be measured on one device in a few minutes: the data of a compute model, and what it is worth.

usage: measure_device.py OUT [--hardware cuda|cpu] [--seconds 420] [--batch-sizes 65536,16384,4096]
                         [--max-samples 20000] [--swept-tables 100] [--large-combinations 200]

Seconds and counts both limit; with --seconds inf only counts do. Whatever is left of the time, a batch of each type
is measured.

In this order: the fused operator against plain torch (both optimizers, fp32 and fp16); the copy bandwidth; single
tables at every width, which shows what halving a dim costs; combinations of up to 60 tables; random combinations until
the time is up; and some of those a second time, which gives the noise. Everything is written as it is measured:

OUT/summary.json                    what came of it, figures for a model card
OUT/data/                           a data directory, as `neuroshard collect` writes it, without exchanges
OUT/data/sweeps/, OUT/data/large/   the single tables and the large combinations, in the same form

With --hardware cpu it is a dry run of itself.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise, product
from pathlib import Path

import numpy as np
import torch

from neuroshard.cost.loads import Loads
from neuroshard.hardware import Hardware
from neuroshard.hardware.compute_bench import Arenas, fused_run
from neuroshard.hardware.device import Device, make_device
from neuroshard.hardware.specs import EmbeddingSettings
from neuroshard.lab.recorder import Due, Recorder
from neuroshard.plumbing.files import write_json
from neuroshard.plumbing.registry import config_of, instantiate_config
from neuroshard.plumbing.timing import typical_ms
from neuroshard.records import Chunks, DataDirectory, Manifest
from neuroshard.records.noise import pass_drift, pass_repeatability
from neuroshard.records.samples import ComputeSample, Measurement
from neuroshard.records.splits import TRAIN, split_tables
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.tables import Table, halvings
from neuroshard.tables.reuse import MEAN_COUNTS
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.testing import toy_tables
from neuroshard.words.fingerprint import versions

MOST_TABLES, MAX_DIM = 60, 128
SECOND_PASS_SHARE, COPY_BYTES = 0.05, 1 << 30
RATE, SEED = 1e-3, 0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--hardware", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--batch-sizes", default="65536,16384,4096")
    parser.add_argument("--max-samples", type=int, default=20_000)
    parser.add_argument("--swept-tables", type=int, default=100)
    parser.add_argument("--large-combinations", type=int, default=200)
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    hardware: Hardware = instantiate_config(config_of("collect", {"hardware": options.hardware}).hardware)
    batch_sizes = [int(size) for size in options.batch_sizes.split(",")]
    summary = {"versions": versions(), "hardware": hardware.fingerprint.to_json(), "batch_sizes": batch_sizes}
    device = make_device(hardware.device)
    device.prepare(0, hardware.compute_timing.flush_bytes)
    summary["errors_beside_plain_torch"] = _checked(device)
    summary["copy_gb_per_s"] = _copy_gb_per_s(device)
    _say(summary)
    campaign = Campaign(hardware, options.out / "data", batch_sizes)
    summary |= campaign.run(begun + options.seconds, options, float(summary["copy_gb_per_s"]))
    write_json(options.out / "summary.json", summary)
    _say(summary)


def _say(summary: dict) -> None:
    print(json.dumps(summary), flush=True)


def _checked(device: Device) -> dict[str, float]:
    """Compute the largest error of output and updated weights by optimizer and precision; raise if one is wrong."""
    errors = {}
    for optimizer in ("sgd", "rowwise_adagrad"):
        for element_bytes in (4, 2):
            error = _error(device, optimizer, element_bytes)
            errors[f"{optimizer}, {8 * element_bytes} bits"] = error
            limit = 1e-4 if element_bytes == 4 else 2e-2
            assert error < limit, f"{optimizer}, {element_bytes} bytes: off by {error}, more than {limit}"
    return errors


def _error(device: Device, optimizer: str, element_bytes: int) -> float:
    tables = tuple(replace(table, bytes_per_element=element_bytes) for table in toy_tables(3))
    sample, rng = ComputeSample(tables, 64), np.random.default_rng(0)
    prepared = fused_run(sample, EmbeddingSettings(optimizer), device.torch_device, Arenas(), rng)
    operator, inputs = prepared.run.args
    indices, offsets, gradient = inputs.indices, inputs.offsets, inputs.gradient
    for weight in operator.split_embedding_weights():
        weight.data.copy_(torch.randn_like(weight, dtype=torch.float32))
    before = [weight.detach().float().clone() for weight in operator.split_embedding_weights()]
    output = operator(indices, offsets)
    output.backward(gradient)
    errors, column = [], 0
    for index, (table, weight) in enumerate(zip(tables, before, strict=True)):
        ends = offsets[64 * index : 64 * (index + 1) + 1]
        own, start = indices[ends[0] : ends[-1]], ends[:-1] - ends[0]
        plain = torch.nn.functional.embedding_bag(own, weight.requires_grad_(), start, mode="sum")
        columns = slice(column, column + table.dim)
        errors.append(float((output[:, columns].float() - plain).detach().abs().max()))
        plain.backward(gradient[:, columns])
        step = weight.grad
        if optimizer == "rowwise_adagrad":
            step = step / (step.pow(2).mean(dim=1, keepdim=True).sqrt() + 1e-8)
        expected = weight.detach() - RATE * step
        errors.append(float((operator.split_embedding_weights()[index].float() - expected).abs().max()))
        column += table.dim
    return max(errors)


def _copy_gb_per_s(device: Device) -> float:
    """Measure the GB read and written in a second by a copy, the best of 20."""
    source = torch.zeros(COPY_BYTES // 4, device=device.torch_device)
    target = torch.zeros_like(source)
    best = min(device.time_ms(lambda: target.copy_(source)) for _ in range(20))
    return 2 * COPY_BYTES / best / 1e6


class Campaign:
    """Samples into a data directory until time is up, as `clock` tells it in seconds."""

    def __init__(
        self, hardware: Hardware, path: Path, batch_sizes: list[int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hardware, self._batch_sizes, self._clock = hardware, batch_sizes, clock
        self._tables = dlrm_like(batch_size=max(batch_sizes), seed=SEED)
        self._split = split_tables(self._tables, SEED)
        self._directory = DataDirectory(path)
        manifest = Manifest(hardware.fingerprint.to_json(), versions(), {"script": "measure_device"}, SEED)
        self._directory.begin(manifest, self._tables)

    def run(self, deadline: float, options: argparse.Namespace, copy_gb_per_s: float) -> dict:
        """Measure, and return what came of it. A batch of each type is measured however little time is left."""
        chunks = self._directory.compute()
        sweeps, large = (replace(chunks, directory=self._directory.path / name) for name in ("sweeps", "large"))
        begun = self._clock()
        seconds = deadline - begun
        with self._hardware.compute_meter(print) as meter:
            recorder = Recorder(lambda _: meter, self._hardware.compute_timing.live, SEED, chunks)
            sweep, many = self._sweep(options.swept_tables), map(self._large, range(options.large_combinations))
            swept = self._measure(replace(recorder, chunks=sweeps), sweep, begun + 0.2 * seconds)
            combined = self._measure(replace(recorder, chunks=large), many, begun + 0.35 * seconds)
            start = self._clock()
            left = deadline - start
            drawn = map(self._random, range(options.max_samples))
            count = self._measure(recorder, drawn, start + (1 - SECOND_PASS_SHARE) * left)
            rate = count / (self._clock() - start)
            again = map(self._random, range(int(SECOND_PASS_SHARE * count)))
            second = (replace(due, split=TRAIN, second_pass=True) for due in again)
            self._measure(recorder, second, deadline + 0.2 * max(left, 0.0))
        for measured_chunks in (chunks, sweeps, large):
            _compact(measured_chunks)
        measured = chunks.read()
        first = [m for m in measured if not m.second_pass]
        good = [m for m in first if m.error is None]
        return {
            "samples": count,
            "failed": len(first) - len(good),
            "samples_per_s": rate,
            "swept": swept,
            "large_combinations": combined,
            "second_pass": len(measured) - len(first),
            "noise": _noise(measured),
            "halving_costs": _halving(sweeps.read()),
            "share_of_copy_bandwidth": _bandwidth_share(good, copy_gb_per_s),
        }

    def _sweep(self, count: int) -> Iterator[Due[ComputeSample]]:
        chosen = np.random.default_rng(SEED).permutation(len(self._tables))[:count]
        for number, (index, width) in enumerate(product(chosen.tolist(), halvings(MAX_DIM))):
            yield Due(ComputeSample((self._tables[index].with_dim(width),), self._batch_sizes[0]), number, number)

    def _large(self, number: int) -> Due[ComputeSample]:
        rng = np.random.default_rng([SEED, 1, number])
        count = int(rng.integers(16, MOST_TABLES + 1))
        chosen = rng.choice(len(self._tables), size=count, replace=False)
        tables = tuple(self._tables[i].with_dim(int(rng.choice(halvings(MAX_DIM)))) for i in chosen)
        return Due(ComputeSample(tables, int(rng.choice(self._batch_sizes))), number, number)

    def _random(self, number: int) -> Due[ComputeSample]:
        rng = np.random.default_rng([SEED, 2, number])
        batch_size = int(rng.choice(self._batch_sizes))
        sample, split = ComputeAugmentation(any_width_share=0.5).draw(self._split, batch_size, rng)
        return Due(sample, number, number, split)

    def _measure(self, recorder: Recorder, due: Iterator[Due], deadline: float) -> int:
        """Count what is measured of what is due: as far as time allows, but the first batch in any case."""
        count = 0
        while (batch := list(islice(due, recorder.live))) and (not count or self._clock() <= deadline):
            count += len(recorder.record(batch))
        return count


def _compact(chunks: Chunks) -> None:
    """Join many files into one."""
    files = sorted(chunks.directory.glob("part-*.parquet"))
    if len(files) > 1:
        chunks.write(0, chunks.read())
        for file in files[1:]:
            file.unlink()


def _ms(measurement: Measurement) -> float:
    return float(typical_ms(measurement.repeats.times_ms))


def _noise(measured: list[Measurement]) -> dict[str, float]:
    apart = pass_repeatability(measured)
    if not len(apart):
        return {}
    quantiles = {name: float(np.quantile(apart, level)) for name, level in (("median", 0.5), ("p90", 0.9))}
    return {"mean": float(apart.mean()), **quantiles, "drift": pass_drift(measured)}


def _halving(swept: list[Measurement]) -> dict[str, float]:
    """Compute the median over tables of the cost at half the width, relative to the whole."""
    widths = list(halvings(MAX_DIM))
    cost = {(m.sample.tables[0].name, m.sample.tables[0].dim): _ms(m) for m in swept if m.error is None}
    medians = {}
    for wide, narrow in pairwise(widths):
        ratios = [
            cost[name, narrow] / ms for (name, width), ms in cost.items() if width == wide and (name, narrow) in cost
        ]
        if ratios:
            medians[f"{wide} to {narrow}"] = float(np.median(ratios))
    return medians


def _bandwidth_share(good: list[Measurement], copy_gb_per_s: float) -> dict[str, float]:
    """Compare the bytes that kernels can't do without, in the time they took, with the copy bandwidth; quartiles."""
    rates = [_least_bytes(m.sample.tables, m.sample.batch_size) / _ms(m) / 1e6 for m in good]
    if not rates:
        return {}
    low, middle, high = np.quantile(np.array(rates) / copy_gb_per_s, [0.25, 0.5, 0.75])
    return {"lower quartile": float(low), "median": float(middle), "upper quartile": float(high)}


def _least_bytes(tables: tuple[Table, ...], batch_size: int) -> float:
    """Sum up bytes: rows read for lookups, unique rows read and written by updates, outputs written, gradients read."""
    loads = Loads.of(tables, batch_size)
    unique = np.minimum(loads.lookups / (loads.reuse @ MEAN_COUNTS), loads.rows)
    row_bytes = loads.dim * loads.bytes_per_element
    return float((loads.lookups * (row_bytes + 8) + 2 * unique * row_bytes + 2 * 4 * loads.outputs * loads.dim).sum())


if __name__ == "__main__":
    main()
