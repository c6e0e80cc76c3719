"""Check the kernels of one device, and time what others have published of them, in less than a minute.

usage: measure_device.py OUT [--hardware cuda|cpu]    (cpu: a dry run of itself, of calls a thousandth as large)

OUT/summary.json    versions, the device, the largest error of each kernel beside plain torch, the copy bandwidth
OUT/points.jsonl    a call a line, as soon as it is timed: a small one, which is all launching; calls that others have
                    published, and their neighbours in width, pooling, precision and optimizer

Forward, backward and both are timed, each way in turn; of each way 10% quantile, median and 90% quantile:
    flushed_ms    as the product times, starting from a flushed cache
    warm_ms       by the device's clock, kept busy until all is launched; nothing is flushed, as in the publishers' own
                  benchmarks, so `ratio` is of this and `published_ms`
    hidden        1 where all was launched before the device came to it; else `warm_ms` holds launches too
    host_ms, wall_ms    by the host's clock: until the call returns (launching alone), until the device has done it
`gb_per_s` counts the least bytes (rows in sectors of 32) over the median of `warm_ms`. `sheet` names the published GPU:
h100_meta has 2.4 TB/s, h100 3.35. A call that fails leaves its error. Wrong kernels end in status 1, after all else.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neuroshard.hardware.compute_bench import Arenas, build_operator, dense_run, fused_run
from neuroshard.hardware.device import Device, make_device
from neuroshard.hardware.inputs import LEARNING_RATE
from neuroshard.hardware.specs import OPTIMIZERS, DeviceSpec, EmbeddingSettings
from neuroshard.models.published_points import KernelPoint, kernel_points
from neuroshard.plumbing.files import write_json
from neuroshard.records.samples import ComputeSample
from neuroshard.tables import Table
from neuroshard.testing import ONCE, toy_tables
from neuroshard.words.fingerprint import fingerprint, versions
from neuroshard.words.form import Call, Form
from neuroshard.words.placement import Tier
from tests.kit.plain_torch import plain_torch

CHECKED = Call(Form.COLUMNS), Call(Form.COLUMNS, pooled=False), Call(Form.COPIES)
SMALL, LIMITS = 1 / 64, {4: 1e-5, 2: 3e-4}  # weights so small that fp16 resolves a step; errors, by bytes per element
COPY_BYTES, DRY_FLUSH_BYTES, BUSY_CYCLES = 1 << 30, 1 << 20, 4_000_000  # of the device's clock: about 2 ms
WARMUP, REPEATS, BATCH, SEED, PHASES = 3, 20, 64, 0, ("forward", "backward", "both")


@dataclass(frozen=True)
class Point:
    """A fused call over tables alike: each has `batch_size` bags of `bag` lookups, of even rows where `zipf` is 0."""

    tables: int
    rows: int
    dim: int
    batch_size: int
    bag: int
    zipf: float = 0.0
    pooled: bool = True
    element_bytes: int = 4
    optimizer: str = "sgd"

    def published(self, phase: str) -> KernelPoint | None:
        """Find the published time of this phase of the same call, if there is one."""
        for known in kernel_points():
            call = known.tables, known.rows, known.dim, known.lookups / known.tables, known.pooled, known.home.tier
            ours = self.tables, self.rows, self.dim, self.batch_size * self.bag, self.pooled, Tier.DEVICE
            optimizer = known.optimizer if known.backward else self.optimizer
            if (*call, optimizer, 4) == (*ours, self.optimizer, self.element_bytes) and PHASES[known.backward] == phase:
                return known
        return None

    def least_bytes(self, unique: int) -> tuple[int, int, int]:
        """Count bytes: indices and rows looked up, outputs; indices and gradients, unique rows read and written."""
        row_bytes, lookups = max(self.dim * self.element_bytes, 32), self.tables * self.batch_size * self.bag
        outputs = 4 * self.dim * (lookups // self.bag if self.pooled else lookups)
        forward, backward = lookups * (8 + row_bytes) + outputs, lookups * 8 + outputs + 2 * unique * row_bytes
        return forward, backward, forward + backward


def points() -> list[Point]:
    """List the calls to time: launches; NVIDIA's sequence tables; TorchRec's widths; those of FBGEMM's own tests."""
    small, nvidia = Point(2, 1_000, 64, 32, 10), Point(10, 1_677_721, 128, 104_857, 1, 1.05)
    alike = replace(nvidia, pooled=False), nvidia, replace(nvidia, batch_size=10_485, bag=10)
    fbgemm = Point(1, 10_000_000, 256, 13_107, 55), Point(1, 10_000_000, 256, 13_107, 55, 1.15)
    single = [replace(point, optimizer=optimizer) for point in (small, *alike, *fbgemm) for optimizer in OPTIMIZERS]
    widths = [Point(4, 100_000, dim, 65_536, 10) for dim in (4, 8, 16, 32, 64, 128, 256, 512, 1_024)]
    return [*single, *widths, *(replace(point, element_bytes=2) for point in single)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--hardware", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args(arguments)
    divisor = 1_000 if options.hardware == "cpu" else 1
    device = make_device(DeviceSpec(options.hardware))
    device.prepare(0, DRY_FLUSH_BYTES)  # of a GPU twice its L2 cache
    errors, bytes_moved = _checked(device), 2 * COPY_BYTES // divisor
    source, target = torch.rand(2, bytes_moved // 8, device=device.torch_device)
    copy_ms = min(device.time_ms(partial(target.copy_, source)) for _ in range(REPEATS))
    summary = {"versions": versions(), "hardware": fingerprint(options.hardware).to_json()}
    summary |= {"errors_beside_plain_torch": errors, "copy_gb_per_s": bytes_moved / copy_ms / 1e6}
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(options.out / "summary.json", summary)
    print(json.dumps(summary), flush=True)
    time_points(points(), device, options.out / "points.jsonl", divisor)
    if wrong := [f"{name}: {error}" for name, error in errors.items() if isinstance(error, str)]:
        sys.exit("\n".join(["beside plain torch:", *wrong]))


def _checked(device: Device) -> dict[str, float | str]:
    """Compute the largest error of outputs and updated weights by kernel; a text where it is too large or it fails."""
    errors: dict[str, float | str] = {}
    for call, optimizer, element_bytes in product(CHECKED, OPTIMIZERS, LIMITS):
        try:
            error = _error(device, call, optimizer, element_bytes)
            said = error if error < LIMITS[element_bytes] else f"wrong by {error:.2g}"
        except Exception as failure:
            said = repr(failure)
        errors[f"{call.name}, {optimizer}, {8 * element_bytes} bits"] = said
    return errors


def _error(device: Device, call: Call, optimizer: str, element_bytes: int) -> float:
    shape = {"bytes_per_element": element_bytes, "pooled": call.pooled} | ({} if call.pooled else {"dim": 32})
    alike = tuple(replace(its, **shape) for its in toy_tables(3))
    asked = ComputeSample(alike, BATCH, call.form), EmbeddingSettings(optimizer), device.torch_device
    prepare = dense_run if call.form is Form.COPIES else partial(fused_run, arenas=Arenas())
    run = prepare(*asked, rng=np.random.default_rng(SEED)).run
    operator, *_, inputs = run.args
    weights = operator.split_embedding_weights()  # views of them
    for weight in weights:
        weight.data.copy_(SMALL * torch.randn_like(weight, dtype=torch.float32))
    before = [weight.detach().float().clone() for weight in weights]
    plain, steps = plain_torch(asked[0], before, inputs)
    errors = [(operator(inputs.indices, inputs.offsets).detach() - plain).abs().max()]
    run()
    for after, weight, step in zip(weights, before, steps, strict=True):
        scale = step.square().mean(dim=1, keepdim=True).sqrt() + 1e-8 if optimizer == "rowwise_adagrad" else 1
        errors.append((after - weight + LEARNING_RATE * step / scale).abs().max())
    return float(torch.stack(errors).detach().max())  # nan if one is


def time_points(all_points: Sequence[Point], device: Device, path: Path, divisor: int) -> None:
    """Time the calls, of that part of their size, and append each to the file; one that fails leaves its error."""
    for point in all_points:
        begun, row = time.perf_counter(), {**asdict(point), "divisor": divisor}
        try:
            row |= _timed(point, divisor, device)
            said = "; ".join(_short(phase, row[phase]) for phase in PHASES)
        except Exception as error:
            row["error"] = said = repr(error)[:500]
        row["seconds"] = round(time.perf_counter() - begun, 2)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{point}: {said} [{row['seconds']} s]", flush=True)
        gc.collect()  # operators refer to themselves
        torch.cuda.empty_cache()


def _short(phase: str, its: dict[str, Any]) -> str:
    beside = f", published {its['published_ms']} ({its['sheet']}, x{its['ratio']})" if "ratio" in its else ""
    return f"{phase} {its['warm_ms'][1]} ms, flushed {its['flushed_ms'][1]}, host {its['host_ms'][1]}{beside}"


def _timed(whole: Point, divisor: int, device: Device) -> dict[str, Any]:
    part = replace(whole, rows=max(whole.rows // divisor, 1), batch_size=max(whole.batch_size // divisor, 1))
    table = Table("t", part.rows, part.dim, float(part.bag), ONCE, part.element_bytes, pooled=part.pooled)
    sample, settings = ComputeSample((table,) * part.tables, part.batch_size), EmbeddingSettings(part.optimizer)
    operator = build_operator(sample, settings, device.torch_device, Arenas(), np.random.default_rng(SEED))
    for weight in operator.split_embedding_weights():
        weight.data.uniform_(-1, 1)
    rows = draw(part, torch.Generator(device.torch_device).manual_seed(SEED))
    forward = partial(operator, rows.flatten(), torch.arange(0, rows.numel() + 1, part.bag, device=rows.device))
    grad, unique = torch.randn_like(forward().detach()), sum(len(torch.unique(its)) for its in rows)
    runs = (lambda: forward), (lambda: partial(forward().backward, grad)), (lambda: lambda: forward().backward(grad))
    row: dict[str, Any] = {"unique": unique}
    for phase, run, least_bytes in zip(PHASES, runs, part.least_bytes(unique), strict=True):
        repeats = [_once(device, run) for _ in range(WARMUP + REPEATS)][WARMUP:]
        quantiles = np.quantile([list(ways.values()) for ways in repeats], [0.1, 0.5, 0.9], axis=0).T.round(5).tolist()
        row[phase] = its = dict(zip(repeats[0], quantiles, strict=True))
        its["gb_per_s"] = round(least_bytes / its["warm_ms"][1] / 1e6, 1)
        if known := whole.published(phase):
            its |= {"published_ms": known.ms, "ratio": round(its["warm_ms"][1] / known.ms, 3), "sheet": known.sheet}
    return row


def draw(point: Point, generator: torch.Generator) -> torch.Tensor:
    """Draw rows, (tables, lookups of each); of Zipf's law the popular ones lie anywhere."""
    shape, device = (point.tables, point.batch_size * point.bag), generator.device
    if not point.zipf:
        return torch.randint(point.rows, shape, generator=generator, device=device)
    up_to = torch.arange(1, point.rows + 1, dtype=torch.float64, device=device).pow(-point.zipf).cumsum(0)
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64, device=device) * up_to[-1]
    rank = torch.searchsorted(up_to, drawn).clamp(max=point.rows - 1)
    return torch.randperm(point.rows, generator=generator, device=device)[rank]


def _once(device: Device, made: Callable[[], Callable[[], object]]) -> dict[str, float]:
    """Time a run once each way."""
    on_gpu, flushed_ms, run = device.torch_device.type == "cuda", device.time_ms(made()), made()
    if on_gpu:
        torch.cuda._sleep(BUSY_CYCLES)
    start, _, end = device.moment(), run(), device.moment()
    hidden = float(on_gpu and not start.query())
    device.synchronize()
    warm_ms, run = device.ms_between(start, end), made()
    device.synchronize()
    begun, _, launched = time.perf_counter(), run(), time.perf_counter()
    device.synchronize()
    host_ms, wall_ms = 1e3 * (launched - begun), 1e3 * (time.perf_counter() - begun)
    return {"flushed_ms": flushed_ms, "warm_ms": warm_ms, "hidden": hidden, "host_ms": host_ms, "wall_ms": wall_ms}


if __name__ == "__main__":
    main()
