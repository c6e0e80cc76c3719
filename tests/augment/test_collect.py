"""Whole collect runs: small runs on real hardware, and runs that are killed while they write."""

import json
import re
import signal
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from neuroshard.measure import DeviceSpec, EmbeddingSettings, Hardware, Outcome
from neuroshard.measure._workers.workers import forked_warm
from neuroshard.measure.steps.step_samples import Stretch
from neuroshard.measure.store import DataDirectory
from neuroshard.measure.store.noise import fastest
from neuroshard.measure.store.run_directory import RunDirectory
from neuroshard.measure.store.samples import Repeats
from neuroshard.measure.store.splits import REFERENCE
from neuroshard.plumbing.timing import TimingProtocol
from neuroshard.stages.augment.collect import Collect
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.augment.summary import SeriesSummary, Summary
from neuroshard.testing import toy_tables
from neuroshard.words.collective import name_of
from tests.kit.commands import shown
from tests.kit.made_up import OnTwoHosts, drifting
from tests.kit.measuring import Answering
from tests.kit.messages import refused
from tests.kit.processes import PATIENCE_S, die_at_file

TIMING = TimingProtocol(warmup=1, rounds=2, repeats_per_round=1, live=4, flush_bytes=0)


def _measured(shape, sample, seed):
    """Every third sample fails."""
    if seed % 3 == 0:
        return Outcome(None, "MemoryError: too much", 0.0)
    return Outcome(Repeats(np.full(shape, seed % 1000 + 1.0), np.zeros(2)), None, 0.01)


def _steps(sample, seed):
    """Local samples of one rank; every third fails."""
    steps = Outcome(Repeats(np.full((2, 3, 1), 2.5), np.zeros(2)), None, 0.01, (Stretch("input", "all_to_all"),))
    return steps if seed % 3 else _measured((), sample, seed)


@dataclass(frozen=True)
class FakeHardware(Hardware):
    """A CPU on which nothing runs."""

    def compute_meter(self, warn):
        return Answering(partial(_measured, (2,)))

    def comm_meter(self, num_devices, warn):
        return Answering(partial(_measured, (2, 2, num_devices)))

    def mirror_meter(self, protocol, warn):
        return Answering(_steps)


def collect_run(out, kind=FakeHardware, samples=18):
    hardware = kind(DeviceSpec("cpu"), EmbeddingSettings(), TIMING, TIMING, PATIENCE_S)
    comm = CommAugmentation(num_devices=(2,), max_dim=16, min_tables=2, max_tables=6, max_start_ms=2.0)
    compute = ComputeAugmentation(max_dim=16, max_tables=3)
    run = Collect(toy_tables(10), hardware, compute, comm, (64,), str(out), 0, samples, 9, 4)
    return replace(run, max_noise=None)  # machines that tests run on may be as busy as they like


def _records(path):
    directory = DataDirectory(path)
    return [
        (m.sample_id, m.second_pass, m.error, None if m.repeats is None else m.repeats.times_ms.tolist(), m.sample)
        for parts in (directory.compute(), directory.comm())
        for m in fastest(parts.each())
    ]


def test_training_steps_are_measured_if_requested(tmp_path):
    summary = replace(collect_run(tmp_path / "data"), num_local_samples=10).run()
    directory = DataDirectory(tmp_path / "data")
    steps = fastest(directory.local().each())
    assert [m.sample_id for m in steps] == [*range(10), 0, 2, 5, 7]
    assert {m.error is None for m in steps} == {True, False}
    assert all(m.error or m.repeats.times_ms.tolist() == [[2.5, *[0.0] * 7]] * 2 for m in steps)
    assert summary["local work"].measured + summary["local work"].failed == 10
    assert "local work" in shown(summary)
    assert directory.manifest().settings["num_local_samples"] == 10
    with refused("out-begun-otherwise", names=[tmp_path / "data", "num_local_samples=10", 0]):
        collect_run(tmp_path / "data").run()


TIERED = {"tiers": ("device", "uvm_caching")}
ACROSS = {"collectives": ("host_reduce_scatter",)}


def _changed(run, settings):
    """Return the run with changed settings; nested settings are merged with those of the run."""
    own = {key: replace(getattr(run, key), **its) for key, its in settings.items() if isinstance(its, dict)}
    return replace(run, **settings | own)


