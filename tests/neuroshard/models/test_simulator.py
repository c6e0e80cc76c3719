from dataclasses import dataclass, replace

import numpy as np
import pytest

from neuroshard import CostModels, Simulator, Task, Tier, TierAssignment, Topology
from neuroshard.cost.cost import When
from neuroshard.models.datasheets import with_host_tiers
from neuroshard.models.interface import CommModel, ComputeModel, PartModel
from neuroshard.models.parts import imbalance
from neuroshard.models.roofline import datasheet_of
from neuroshard.models.trust import DATASHEET, ELSEWHERE, EXCHANGES
from neuroshard.testing import linear_models, random_models, toy_task
from neuroshard.words.fingerprint import Fingerprint, fingerprint
from neuroshard.words.form import Form
from neuroshard.words.model_choice import ModelChoice
from tests.kit.messages import check, refused
from tests.kit.plans import DATA_PARALLEL, laid_out, whole
from tests.kit.searches import H100


def test_cost_of_linear_models_equals_the_cost_computed_by_hand():
    task = toy_task(6)
    plan = whole(task)
    cost = Simulator(linear_models()).cost(task, plan)
    compute = np.array([sum(0.05 + 0.01 * t.dim * t.pooling_factor for t in tables) for tables in plan.device_tables])
    transfer = 0.002 * max(plan.device_dims)
    assert np.allclose(cost.compute, compute, rtol=1e-5)
    assert np.allclose(cost.backward, transfer)
    assert np.allclose(cost.forward, compute.max() - compute + transfer, rtol=1e-5)
    assert cost.total_ms == pytest.approx(compute.max() + 2 * transfer, rel=1e-5)


def test_costs_carry_a_caveat_if_models_are_of_other_hardware(monkeypatch):
    task = toy_task(6)
    plan = whole(task)
    fitted = linear_models()
    here = fingerprint("cpu")
    there = Simulator(replace(fitted, choice=ModelChoice("mine"), hardware=replace(here, device=f"not {here.device}")))
    same = Simulator(replace(fitted, hardware=replace(here, revision="1/2/3")))
    monkeypatch.setattr("neuroshard.models.trust.fingerprint", lambda kind: replace(here, revision="1/2/3"))
    for simulator, caveat, codes in (
        (H100, DATASHEET, ["costs-have-caveat"]),
        (there, ELSEWHERE, ["models-of-other-hardware"]),
        (same, None, []),
        (Simulator(fitted), None, []),
    ):
        cost = simulator.cost(task, plan)
        assert (cost.caveat is None) == (caveat is None)
        assert (cost.caveat or "").startswith(caveat or "")
        assert (f"({cost.caveat})" in str(cost)) == (caveat is not None)
        assert [one.code for one in simulator.warnings(plan)] == codes


@pytest.mark.parametrize(
    ("made_with", "versions"),
    [
        ({}, []),
        ({"torch": "2.13.7+cu130", "fbgemm-gpu": "1.0.0", "numpy": "1.0"}, []),  # FBGEMM for GPUs isn't here
        ({"torch": "2.11.0", "fbgemm-gpu-cpu": "1.8.0"}, ["torch 2.11.0", "torch 2.13.0+cpu"]),
        (
            {"torch": "2.1.0", "fbgemm-gpu-cpu": "1.6.0"},
            ["torch 2.1.0, fbgemm-gpu-cpu 1.6.0", "torch 2.13.0+cpu, fbgemm-gpu-cpu 1.8.0"],
        ),
    ],
    ids=["unknown", "patches", "torch", "both"],
)
def test_costs_carry_one_caveat_if_models_are_of_other_versions(monkeypatch, made_with, versions):
    installed = {"torch": "2.13.0+cpu", "fbgemm-gpu-cpu": "1.8.0", "numpy": "2.4.6"}
    monkeypatch.setattr("neuroshard.words.fingerprint.versions", lambda: installed)
    here, plan = fingerprint("cpu"), whole(toy_task(6))
    no_gpu = Fingerprint("cuda", "none", 0, 1)
    monkeypatch.setattr(
        "neuroshard.models.trust.fingerprint", lambda kind: replace(here, revision="1") if kind == "cpu" else no_gpu
    )
    same = Simulator(replace(linear_models(), hardware=replace(here, revision="1"), versions=made_with))
    there = Simulator(replace(same.models, hardware=replace(here, revision="2")))
    gpu = Simulator(replace(same.models, hardware=Fingerprint("cuda", "H100", 8, 1)))
    caveat = same.cost(plan.task, plan).caveat
    assert (caveat is None) == (not versions)
    assert [one for one in versions if one not in (caveat or "")] == []
    assert [one.cost(plan.task, plan).caveat for one in (there, gpu)] == [ELSEWHERE, None]
    of_versions = ["costs-have-caveat"] * bool(versions)
    assert [[warning.code for warning in one.warnings(plan)] for one in (same, there, gpu)] == [
        of_versions, [*of_versions, "models-of-other-hardware"], [],
    ]  # fmt: skip
    if versions:
        check(there.warnings(plan)[0], "costs-have-caveat", names=versions)


