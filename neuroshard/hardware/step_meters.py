"""Timing training steps of plans: build after build, each in processes of its own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from neuroshard.hardware.hardware import Hardware, Warn, under_torchrun
from neuroshard.hardware.runs import Outcome
from neuroshard.hardware.step_samples import BuildTimes, StepProtocol
from neuroshard.hardware.workers import Meter, Sample
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.words.topology import Topology

_SEED_RANGE = 2**31


# Builds plans of one task once, all live together; the seed fixes their order and the lookups.
Builds = Callable[[Sequence[Plan], Sequence[int]], tuple[BuildTimes, ...]]


@contextmanager
def step_builds(hardware: Hardware, protocol: StepProtocol, topology: Topology, warn: Warn) -> Iterator[Builds]:
    """Yield what times steps on the hardware, every build of plans for such topologies in a fresh group of processes.

    Under torchrun in its own, which stay: those that wait take part until the end.

    Raises:
        UserError: torchrun started another number of them; when it builds: the processes can't be started.
    """
    if under_torchrun():
        with hardware.step_meter(topology, protocol, warn) as meter:
            yield partial(measure_build, meter)
        return

    def build(plans: Sequence[Plan], seed: Sequence[int]) -> tuple[BuildTimes, ...]:
        """Measure a build in a fresh group of processes."""
        with hardware.step_meter(plans[0].task.topology, protocol, warn) as meter:
            return measure_build(meter, plans, seed)

    yield build


def measure_build(meter: Meter[Plan], plans: Sequence[Plan], seed: Sequence[int]) -> tuple[BuildTimes, ...]:
    """Measure one build of every plan, all live together; the seed fixes their order and the lookups."""
    outcomes = measured_in_any_order(meter, plans, seed)
    return tuple(
        BuildTimes(error=one.error) if one.repeats is None else _times(one.repeats.times_ms) for one in outcomes
    )


def measured_in_any_order(meter: Meter[Sample], samples: Sequence[Sample], seed: Sequence[int]) -> list[Outcome]:
    """Measure an outcome for each sample, together, in an order that the seed fixes."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(samples))
    seeds = rng.integers(_SEED_RANGE, size=len(samples)).tolist()
    outcomes = meter.measure([samples[i] for i in order], seeds)
    return [outcomes[place] for place in order.argsort()]


def _times(times_ms: FloatArray) -> BuildTimes:
    """Average (R, 1 + P + 1, D) ms: of steps, their phases and lookups alone, in each turn and rank."""
    mean_ms = times_ms.mean(axis=(0, 2))
    steps_ms = times_ms[:, 0].mean(axis=-1)
    return BuildTimes(tuple(steps_ms.tolist()), tuple(mean_ms[1:-1].tolist()), float(mean_ms[-1]))


def check_steps(plans: Sequence[Plan], hardware: Hardware) -> None:
    """Raise UserError unless steps of these plans can be timed here, all of them live together."""
    check_comparable(plans)
    hardware.check_hosts(plans[0].task.topology)
    check_held(plans, "of all devices", sum(sum(plan.device_bytes) for plan in plans), hardware)


def check_held(plans: Sequence[Plan], where: str, needed_bytes: int, hardware: Hardware) -> None:
    """Raise UserError unless this machine has the tiers of these plans, and room for what is live of them together."""
    hardware.check_tiers({home.tier for plan in plans for home in plan.homes})
    if hardware.device.kind == "cpu" and needed_bytes > (there := hardware.fingerprint.memory_bytes):
        raise UserError(
            f"{len(plans)} plans {where} need {readable_bytes(needed_bytes)}, this machine has "
            f"{readable_bytes(there)}; give fewer plans at a time, or smaller tables"
        )


def check_comparable(plans: Sequence[Plan]) -> None:
    """Raise UserError unless TorchRec has these plans' forms, and their steps train one task's tables and devices."""
    for plan in plans:
        plan.check_layouts(lambda layout: bool(layout.words), "TorchRec has no such form", "measure it through=kernels")
    task = plans[0].task
    if any(plan.task.tables != task.tables or plan.task.topology != task.topology for plan in plans):
        raise UserError("steps are compared between plans of the same tables and devices; give plans of one task")
