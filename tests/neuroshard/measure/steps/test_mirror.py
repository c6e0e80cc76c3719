"""Mirrored steps: one process runs one rank of a larger job, with the exchanges of real ranks."""

import os
import pickle
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from neuroshard.measure import DeviceSpec, EmbeddingSettings, Hardware
from neuroshard.measure._workers.runs import Outcome
from neuroshard.measure.device import CpuDevice
from neuroshard.measure.recorder import meters_of
from neuroshard.measure.steps._mirror import mirrored_world
from neuroshard.measure.steps._mirror_bench import MirrorBench
from neuroshard.measure.steps._pipelines import PhaseClock
from neuroshard.measure.steps._step_bench import Trained, placed_here
from neuroshard.measure.steps.stand_in import drawn_batches, modules_of, renamed, share_of
from neuroshard.measure.steps.step_meters import (
    MirroredStep,
    by_phase,
    check_mirrored,
    measure_rank,
    rank_jobs,
    rows_of_rank,
)
from neuroshard.measure.steps.step_samples import PIPELINES, StepProtocol, Stretch, measured_ranks
from neuroshard.measure.store.plan_measurements import PlanMeasurement, error_of
from neuroshard.measure.store.samples import LOCAL_PHASES, LocalSample, Repeats
from neuroshard.torchrec.kernels import shards_of
from neuroshard.torchrec.sharding_plan import to_sharding_plan
from neuroshard.words.collective import Precision
from neuroshard.words.topology import Topology
from tests.kit.messages import refused
from tests.kit.processes import as_if_under_torchrun
from tests.kit.relay import join_relay
from tests.kit.step_plans import mixed_plan

PROTOCOL = StepProtocol(builds=1, turns=1, steps=1, dense=(8,))
STEPS = 3 + 2 * (1 + 1)  # of a build: warm ones, and two turns of an untimed one and another
SEED = 5

pytestmark = pytest.mark.xdist_group("measures")


def _steps_of_a_real_rank(rank, plan, protocol, folder):
    device = CpuDevice(pin=False)
    trail = PhaseClock(device)
    join_relay(rank, 2, folder / "meet", trail.meeting)
    drawn = drawn_batches(renamed(plan).task.tables, plan.task.batch_size, SEED, device.torch_device)
    its = [share_of(batch, rank, 2) for batch in drawn]
    trained = Trained(plan, protocol, trail, device, its, EmbeddingSettings(), SEED)
    for _ in range(STEPS):
        trail.restart()
        trained.step()
    (folder / str(rank)).write_bytes(pickle.dumps(trail.walk(1)))


def _mirrored(sample, protocol=PROTOCOL, device=CpuDevice):
    bench = MirrorBench(device(pin=False), EmbeddingSettings(), protocol)
    (outcome,) = bench.measure([sample], [SEED], lambda _: None)
    return outcome


def _steps_beside_mirrors(rank, plan, protocol, folder):
    (folder / f"mirrored{rank}").write_bytes(pickle.dumps(_mirrored(LocalSample(plan, rank), protocol)))


def _rows(rank, outcome):
    """Return the measurement rows of the step of a rank, after checking that the step did not fail."""
    rows = rows_of_rank(0, 0, rank, outcome)
    assert error_of(rows) is None
    return rows


def _untimed(rows):
    return [(row.phase, row.until, row.sent_bytes, row.received_bytes) for row in rows]