@pytest.mark.parametrize(
    ("settings", "code", "names"),
    [
        ({"num_local_samples": 1, "local": {"max_bytes": 1}}, "local-tables-too-large", ["local.max_bytes", 1]),
        ({"comm": {"num_devices": (1, 2)}}, "collect-one-device", ["comm.num_devices", 1, "num_comm_samples=0"]),
        ({"comm": ACROSS}, "comm-collective-needs-hosts", ["comm.collectives", "host_reduce_scatter"]),
        ({"batch_sizes": (1, 64)}, "collect-batch-size-too-small", ["batch_sizes", 1, "comm.num_devices=[2]"]),
        ({"batch_sizes": ()}, "value-outside-limits", ["batch_sizes", ()]),
        ({"compute": TIERED}, "hardware-cpu-lacks-tier", ["'uvm_caching'", "hardware=cpu"]),
        ({"max_noise": 0}, "value-outside-limits", ["max_noise", 0]),
        (
            {"num_compute_samples": 0, "num_comm_samples": 0},
            "collect-no-samples",
            ["num_compute_samples", "num_comm_samples", "num_local_samples"],
        ),
    ],
)
def test_collect_refuses_unmeasurable_settings_before_any_measurement(tmp_path, settings, code, names):
    with refused(code, names=names):
        _changed(collect_run(tmp_path / "data"), settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"comm": {"num_devices": (1, 2)}, "num_comm_samples": 0},
        {"hardware": OnTwoHosts(), "comm": ACROSS},
        {"hardware": {"device": DeviceSpec("cuda")}, "compute": TIERED},
    ],
)
def test_collect_accepts_settings_that_need_no_measurement_here(tmp_path, settings):
    assert _changed(collect_run(tmp_path / "data"), settings)


def test_collecting_local_samples_without_torchrec_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("neuroshard.stages.augment.collect.find_spec", lambda _: None)
    with refused("collect-torchrec-missing", names=["num_local_samples", "TorchRec"]):
        replace(collect_run(tmp_path / "data"), num_local_samples=1)


@pytest.mark.xdist_group("measures")
def test_collect_run_on_a_cpu_measures_every_sample(tmp_path):
    summary = collect_run(tmp_path / "data", Hardware).run()
    compute = fastest(DataDirectory(tmp_path / "data").compute().each())
    assert [m.sample_id for m in compute] == [*range(18), 0, 4, 9, 13]
    assert [m.second_pass for m in compute] == [False] * 18 + [True] * 4
    assert all(m.error is None and m.repeats.times_ms.shape == (2,) for m in compute)
    comm = fastest(DataDirectory(tmp_path / "data").comm().each())
    assert all(m.repeats.times_ms.shape == (2, 2, 2) for m in comm)
    assert (summary["compute"].measured, summary["exchanges"].measured) == (18, 9)
    assert len(summary["compute"].repeatability) == 4
    assert 0 < summary["compute"].busy_s < summary["compute"].wall_s


def test_collect_records_failed_samples_and_counts_them_in_the_summary(tmp_path):
    summary = collect_run(tmp_path / "data").run()
    failed = [
        m
        for m in fastest(DataDirectory(tmp_path / "data").compute().each())
        if not m.second_pass and m.error is not None
    ]
    assert summary["compute"].failed == len(failed) > 0
    assert summary["compute"].measured + summary["compute"].failed == 18
    assert (summary["compute"].subsets, summary["exchanges"].subsets) == ((), ())
    assert "MemoryError: too much" in shown(summary)


def test_running_a_finished_collect_run_again_measures_nothing(tmp_path):
    collect_run(tmp_path / "data").run()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*.parquet")}
    assert collect_run(tmp_path / "data").run()["compute"].busy_s == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*.parquet")} == before


def test_collecting_with_the_same_seed_draws_the_same_samples(tmp_path):
    collect_run(tmp_path / "a").run()
    collect_run(tmp_path / "b").run()
    assert _records(tmp_path / "a") == _records(tmp_path / "b")
    replace(collect_run(tmp_path / "c"), seed=1).run()
    assert _records(tmp_path / "a") != _records(tmp_path / "c")


def _collect_and_die(out, number, when):
    """Collect in this process, which kills itself before or after it moves the file of this number to its path."""
    die_at_file(number, when)
    collect_run(out).run()


KILLS = [*product(range(3), ("before", "after"))]


@pytest.mark.parametrize("kills", [KILLS[1::2], pytest.param(KILLS, marks=pytest.mark.slow)])
def test_killed_collect_run_keeps_finished_parts_and_resumes_to_the_same_data(tmp_path, kills):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    collect_run(whole).run()
    kept: dict[Path, int] = {}
    for number, when in kills:
        process = forked_warm().Process(target=_collect_and_die, args=(killed, number, when))
        process.start()
        process.join(PATIENCE_S)
        assert process.exitcode == -signal.SIGKILL  # it was still at work
        now = {path: path.stat().st_mtime_ns for path in killed.rglob("part-*.parquet")}
        assert kept.items() <= now.items()  # what was measured stays as it was
        kept = now
    assert kept
    collect_run(killed).run()
    assert _records(killed) == _records(whole)