def test_cost_with_a_datasheet_part_has_the_caveat_of_a_datasheet():
    """Models fitted to measurements, with a datasheet's link to the host: of tables in host memory alone it is said."""
    simulator = Simulator(with_host_tiers(linear_models(2), "roofline:h100"))
    task = Task(toy_task(2).tables, Topology(2, 1 << 40, host_memory_bytes=1 << 40), 256)
    plan = whole(task)
    first, *others = plan.placements
    on_hosts = replace(plan, placements=(replace(first, tier_assignment=TierAssignment(Tier.UVM)), *others))
    in_device, in_host = (simulator.cost(task, its).caveat for its in (plan, on_hosts))
    assert in_device is None
    assert DATASHEET in in_host


def _mixed(task):
    """One row-wise table, one data-parallel table, the rest whole."""
    return laid_out(task, range(4), DATA_PARALLEL, *(i % 4 for i in range(2, len(task.tables))))


def test_imbalance_above_that_measured_on_as_many_devices_is_outside_the_training_range():
    task = toy_task(8)
    even = whole(task)
    alone = whole(task, 0)
    name, most = imbalance(np.array([[2.0, 1.0, 1.0, 0.0]]))
    assert most == [2.0]
    models = CostModels.load("cpu")
    known = replace(models.ranges, others={}).with_part(EXCHANGES, {name: np.array([1.0, 2.0])})
    simulator = Simulator(replace(models, ranges=known))
    assert [cost.outside_training_range for cost in simulator.costs(task, [even, alone, _mixed(task)])] == [
        1.0,
        2.0,
        1.0,
    ]
    told = [any(name in one.where for one in simulator.warnings(plan)) for plan in (even, alone)]
    assert told == [False, True]
    of_two = replace(known, others={}).with_part(EXCHANGES, dict([imbalance(np.array([[1.0, 1.0]]))]))
    assert Simulator(replace(simulator.models, ranges=of_two)).cost(task, alone).outside_training_range == 1.0


def test_models_refuse_sharding_types_that_they_cannot_cost():
    task = toy_task(6)
    for models in (linear_models(), random_models()):
        assert models.forms == {Form.COLUMN_WISE}
        names = ["'toy0'", "row_wise", "column_wise", "model=roofline:h100"]
        with refused("plan-sharding-type-unsupported", where="plan", names=names):
            Simulator(models).cost(task, _mixed(task))
    with refused("plan-sharding-type-unsupported", where="plan", names=["'toy1'", "data_parallel"]):
        Simulator(linear_models()).costs(task, [whole(task), laid_out(task, 0, DATA_PARALLEL, 2, 3, 0, 1)])


def test_kernels_of_different_sharding_types_are_called_one_after_the_other():
    """Each kernel call has a launch time, and each exchange a latency."""
    task = toy_task(6)
    plan, models = _mixed(task), CostModels.load("roofline:h100")
    cost = Simulator(models).cost(task, plan)
    loads = plan.device_loads
    ends = loads.counts.cumsum()
    for device, end in enumerate(ends):
        here = loads.loads.take(np.arange(end - loads.counts[device], end))
        kernels = datasheet_of(models.compute)
        alone = (kernels.forward_ms(here) + kernels.backward_ms(here)).sum()
        launches = len(set(here.form.tolist())) * (kernels.forward_call_ms + kernels.backward_call_ms)
        assert cost.compute[device] == pytest.approx(alone + launches, rel=1e-5)
    assert {len(set(loads.loads.form.tolist()))} == {3}
    rows, copied, whole = (plan.traffic.sent_bytes(one).max(axis=1) for one in (1, 4, 0))
    of = models.backward.curves
    back = of("alltoall", 4, whole) + of("all_gather", 4, rows) + of("all_reduce", 4, copied)
    np.testing.assert_allclose(cost.backward, back[0], rtol=1e-6)
    there = cost.forward - (cost.compute + cost.backward).max() + cost.compute + cost.backward
    np.testing.assert_allclose(there, (of("alltoall", 4, whole) + of("reduce_scatter", 4, rows))[0], rtol=1e-6)