def _stretches(rank, stretches, took_ms):
    named = zip(stretches, took_ms, strict=True)
    return [PlanMeasurement(0, 0, rank, stretch.phase, ms, None, stretch.until) for stretch, ms in named]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_mirrored_exchanges_equal_exchanges_of_real_ranks(tmp_path, pipeline):
    plan, protocol = mixed_plan(2), replace(PROTOCOL, pipeline=pipeline)
    for steps in (_steps_of_a_real_rank, _steps_beside_mirrors):
        as_if_under_torchrun(2, steps, plan, protocol, tmp_path)
    for rank in range(2):
        real, mirrored = (pickle.loads((tmp_path / name).read_bytes()) for name in (f"{rank}", f"mirrored{rank}"))
        assert mirrored.error is None
        assert mirrored.seen == real.stretches
        (amounts,) = mirrored.repeats.times_ms
        np.testing.assert_array_equal(amounts[1:], real.amounts[1:])  # bytes sent and received
        assert amounts[0].min() >= 0
        assert {"all_to_all", "all_reduce", "reduce_scatter", "all_gather"} < {one.until for one in mirrored.seen}


def test_ballast_lengthens_only_the_dense_phase_of_a_mirrored_step():
    protocols, sample = (PROTOCOL, replace(PROTOCOL, ballast=2048)), LocalSample(mixed_plan(2), 0)
    plain, laden = (_rows(0, _mirrored(sample, its)) for its in protocols)
    assert _untimed(laden) == _untimed(plain)
    dense_ms = [max(row.ms for row in rows if row.phase == "dense") for rows in (plain, laden)]
    assert dense_ms[1] > 10 * dense_ms[0]  # 17 billion operations beside thousands


def test_mirrored_step_over_a_domain_of_fast_links_is_measured_as_on_one_host(monkeypatch):
    monkeypatch.setenv("TORCHREC_RESOLVED_POD_SIZE", "4")  # of the job that plans, for another topology
    joined = mixed_plan(8, devices_per_host=4)
    task = replace(joined.task, topology=Topology(8, 1 << 30, devices_per_host=2, devices_per_domain=4))
    for rank in (0, 3):  # of which the latter is on another host than the first rows
        steps = [_rows(rank, _mirrored(LocalSample(plan, rank))) for plan in (joined, replace(joined, task=task))]
        assert [error_of(rows) for rows in steps] == [None, None]
        assert _untimed(steps[0]) == _untimed(steps[1])


def test_mirrored_exchanges_use_the_data_type_of_the_sample():
    precisions = Precision.FP32, Precision.FP16
    full, half = (_rows(0, _mirrored(LocalSample(mixed_plan(4), 0, its))) for its in precisions)
    stretches = [(row.phase, row.until) for row in full]
    assert stretches == [(row.phase, row.until) for row in half]
    assert {("outputs", "all_to_all"), ("outputs", "reduce_scatter"), ("gradients", "all_gather")} <= {*stretches}
    for whole, narrow in zip(full, half, strict=True):
        share = 0.5 if whole.phase in ("outputs", "gradients") else 1.0
        sizes = [(one.sent_bytes, one.received_bytes) for one in (whole, narrow)]
        assert tuple(share * size for size in sizes[0]) == sizes[1], whole


@pytest.mark.parametrize("ranks", [32, pytest.param(128, marks=pytest.mark.slow)])
def test_single_ranks_of_large_jobs_run_mirrored_steps(ranks):
    plan = mixed_plan(ranks, devices_per_host=8)
    hardware = Hardware(DeviceSpec("cpu"), EmbeddingSettings(optimizer="rowwise_adagrad"))
    jobs = rank_jobs([plan])
    assert [job.rank for job in jobs] == list(measured_ranks(plan))
    first, last = (measure_rank(job, [plan], PROTOCOL, 0, [SEED], hardware, print) for job in (jobs[0], jobs[-1]))
    step = MirroredStep.of([*first, *last])
    assert step.step_ms >= step.phase_ms.sum(axis=(1, 2)).max()
    assert step.slowest_ms.min() > 0
    pooled = next(row for row in last if (row.phase, row.until) == ("outputs", "all_to_all"))
    its = [plan.task.tables[2], plan.task.tables[5]]
    assert pooled.received_bytes == 8 * sum(table.dim for table in its) * 4  # its own 8 samples