def test_collecting_into_data_of_other_hardware_is_refused(tmp_path):
    collect_run(tmp_path / "data").run()
    path = tmp_path / "data" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["hardware"] |= {"kind": "cuda", "device": "NVIDIA H200"}
    path.write_text(json.dumps(manifest))
    with refused("data-other-hardware", names=[tmp_path / "data", "cuda (NVIDIA H200)"]):
        collect_run(tmp_path / "data").run()


def test_exchange_samples_are_measured_for_each_listed_device_count_and_batch_size(tmp_path):
    run = collect_run(tmp_path / "data")
    run = replace(run, comm=replace(run.comm, num_devices=(2, 3)), batch_sizes=(16, 64), num_second_pass=6)
    run.run()
    comm = fastest(DataDirectory(tmp_path / "data").comm().each())
    assert [len(m.sample.dims) for m in comm] == [2] * 4 + [3] * 4 + [2] + [2] * 3 + [3] * 3
    first = {m.sample_id: m.sample for m in comm if not m.second_pass}
    assert all(first[m.sample_id] == m.sample for m in comm if m.second_pass)
    assert {m.sample.batch_size for m in comm} == {16, 64}


def _busy_run(out, spell, **settings):
    """45 samples of three parts, and 6 of them again, each part with a reference; no exchange.

    Kernels take three times as long in some of the batches that are measured, those of the spell.
    """
    busy = drifting([3.0 if batch in spell else 1.0 for batch in range(100)])
    run = replace(collect_run(out, samples=45), hardware=busy, num_comm_samples=0, num_second_pass=6)
    run = replace(run, max_noise=0.5)
    return replace(run, **settings)


def test_each_measured_batch_has_the_same_reference_samples(tmp_path):
    _busy_run(tmp_path / "data", [1, 2], max_noise=None, max_remeasure_passes=0).run()
    parts = DataDirectory(tmp_path / "data").compute()
    references = [m for part in parts.each() for m in part if m.split == REFERENCE]
    took = [m.repeats.times_ms.mean() for m in references]
    assert [ms / took[0] for ms in took] == pytest.approx([1.0, 3.0, 3.0, 1.0])
    assert len({(m.sample_id, m.sample) for m in references}) == 1
    assert references[0].sample_id not in {m.sample_id for m in fastest(parts.each())}


def test_summary_states_the_speeds_of_the_machine(tmp_path):
    for name, spell, references in (("steady", [], 0.06), ("unknown", [1], 0.0), ("known", [1], 0.06)):
        settings = {"max_noise": None, "max_remeasure_passes": 0, "references": references}
        summary = _busy_run(tmp_path / name, spell, **settings).run()
        said = re.search(r"^compute: .* (\d+\.\d+) to (\d+\.\d+) ", shown(summary), re.MULTILINE)
        assert (said is not None) == (name == "known")
        assert DataDirectory(tmp_path / name).manifest().settings["references"] == references
    assert float(said[1]) < 1.0 < 1.1 < float(said[2]) < 3.0


@pytest.mark.parametrize(("spell", "again"), [([1], [16]), ([0, 2], [16, 16]), ([3], [7])])
def test_samples_disturbed_by_other_load_are_measured_again(tmp_path, spell, again):
    _busy_run(tmp_path / "quiet", []).run()
    summary = _busy_run(tmp_path / "busy", spell).run()
    assert _records(tmp_path / "busy") == _records(tmp_path / "quiet")
    parts = sorted((tmp_path / "busy" / "compute").glob("*.parquet"))
    assert [pq.read_metadata(part).num_rows for part in parts] == [16, 16, 16, 7, *again]
    assert summary["compute"].noise < 1e-9


def test_collect_refuses_noise_of_a_busy_machine_and_resumes_once_the_machine_is_quiet(tmp_path):
    """The machine is busy from its second batch on in the first run, always in the second, and never in the third."""
    _busy_run(tmp_path / "quiet", []).run()
    for begin, parts in ((1, 6), (0, 8)):
        with refused("measurements-too-noisy", names=["compute: ", "100.0%", "max_noise", 0.5, tmp_path / "busy"]):
            _busy_run(tmp_path / "busy", range(begin, 1000), max_remeasure_passes=2).run()
        assert len(list((tmp_path / "busy" / "compute").glob("*.parquet"))) == parts
    _busy_run(tmp_path / "busy", []).run()
    assert _records(tmp_path / "busy") == _records(tmp_path / "quiet")