def test_costs_of_many_plans_equal_the_cost_of_each_alone():
    task = toy_task(10)
    plans = [whole(task, *(i * k % 4 for i in range(4))) for k in range(4)]
    simulator = Simulator(random_models())
    together = simulator.costs(task, plans)
    for plan, cost in zip(plans, together, strict=True):
        assert simulator.cost(task, plan).total_ms == pytest.approx(cost.total_ms, rel=1e-5)
    assert (together[0].compute[1:] == 0).all()  # empty devices compute nothing


def test_simulator_refuses_models_of_other_device_counts_or_batch_sizes():
    task = toy_task(4, num_devices=2)
    with refused("models-devices-differ", names=["4 devices", "2 devices"]):
        Simulator(linear_models(4)).cost(task, whole(task))
    task = Task(task.tables, Topology(4, 1 << 30), 512)
    with refused("models-batch-size-differs", names=["batch_size=256", "batch_size=512"]):
        Simulator(linear_models(4)).cost(task, whole(task))


def test_simulator_refuses_plans_of_other_tasks():
    with refused("plan-of-other-task", names=["tables"]):
        Simulator(linear_models()).cost(toy_task(4), whole(toy_task(5)))


@dataclass(frozen=True)
class _Kernels(ComputeModel):
    """Predicts the same time for every set of shards."""

    ms: object

    def predict(self, sets):
        return np.full(len(sets), self.ms) if np.isscalar(self.ms) else self.ms


@dataclass(frozen=True)
class _Exchange(CommModel):
    """Predicts the same transfer time for every device."""

    ms: object
    num_devices = None

    def transfer_ms(self, traffic, wait_ms):
        return np.full(wait_ms.shape, self.ms)


@dataclass(frozen=True)
class _OtherPart(PartModel):
    """Predicts the same time on every device."""

    value: object
    name: str = "own"
    when = When.COMPUTE

    def ms(self, times, traffic, ready_ms):
        return self.value


WITH_TIME = {
    "kernels": lambda ms: replace(linear_models(), compute=_Kernels(ms)),
    "forward": lambda ms: replace(linear_models(), forward=_Exchange(ms)),
    "backward": lambda ms: replace(linear_models(), backward=_Exchange(ms)),
    "another part": lambda ms: replace(linear_models(), more=(_OtherPart(ms),)),
}


@pytest.mark.parametrize("ms", [-0.1, np.nan, np.inf])
@pytest.mark.parametrize("part", WITH_TIME)
def test_time_of_an_own_model_that_is_negative_or_not_finite_is_refused(part, ms):
    plan = whole(toy_task(6))
    assert Simulator(WITH_TIME[part](0.1)).cost(plan.task, plan).total_ms > 0
    names = {"kernels": ["_Kernels"], "another part": ["_OtherPart", "'own'"]}.get(part, ["_Exchange", f"'{part}'"])
    with refused("model-time-wrong", names=names):
        Simulator(WITH_TIME[part](ms)).cost(plan.task, plan)


@pytest.mark.parametrize("part", ["kernels", "another part"])
def test_times_of_an_own_model_with_a_wrong_shape_are_refused(part):
    plan = whole(toy_task(6))
    with refused("model-shape-wrong", names=[(3,)]):
        Simulator(WITH_TIME[part](np.ones(3))).cost(plan.task, plan)


@pytest.mark.parametrize("name", ["compute", "forward", "backward", "own"])
def test_part_with_the_name_of_another_part_is_refused(name):
    with refused("part-name-taken", names=[f"'{name}'"]):
        replace(linear_models(), more=(_OtherPart(0.1), _OtherPart(0.1, name)))
