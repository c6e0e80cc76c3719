"""Step meters: the order of the measured plans, failed builds, and refused plans."""

import numpy as np

from neuroshard.measure import DeviceSpec, Hardware
from neuroshard.measure._workers.runs import Outcome
from neuroshard.measure.steps.step_meters import check_steps, measure_build
from neuroshard.measure.steps.step_samples import LOOKUPS_ALONE, PHASES, STEP
from neuroshard.measure.store.plan_measurements import COST, by_plan, times_ms
from neuroshard.measure.store.samples import Repeats
from neuroshard.testing import toy_task
from tests.kit.messages import refused
from tests.kit.plans import laid_out, whole


def _plans(task, count):
    """Return `count` plans that differ only in the device of the first table."""
    rest = [i % 2 for i in range(1, len(task.tables))]
    return [laid_out(task, d % 2, *rest) for d in range(count)]


class _Meter:
    """A meter that records its samples; steps take as many ms as the first device of the plan has shards."""

    def __init__(self):
        self.asked = []

    def measure(self, samples, seeds):
        self.asked.append(samples)
        return [self._outcome(plan) for plan in samples]

    def _outcome(self, plan):
        shards = len(plan.device_tables[0])
        times = np.zeros((3, 1 + len(PHASES) + 1, 2))
        times[:, 0] = shards
        times[:, 1] = [0.0, 2.0 * shards]  # input exchange, on either rank
        times[:, -1] = [1.0, 3.0]  # lookups alone
        return Outcome(Repeats(times, np.zeros(3)), None, 0.0) if shards else Outcome(None, "broken", 0.0)


def test_step_meter_shuffles_plans_and_returns_times_in_the_original_order():
    plans = _plans(toy_task(9, num_devices=2), 2) * 3
    meter = _Meter()
    for number in range(4):
        built = by_plan(measure_build(meter, plans, number, [0, 0, number]), len(plans))
        assert {row.pass_number for rows in built for row in rows} == {number}
        shards = [float(len(plan.device_tables[0])) for plan in plans]
        assert [times_ms(rows, STEP) for rows in built] == [[count] * 3 for count in shards]
        assert [times_ms(rows, COST) for rows in built] == [[count] for count in shards]
        phases = [ms for phase in PHASES for ms in times_ms(built[0], phase)]
        assert phases == [shards[0], *[0.0] * 7]  # the mean over ranks
        assert times_ms(built[0], LOOKUPS_ALONE) == [2.0]
    orders = [[plans.index(plan) for plan in asked] for asked in meter.asked]
    assert len({tuple(order) for order in orders}) > 1
    again = _Meter()
    measure_build(again, plans, 0, [0, 0, 0])
    assert again.asked[0] == meter.asked[0]


def test_step_meter_reports_the_reason_of_a_failed_build():
    task = toy_task(2, num_devices=2)
    (failed,) = measure_build(_Meter(), [whole(task, 1)], 0, [0])
    assert (failed.phase, failed.error) == (None, "broken")


def test_check_steps_refuses_plans_of_other_tables_or_above_memory():
    (one, other), hardware = (whole(toy_task(1, seed=seed)) for seed in (0, 1)), Hardware(DeviceSpec("cpu"))
    with refused("steps-plans-differ"):
        check_steps([one, other], hardware)
    too_many = hardware.fingerprint.memory_bytes // sum(one.device_bytes) + 1
    with refused("steps-memory-too-small", names=[f"{min(too_many, 10**6):,} plans", "GiB"]):
        check_steps([one] * min(too_many, 10**6), hardware)
