"""Plans on hardware: every device's shards timed, then the exchanges that follow from them."""

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.cost import Cost
from neuroshard.hardware import Hardware, Meter, Outcome
from neuroshard.plans.plan import Plan
from neuroshard.records.samples import BACKWARD, FORWARD, CommSample, ComputeSample
from neuroshard.timing import typical_ms

Advance = Callable[[int], None]
_SEED_RANGE = 2**31


def measure_plans(
    plans: Sequence[Plan], hardware: Hardware, seed: int, warn: Callable[[str], None], advance: Advance
) -> list[Cost | str]:
    """The measured cost of each plan, or the error that stopped it.

    Neighbours in `plans` share batches of live operators, so plans that are to be compared should stand together.
    Each device's shards are timed alone on one device; then all exchanges, twice: what they take backward, and then
    forward, each device starting when its measured backward exchange and compute have ended. `advance` is told of
    every device and exchange measured.
    """
    compute = _measure_compute(plans, hardware, seed, warn, advance)
    costs: list[Cost | str] = [ms if isinstance(ms, str) else "" for ms in compute]
    ready = {i: np.array(ms) for i, ms in enumerate(compute) if not isinstance(ms, str)}
    for _, group in groupby(sorted(ready, key=lambda i: _num_devices(plans[i])), key=lambda i: _num_devices(plans[i])):
        indices = list(group)
        found = _measure_exchanges([plans[i] for i in indices], [ready[i] for i in indices], hardware, warn, advance)
        for i, cost in zip(indices, found, strict=True):
            costs[i] = cost
    return costs


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


def _measure_exchanges(
    plans: Sequence[Plan],
    compute: Sequence[FloatArray],
    hardware: Hardware,
    warn: Callable[[str], None],
    advance: Advance,
) -> list[Cost | str]:
    """Costs of plans for equally many devices, with compute (D,) ms each."""
    with hardware.comm_meter(_num_devices(plans[0]), warn) as meter:
        together = [_exchange(plan, np.zeros(len(ms))) for plan, ms in zip(plans, compute, strict=True)]
        backward = _measure_comm(together, meter, hardware.comm_timing.live, advance)
        ends = [ms + back[BACKWARD] for ms, (back, _) in zip(compute, backward, strict=True)]
        delayed = [_exchange(plan, starts) for plan, starts in zip(plans, ends, strict=True)]
        forward = _measure_comm(delayed, meter, hardware.comm_timing.live, advance)
    return [
        f"exchange: {failed}" if (failed := error or other) else Cost(ms, there[FORWARD], back[BACKWARD])
        for ms, (back, error), (there, other) in zip(compute, backward, forward, strict=True)
    ]


def _exchange(plan: Plan, starts: FloatArray) -> CommSample:
    return CommSample.of_columns(plan.device_dims, (starts - starts.min()).tolist(), plan.task.batch_size)


def _measure_comm(
    samples: list[CommSample], meter: Meter[CommSample], live: int, advance: Advance
) -> list[tuple[FloatArray, str | None]]:
    """Typical (2, D) ms of each exchange, and the error that stopped it."""
    outcomes: list[Outcome] = []
    for start in range(0, len(samples), live):
        batch = samples[start : start + live]
        outcomes += meter.measure(batch, list(range(start, start + len(batch))))
        advance(len(batch))
    nothing = np.zeros((2, samples[0].num_devices))
    return [
        (nothing if outcome.repeats is None else typical_ms(outcome.repeats.times_ms), outcome.error)
        for outcome in outcomes
    ]