def test_max_noise_null_accepts_any_noise_and_the_summary_states_it(tmp_path):
    summary = _busy_run(tmp_path / "busy", [3], max_noise=None).run()
    assert summary["compute"].noise == pytest.approx(1.0)
    (verdict,) = (line for line in shown(summary).splitlines() if line == str(summary.verdict))
    assert [one for one in ("compute", "100.0%", "+200.0%") if one not in verdict] == []


@pytest.mark.parametrize(
    ("noise", "repeatability", "failed", "fit", "named"),
    [
        (0.2, (0.2,), 1, True, ""),
        (0.476, (0.476,), 0, False, "max_noise=0.3"),
        (0.0, (), 0, True, "num_second_pass"),
        (0.0, (), 4, False, "compute"),
        (0.0, (), None, False, "samples"),
    ],
)
def test_collect_summary_ends_with_fitness_for_use_and_advice(noise, repeatability, failed, fit, named):
    measured = 0 if failed in (4, None) else 10
    series = SeriesSummary("compute", measured, failed or 0, (), 1.0, 0.5, repeatability, noise, 0.0)
    summary = Summary(Path("data"), (series,))
    assert summary.verdict.fit is fit
    assert bool(summary.verdict.advice) is bool(named)
    assert named in str(summary.verdict)
    assert shown(summary).rstrip().splitlines()[-1] == str(summary.verdict)


FORMS = ("column_wise", "row_wise", "data_parallel")
COLLECTIVES = ("all_to_all", "reduce_scatter", "all_reduce", "input")


@pytest.mark.slow
@pytest.mark.xdist_group("measures")
def test_a_real_run_measures_all_sharding_types_and_collectives(tmp_path):
    run = collect_run(tmp_path / "data", Hardware, samples=24)
    compute = replace(
        run.compute, sharding_types=FORMS, sharers=(2,), max_copy_bytes=1 << 20, pooled=(True, False), features=(1, 3)
    )
    comm = replace(run.comm, collectives=COLLECTIVES, max_gradient_bytes=1 << 16)
    summary = replace(run, compute=compute, comm=comm, num_comm_samples=16, num_second_pass=8).run()
    measured = fastest(DataDirectory(tmp_path / "data").compute().each())
    assert all(m.error is None for m in measured)
    assert {m.sample.form for m in measured} == set(FORMS)
    for m in measured:
        assert (
            len(m.sample.lookups)
            == len(m.sample.blocks)
            == (len(m.sample.tables) if m.sample.form == "row_wise" else 0)
        )
        for table, seen in zip(m.sample.tables, m.sample.lookups, strict=False):
            assert seen.count <= max(1, round(64 * table.pooling_factor))
    first = {m.sample_id: m.sample for m in measured if not m.second_pass}
    assert all(first[m.sample_id] == m.sample for m in measured if m.second_pass)
    exchanged = fastest(DataDirectory(tmp_path / "data").comm().each())
    assert all(m.error is None and m.repeats.times_ms.shape == (2, 2, 2) for m in exchanged)
    assert {name_of(m.sample.collective) for m in exchanged} == set(COLLECTIVES)
    calls = {m.sample.call.name for m in measured}
    assert [subset.name for subset in summary["compute"].subsets] == sorted(calls)
    assert calls & {"sequence_column_wise", "sequence_row_wise"}
    assert {table.features for m in measured for table in m.sample.tables} == {1, 3}
    assert [subset.name for subset in summary["exchanges"].subsets] == sorted(COLLECTIVES)
    assert sum(subset.measured for subset in summary["compute"].subsets) == summary["compute"].measured == 24
    assert "reduce_scatter" in shown(summary)


def test_collecting_into_the_directory_of_another_run_is_refused(tmp_path):
    RunDirectory(tmp_path / "data").finish("evaluate", {})
    with refused("out-other-contents", names=[tmp_path / "data", "(run.json)"]):
        collect_run(tmp_path / "data").run()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("compute.sharding_types", ["column_wise"], ["column_wise", "row_wise"]),
        ("comm.collectives", ["all_to_all"], ["input"]),
        ("comm.collectives", ["all_to_all"], ["all_to_all", "all_to_all"]),  # drawn with other numbers
        ("comm.skewed_fraction", 0.5, 0.0),
        ("num_compute_samples", 1, 20),
        ("references", 0.06, 0.0),
    ],
)
def test_collect_run_resumes_only_if_settings_that_draw_samples_are_unchanged(tmp_path, name, before, after):
    run, (setting, _, inner) = collect_run(tmp_path / "data", samples=1), name.partition(".")
    changed = {setting: {inner: after} if inner else after}
    run.run()
    assert run.run()["compute"].busy_s == 0
    with refused("out-begun-otherwise", names=[f"{name}={before}", after]):
        _changed(run, changed).run()