def test_mirrored_rank_places_its_shards_on_the_only_device():
    plan = mixed_plan(4, devices_per_host=2)
    with mirrored_world(3, 4, 2, lambda *_: nullcontext()):
        sharding = to_sharding_plan(renamed(plan), modules_of(renamed(plan).task.tables), compute_device="cuda")
        placed = placed_here(sharding, torch.device("cuda", 0))
    shards = [shard for module in placed.plan.values() for its in module.values() for shard in shards_of(its)]
    places = {(shard.placement.rank(), str(shard.placement.device())) for shard in shards}
    assert places == {(0, "cuda:0"), (1, "cuda:1"), (2, "cuda:0"), (3, "cuda:0")}


def test_one_meter_measures_local_work_of_plans_with_different_world_sizes():
    plans = [mixed_plan(4, devices_per_host=2), mixed_plan(2), mixed_plan(8, devices_per_host=4)]
    samples = [LocalSample(plan, plan.task.topology.num_devices - 1) for plan in plans]
    with meters_of(Hardware(DeviceSpec("cpu")), print) as meters:
        assert meters.of(samples[0]) is meters.of(samples[1])
        outcomes = meters.of(samples[0]).measure(samples, [1, 2, 3])
    assert [outcome.error for outcome in outcomes] == [None] * 3
    for outcome in outcomes:
        times_ms = outcome.repeats.times_ms
        assert times_ms.shape == (len(outcome.repeats.at_s), len(LOCAL_PHASES))
        assert times_ms.min() >= 0
        assert times_ms[:, LOCAL_PHASES.index("backward")].min() > 0


def test_phases_add_up_to_a_step():
    stretches = (Stretch("input", "all_to_all"), Stretch("input", ""), Stretch("backward", "all_reduce"))
    amounts = np.array([[[1.0, 2.0, 4.0], [0, 0, 0], [0, 0, 0]]])
    whole = Outcome(Repeats(amounts, np.zeros(1)), None, 0.5, stretches)
    (times_ms,) = by_phase(whole).repeats.times_ms
    took = dict(zip(LOCAL_PHASES, times_ms.tolist(), strict=True))
    assert (took.pop("input"), took.pop("backward")) == (3.0, 4.0)
    assert set(took.values()) == {0.0}
    beside = np.concatenate([amounts, [[[9.0], [0], [0]]]], axis=2)
    told = Outcome(Repeats(beside, np.zeros(1)), None, 0.5, (*stretches, Stretch("host", "")))
    assert by_phase(told).repeats.times_ms.tolist() == [[*times_ms.tolist(), 9.0]]
    failed = Outcome(None, "MemoryError: too much", 0.1)
    assert by_phase(failed) is failed


class _BesideItsHost(CpuDevice):
    """A device whose work would go on while its host launches more."""

    beside_host = True


def test_asynchronous_devices_report_the_launch_time_of_their_host():
    outcome = _mirrored(LocalSample(mixed_plan(2), 1), replace(PROTOCOL, turns=2, steps=2), _BesideItsHost)
    assert [one for one in outcome.seen if one.phase == "host"] == [outcome.seen[-1]]
    times_ms = by_phase(outcome).repeats.times_ms
    assert times_ms.shape == (2, len(LOCAL_PHASES) + 1)
    assert (times_ms[:, -1] >= times_ms[:, :-1].sum(axis=1)).all()  # here the host does all the work, exchanges too
    rows = _rows(1, outcome)
    assert MirroredStep.of(rows).step_ms == pytest.approx(sum(row.ms for row in rows[:-1]))


def test_measured_ranks_are_all_of_a_few_ranks_and_only_outliers_of_many():
    assert measured_ranks(mixed_plan(2)) == (0, 1)
    chosen = measured_ranks(mixed_plan(128))
    assert {0, 1, 127} >= set(chosen) and len(chosen) > 1


