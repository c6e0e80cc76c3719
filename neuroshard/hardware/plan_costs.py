"""Plans on hardware: every device's shards timed, then the exchanges that follow from them."""

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from neuroshard.cost import Cost
from neuroshard.hardware import Hardware, Outcome
from neuroshard.plans.plan import Plan
from neuroshard.records.samples import CommSample, ComputeSample
from neuroshard.timing import typical_ms

Advance = Callable[[int], None]
_SEED_RANGE = 2**31


def measure_plans(
    plans: Sequence[Plan], hardware: Hardware, seed: int, warn: Callable[[str], None], advance: Advance
) -> list[Cost | str]:
    """The measured cost of each plan, or the error that stopped it.

    Neighbours in `plans` share batches of live operators, so plans that are to be compared should stand together.
    Each device's shards are timed alone on one device, then the exchanges between all, starting when each device's
    measured compute ends. `advance` is told of every device and exchange measured.
    """
    compute = _measure_compute(plans, hardware, seed, warn, advance)
    ready = [i for i, ms in enumerate(compute) if not isinstance(ms, str)]
    results: list[Cost | str] = [ms if isinstance(ms, str) else "" for ms in compute]
    for _, group in groupby(sorted(ready, key=lambda i: _num_devices(plans[i])), key=lambda i: _num_devices(plans[i])):
        indices = list(group)
        samples = [_exchange(plans[i], compute[i]) for i in indices]
        for i, outcome in zip(indices, _measure_comm(samples, hardware, warn, advance), strict=True):
            results[i] = _cost(compute[i], outcome)
    return results


def _num_devices(plan: Plan) -> int:
    return plan.task.topology.num_devices


def _measure_compute(
    plans: Sequence[Plan], hardware: Hardware, seed: int, warn: Callable[[str], None], advance: Advance
) -> list[list[float] | str]:
    """(D,) ms of every plan, or its error; an empty device takes no time."""
    places = [(p, d) for p, plan in enumerate(plans) for d, tables in enumerate(plan.device_tables) if tables]
    samples = [ComputeSample(plans[p].device_tables[d], plans[p].task.batch_size) for p, d in places]
    rng = np.random.default_rng(seed)
    results: list[list[float] | str] = [[0.0] * _num_devices(plan) for plan in plans]
    live = hardware.compute_timing.live
    with hardware.compute_meter(warn) as meter:
        for start in range(0, len(samples), live):
            batch = samples[start : start + live]
            outcomes = meter.measure(batch, rng.integers(_SEED_RANGE, size=len(batch)).tolist())
            for (p, d), outcome in zip(places[start : start + live], outcomes, strict=True):
                _note(results, p, d, outcome)
            advance(len(batch))
    return results


def _note(results: list[list[float] | str], plan: int, device: int, outcome: Outcome) -> None:
    costs = results[plan]
    if isinstance(costs, str):
        return
    if outcome.repeats is None:
        results[plan] = f"device {device}: {outcome.error}"
    else:
        costs[device] = float(typical_ms(outcome.repeats.times_ms))


def _exchange(plan: Plan, compute: list[float] | str) -> CommSample:
    assert not isinstance(compute, str)
    starts = tuple(ms - min(compute) for ms in compute)
    return CommSample(plan.device_dims, starts, plan.task.batch_size)


def _measure_comm(
    samples: list[CommSample], hardware: Hardware, warn: Callable[[str], None], advance: Advance
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    live = hardware.comm_timing.live
    with hardware.comm_meter(len(samples[0].dims), warn) as meter:
        for start in range(0, len(samples), live):
            batch = samples[start : start + live]
            outcomes += meter.measure(batch, list(range(start, start + len(batch))))
            advance(len(batch))
    return outcomes


def _cost(compute: list[float] | str, outcome: Outcome) -> Cost | str:
    if outcome.repeats is None or isinstance(compute, str):
        return f"exchange: {outcome.error}"
    forward, backward = typical_ms(outcome.repeats.times_ms)
    return Cost(np.array(compute), forward, backward)
