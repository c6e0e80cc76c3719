"""The measured cost of a plan is computed from its kernel calls and exchanges, here of made-up times."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from neuroshard import Tier, TierAssignment
from neuroshard.measure import DeviceSpec, Hardware, Outcome, plan_costs
from neuroshard.measure.plan_costs import measure_plans, steps
from neuroshard.measure.recorder import meters_of
from neuroshard.measure.store.samples import CommSample, ComputeSample, Repeats
from neuroshard.plans.plan import assemble
from neuroshard.testing import toy_task
from neuroshard.words.collective import Collective
from neuroshard.words.form import Form
from tests.kit.measuring import Answering
from tests.kit.messages import refused
from tests.kit.plans import whole


def _took(ms):
    return Outcome(Repeats(np.array([ms]), np.zeros(1)), None, 0.0)


def _measured(seen, sample, _):
    """Calls take 1 ms a table, 10 ms more if data-parallel; exchanges 5 ms forward after the wait, 3 ms backward."""
    seen.append(sample)
    if isinstance(sample, ComputeSample):
        return _took(len(sample.tables) + 10.0 * (sample.form is Form.DATA_PARALLEL))
    if sample.collective is Collective.ALL_REDUCE:
        return Outcome(None, "RuntimeError: lost", 0.0)
    starts = np.array(sample.start_ms)
    return _took(np.stack([starts.max() - starts + 5.0, np.full(len(starts), 3.0)]))


@dataclass(frozen=True)
class _Counting(Hardware):
    calls: list = None

    def compute_meter(self, warn):
        return Answering(partial(_measured, self.calls))

    def comm_meter(self, num_devices, warn):
        return Answering(partial(_measured, self.calls))


def _costs(plans, hardware, advance=lambda _: None, count_input=False):
    with meters_of(hardware, print) as meters:
        return measure_plans(meters, plans, 0, advance, count_input)


def test_plans_with_host_tables_need_hardware_with_host_tiers(plan):
    homes = tuple(replace(placed, tier_assignment=TierAssignment(Tier.UVM)) for placed in plan.placements)
    other, calls = replace(plan, placements=homes), []
    with refused("hardware-cpu-lacks-tier", names=["'uvm'"]):
        _costs([plan, other], _Counting(DeviceSpec("cpu"), calls=calls))
    assert not calls
    (cost,) = _costs([other], _Counting(DeviceSpec("cuda"), calls=calls))
    assert cost.compute.tolist() == [1.0, 4.0]
    assert {call.tier_assignment for call in calls if isinstance(call, ComputeSample)} == {TierAssignment(Tier.UVM)}


@pytest.fixture
def plan():
    task = toy_task(5, num_devices=2)
    return assemble(task, [(i, table.dim, min(i, 1)) for i, table in enumerate(task.tables)])


def _measure(plans):
    hardware, advanced = _Counting(DeviceSpec("cpu"), calls=[]), []
    costs = _costs(plans, hardware, advanced.append)
    return costs, hardware.calls, sum(advanced)


def test_column_wise_plan_is_measured_as_one_call_per_device_and_one_exchange(plan):
    (cost,), calls, advanced = _measure([plan])
    assert cost.compute.tolist() == [1.0, 4.0]
    assert cost.backward.tolist() == [3.0, 3.0]
    assert cost.forward.tolist() == [8.0, 5.0]  # device 0 waits for the other's 3 ms more
    assert cost.total_ms == 12.0
    assert [call.dims for call in calls[2:]] == [plan.device_dims] * 2
    assert advanced == steps([plan]) == 4


def test_input_dist_is_measured_and_counted_if_requested(plan):
    hardware, advanced = _Counting(DeviceSpec("cpu"), calls=[]), []
    (cost,) = _costs([plan], hardware, advanced.append, count_input=True)
    assert [call.collective for call in hardware.calls[2:]] == [
        Collective.ALL_TO_ALL, Collective.INPUT, Collective.ALL_TO_ALL
    ]  # fmt: skip
    assert hardware.calls[3].size_bytes == tuple(plan.traffic.sent_bytes(Collective.INPUT)[0].tolist())
    assert cost.ms("input").tolist() == [5.0, 5.0]
    assert cost.forward.tolist() == [8.0, 5.0]  # the input takes both equally long: nobody waits for it
    assert cost.total_ms == 17.0
    assert sum(advanced) == steps([plan], count_input=True) == 5
    assert [part.name for part in _measure([plan])[0][0].parts] == ["compute", "forward", "backward"]


def test_calls_of_several_sharding_types_add_up(plan, monkeypatch):
    calls = tuple(
        (ComputeSample(tables, 256), ComputeSample(tables[:1], 128, Form.DATA_PARALLEL))
        for tables in plan.device_tables
    )
    monkeypatch.setattr(plan_costs, "kernel_calls", lambda plan: calls)
    (cost,), _, advanced = _measure([plan])
    assert cost.compute.tolist() == [1.0 + 11.0, 4.0 + 11.0]
    assert advanced == steps([plan]) == 6


def test_exchanges_of_one_direction_are_measured_one_after_another(plan, monkeypatch):
    first = CommSample.of_columns(plan.device_dims, (0.0, 0.0), 256)
    second = replace(first, size_bytes=(64, 64), collective=Collective.REDUCE_SCATTER)
    monkeypatch.setattr(plan_costs, "exchanges", lambda plan, direction: (first, second))
    (cost,), calls, advanced = _measure([plan])
    assert cost.backward.tolist() == [6.0, 6.0]
    assert cost.forward.tolist() == [13.0, 10.0]
    starts = [call.start_ms for call in calls if isinstance(call, CommSample)]
    assert starts == [(0.0, 0.0), (0.0, 0.0), (0.0, 3.0), (0.0, 0.0)]  # after the first, nobody waits any more
    assert advanced == steps([plan]) == 6


def test_failed_exchange_stops_only_the_measurement_of_its_plan(plan, monkeypatch):
    other = whole(plan.task, 0)
    good = CommSample.of_columns(plan.device_dims, (0.0, 0.0), 256)
    bad = CommSample((64, 64), (0.0, 0.0), 256, Collective.ALL_REDUCE)
    monkeypatch.setattr(plan_costs, "exchanges", lambda its, direction: (bad, good) if its is other else (good,))
    one, failed = _measure([plan, other])[0]
    assert one.total_ms == 12.0
    assert failed == "exchange: RuntimeError: lost"