def test_a_step_waits_for_the_last_rank_at_every_exchange():
    stretches = (Stretch("input", "all_to_all"), Stretch("lookups", ""), Stretch("outputs", "all_to_all"))
    steps = [
        _stretches(0, (*stretches, Stretch("dense", "")), (1.0, 2.0, 3.0, 4.0)),
        _stretches(5, (*stretches, Stretch("dense", "")), (2.0, 1.0, 3.0, 5.0)),
    ]
    step = MirroredStep.of([*steps[0], *steps[1]])
    assert step.ranks == (0, 5)
    assert step.phase_ms.sum(axis=(1, 2)).tolist() == [10.0, 11.0]
    assert step.slowest_ms.tolist()[:4] == [2.0, 2.0, 3.0, 5.0]
    assert step.step_ms == 12.0
    with pytest.raises(ValueError):
        MirroredStep.of([*steps[0], *steps[1][:-1], replace(steps[1][-1], until="all_reduce")])
    with pytest.raises(ValueError, match="out of memory"):
        MirroredStep.of([*steps[0], PlanMeasurement(0, 0, 5, error="out of memory")])


def test_ranks_in_a_pipeline_do_not_wait_for_the_input_dist():
    """The pipeline sends splits before lookups, and indices between forward and backward of the dense network."""
    stretches = (
        *(Stretch("input", "all_to_all"), Stretch("outputs", "all_to_all"), Stretch("dense", "")),
        *(Stretch("input", "all_to_all"), Stretch("dense", "all_to_all"), Stretch("backward", "")),
    )
    first = _stretches(0, stretches, (1.0, 4.0, 1.0, 3.0, 6.0, 1.0))
    rows = [*first, *_stretches(1, stretches, (3.0, 1.0, 2.0, 1.0, 2.0, 2.0))]
    looped, piped = MirroredStep.of(rows), MirroredStep.of(rows, "sparse_dist")
    assert (looped.step_ms, looped.exposed_ms(7.0)) == (3.0 + 4.0 + 4.0 + 6.0 + 2.0, 7.0)
    assert piped.step_ms == (1.0 + 4.0) + (1.0 + 3.0 + 6.0) + 2.0
    assert piped.phase_ms.sum(axis=(1, 2)).tolist() == looped.phase_ms.sum(axis=(1, 2)).tolist()
    # Rank 0 sends its indices last, 4 ms after outputs, and is the last to come to the gradients, after 10 ms.
    assert [piped.exposed_ms(ms) for ms in (0.0, 6.0, 7.0)] == [0.0, 0.0, 1.0]
    late = _stretches(1, stretches, (3.0, 1.0, 2.0, 6.0, 1.0, 2.0))  # now rank 1 does, after 8 ms
    assert MirroredStep.of([*first, *late], "sparse_dist").exposed_ms(7.0) == 5.0


def test_mirrored_world_restores_environment_and_process_group(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with mirrored_world(1, 4, 2, lambda *_: nullcontext()):
        assert (dist.get_rank(), dist.get_world_size(), os.environ["LOCAL_WORLD_SIZE"]) == (1, 4, "2")
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.tolist() == [4.0] * 3
        with pytest.raises(RuntimeError):
            dist.send(total, 0)
        with pytest.raises(RuntimeError), mirrored_world(0, 2, 2, nullcontext):
            pass
    assert not dist.is_initialized()
    assert os.environ["LOCAL_WORLD_SIZE"] == "3"


def test_check_mirrored_refuses_too_many_or_different_plans_and_torchrun(monkeypatch):
    hardware, plan = Hardware(DeviceSpec("cpu")), mixed_plan(2)
    too_many = hardware.fingerprint.memory_bytes // min(plan.device_bytes) + 1
    with refused("steps-memory-too-small", names=[f"{min(too_many, 10**6):,} plans", "rank "]):
        check_mirrored([plan] * min(too_many, 10**6), hardware)
    with refused("steps-plans-differ"):
        check_mirrored([plan, mixed_plan(4)], hardware)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with refused("mirrored-under-torchrun", names=["torchrun"]):
        check_mirrored([plan], hardware)
