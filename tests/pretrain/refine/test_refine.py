"""Whole refine runs on made-up hardware, where the truth is known; killed ones; and a tiny one on real hardware."""

import shutil
import signal
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from neuroshard import CostModels, InfeasibleError, Simulator, Task, Topology, UserError
from neuroshard.hardware import DeviceSpec, EmbeddingSettings, Hardware, Outcome
from neuroshard.hardware.workers import forked_warm
from neuroshard.models import Card, load_bundle, save_bundle
from neuroshard.plumbing.files import read_json
from neuroshard.plumbing.parquet import read_rows
from neuroshard.plumbing.timing import TimingProtocol
from neuroshard.records import DataDirectory
from neuroshard.records.splits import split_tables
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.fit import Fit, margins_of
from neuroshard.stages.pretrain.fit_additive import Additive, Ensemble
from neuroshard.stages.pretrain.fit_set_comm import SetCommunication
from neuroshard.stages.pretrain.measurements import Measured
from neuroshard.stages.pretrain.refine.rounds import Shares, noise_of, rounds_in, slowness
from neuroshard.stages.pretrain.refine.run import Refine
from neuroshard.stages.pretrain.training import TrainingSettings
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.placement.grid import GridSettings
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.testing import toy_task
from neuroshard.testing.devices import MADE_UP, MadeUpCpu, MadeUpExchange, measured_comm, measured_compute
from neuroshard.testing.devices.made_up import MadeUpHardware
from tests.kit.commands import run_command, shown
from tests.kit.made_up import drifting
from tests.kit.measuring import Answering
from tests.kit.plans import COPIES, laid_out
from tests.kit.processes import PATIENCE_S, die_at_file

BATCH_SIZE, DEVICES = 4096, 2
HOME = MADE_UP["cpu"]
# Slower by much, in caches and vectors more than elsewhere.
AWAY = replace(
    HOME,
    compute=MadeUpCpu(
        table_ms=0.06, near_bytes=0.5e6, last_bytes=16e6, near_ms=2e-6, last_ms=12e-6, memory_ms=44e-6,
        memory_line_ms=4e-6, vector_ms=1.4e-6,
    ),
    forward=MadeUpExchange(0.3, 2e6, 1.2),
    backward=MadeUpExchange(0.4, 1.6e6, 1.2),
)  # fmt: skip
CALLS = ComputeAugmentation(max_dim=64, max_tables=10, any_width_share=0.5)
EXCHANGES = CommAugmentation(max_dim=64, min_tables=4, max_tables=16, max_start_ms=20.0)
SEARCH = NeuroShard(3, 1, 2, GridSettings(points=3), Improvement(shakes=2))
FURTHER = TrainingSettings(60, 32, 1e-3, "cosine", "absolute_relative", 60)
BRIEF = replace(FURTHER, epochs=3)  # where it doesn't matter how well models learn
pytestmark = pytest.mark.xdist_group("refine")  # its tests share a bundle that takes long to fit


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A bundle that was fitted to the device at home."""
    rng = np.random.default_rng(0)
    split = split_tables(dlrm_like(num_tables=150, batch_size=BATCH_SIZE, seed=0), 0)
    calls = [CALLS.draw(split, BATCH_SIZE, rng) for _ in range(500)]
    exchanges = [EXCHANGES.draw(DEVICES, BATCH_SIZE, rng) for _ in range(200)]
    measured = Measured.split(measured_compute(HOME, calls, 0.02, rng), measured_comm(HOME, exchanges, 0.02, rng))
    training = TrainingSettings(40, 32, 3e-3, "cosine", "absolute_relative", 40)
    compute, comm = Ensemble(Additive((64, 32), training, corrections=8), 2), SetCommunication((32, 16), training)
    models = replace(Fit(compute, comm)(measured), batch_size=None)  # for any
    path = tmp_path_factory.mktemp("home")
    save_bundle(path, replace(models, margins=margins_of(models, measured)), Card())
    return path


@cache
def _tasks(tasks=3, seed=1):
    tables = dlrm_like(num_tables=60, batch_size=BATCH_SIZE, seed=seed)
    draw = TaskDraw(tasks, min_tables=8, max_tables=16, max_dim=64)
    return drawn(tables, Topology(DEVICES, 4 << 30), BATCH_SIZE, draw)


def _fitters(training):
    """Of models of the home bundle's kinds."""
    return {
        "compute_model": Ensemble(Additive(training_further=training), 2),
        "comm_model": SetCommunication(training_further=training),
    }


def _run(home, out, **changes):
    settings = {
        "model": str(home),
        "tasks": _tasks(),
        "searchers": (Greedy("dim"),),
        "hardware": MadeUpHardware(made_up=AWAY, noise=0.05),
        "calls": CALLS,
        "exchanges": EXCHANGES,
        **_fitters(BRIEF),
        "shares": Shares(measurements=40),
        "samples": 120,
        "out": str(out),
    }
    return Refine(**(settings | changes))


@pytest.mark.slow
def test_errors_on_fresh_proposals_fall_to_the_noise(home, tmp_path):
    further = _fitters(FURTHER)
    result = _run(home, tmp_path / "out", samples=200, shares=Shares(50), searchers=(SEARCH,), **further).run()
    for part in ("compute", "exchange"):
        proposed = [one for each in result.rounds if len(one := each.errors(part, "proposal"))]
        first, last = proposed[0].mean(), proposed[-1].mean()
        noise = noise_of(result.rounds, part)
        assert first > 0.3
        assert len(noise) >= 4
        # Of few pairs, and processors that round differently draw others.
        known_to = 2 * noise.std(ddof=1) / len(noise) ** 0.5
        assert last < 1.5 * (noise.mean() + known_to), part
        assert last < 0.3 * first


def test_what_a_run_leaves(home, tmp_path):
    result = _run(home, tmp_path / "out", searchers=(SEARCH,), enough=0.0).run()
    models, card = load_bundle(tmp_path / "out" / "models")
    assert models.margins is not None
    assert CostModels.load(tmp_path / "out").name == str(tmp_path / "out" / "models")
    assert card.training["refined_from"] == str(home)
    assert card.hardware.device == "made up"
    calls = DataDirectory(tmp_path / "out" / "measured").compute().read()
    assert card.data.compute_samples["train"] == sum(m.split == "train" and not m.second_pass for m in calls)
    assert {m.sample_id for m in calls if m.split == "valid"} == {m.sample_id for m in calls if m.sample_id % 5 == 4}
    columns = Measured.of([DataDirectory.at(tmp_path / "out")], None).columns.sizes
    assert columns["train"] == card.data.compute_samples["train"]
    assert columns["valid"] + columns["test"] == card.data.compute_samples["valid"]
    rows = read_rows(tmp_path / "out" / "rounds.parquet", "rounds")
    assert len(rows) == sum(len(one.samples) for one in result.rounds)
    assert {row["why"] for row in rows} == {"proposal", "doubt", "random"}
    assert (tmp_path / "out" / "refine.png").stat().st_size > 1000
    assert "120 measurements, 0 failed" in shown(result)
    again = _run(home, tmp_path / "out", searchers=(SEARCH,), enough=0.0).run()
    assert again == result


def test_a_run_ends_when_proposals_are_predicted_well_enough(home, tmp_path):
    settings = {"tasks": _tasks(6), "shares": Shares(40, again=0.2, tasks=6)}
    early = _run(home, tmp_path / "early", enough=100.0, **settings).run()
    assert len(early.rounds) == 1
    assert early.why == "the last round's proposals were predicted within 100 times the noise"
    assert len(_run(home, tmp_path / "late", enough=0.0, **settings).run().rounds) == 3


@pytest.mark.parametrize(("samples", "each"), [(7, 40), (41, 40), (45, 15)])
def test_the_budget_is_kept_exactly(home, tmp_path, samples, each):
    still = MadeUpHardware(made_up=AWAY, noise=1e-4)  # never as good as so little noise
    shares = Shares(measurements=each)
    result = _run(home, tmp_path / "out", samples=samples, shares=shares, hardware=still).run()
    directory = DataDirectory(tmp_path / "out" / "measured")
    assert len(directory.compute().read()) + len(directory.comm().read()) == samples
    full, rest = divmod(samples, each)
    assert [one.measurements for one in result.rounds] == [each] * full + [rest] * (rest > 0)


def test_models_of_other_versions_are_told_of_once(home, tmp_path, capsys):
    save_bundle(tmp_path / "old", load_bundle(home)[0], Card(versions={"torch": "0.9.0"}))
    few = {"samples": 10, "shares": Shares(measurements=5), "enough": 0.0}
    for model, times in ((home, 0), (tmp_path / "old", 1)):
        _run(model, tmp_path / f"out{times}", **few).run()
        assert capsys.readouterr().err.count("were measured with torch 0.9.0, where torch ") == times


def _timed_run(home, out, minutes, between_looks):
    """A run of so many minutes; every look at the clock is that many seconds later."""
    clock = map(float, count(0, between_looks)).__next__
    return _run(home, out, samples=None, minutes=minutes, clock=clock, shares=Shares(measurements=20)).run()


def test_minutes_become_samples_once(home, tmp_path):
    result = _timed_run(home, tmp_path / "out", 2.0, 30)
    decided = read_json(tmp_path / "out" / "budget.json", "budget")
    assert decided == {"measurements": 80, "measured": 20, "seconds": 30.0}
    assert sum(one.measurements for one in result.rounds) == 80
    assert _timed_run(home, tmp_path / "out", 2.0, 1000) == result


def _refine_and_die(home, out, settings, number, when):
    """Refine in this process, which kills itself before or after it puts its file of this number in place."""
    die_at_file(number, when)
    _run(home, out, **settings).run()


KILLS = [(1, "before"), (3, "before"), (1, "after"), (2, "after"), (2, "before")]


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "rounds"), [(KILLS[1:4:2], 0), (KILLS, 1)])
def test_a_killed_run_goes_on_to_the_same_bundle(home, tmp_path, kills, rounds):
    settings = {"samples": 45, "shares": Shares(measurements=20), "tasks": _tasks(2)}
    kept: dict[Path, int] = {}
    for number, when in kills:
        arguments = (home, tmp_path / "killed", settings, number, when)
        process = forked_warm().Process(target=_refine_and_die, args=arguments)
        process.start()
        process.join(PATIENCE_S)
        assert process.exitcode == -signal.SIGKILL  # it was still at work
        now = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed" / "measured").rglob("part-*.parquet")}
        assert kept.items() <= now.items()  # what was measured stays as it was
        kept = now
    assert kept
    assert len(rounds_in(tmp_path / "killed").read()) == rounds
    for out in ("killed", "whole"):
        _run(home, tmp_path / out, **settings).run()
    bundles = [read_json(tmp_path / out / "models" / "bundle.json", "bundle") for out in ("killed", "whole")]
    for bundle in bundles:
        del bundle["card"]["data"]["directory"]
    assert bundles[0] == bundles[1]
    killed, whole = (rounds_in(tmp_path / out).read() for out in ("killed", "whole"))
    assert killed == whole


def test_a_run_goes_on_with_the_same_settings_only(home, tmp_path):
    settings = {"samples": 10}
    _run(home, tmp_path / "out", **settings).run()
    with pytest.raises(UserError, match="holds a run already, begun with samples=10, not 11"):
        _run(home, tmp_path / "out", **(settings | {"samples": 11})).run()
    with pytest.raises(UserError, match="other tasks"):
        _run(home, tmp_path / "out", **settings, tasks=_tasks(2)).run()


def test_users_mistakes_are_one_line(home, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match="samples=5 and minutes=2 are both given"):
        _run(home, out, samples=5, minutes=2)
    with pytest.raises(UserError, match="minutes=-1"):
        _run(home, out, samples=None, minutes=-1)
    with pytest.raises(UserError, match=r"exchanges\.collectives=reduce_scatter: the models .* know no such exchanges"):
        _run(home, out, exchanges=replace(EXCHANGES, collectives=("all_to_all", "reduce_scatter"))).run()
    on_hosts = toy_task(num_devices=4)
    on_hosts = replace(on_hosts, topology=replace(on_hosts.topology, devices_per_host=2))
    with pytest.raises(UserError, match="2 of its 4 devices on each host"):
        _run(home, out, tasks=(on_hosts,)).run()
    other = replace(_tasks()[0].tables[0], rows=77)
    with pytest.raises(UserError, match="is another one in another task"):
        _run(home, out, tasks=(_tasks()[0], replace(toy_task(), tables=(other,)))).run()
    tight = replace(_tasks()[0], topology=Topology(DEVICES, 1 << 20))
    with pytest.raises(InfeasibleError):
        _run(home, out, tasks=(tight,)).run()
    assert not out.exists()


@dataclass(frozen=True)
class Listening(Ensemble):
    """Keeps what it is given to learn from."""

    heard: ClassVar[list] = []

    @property
    def further(self):
        return self

    def fit(self, measured, start, seed, on_epoch):
        self.heard.append(measured.known)
        return start


def test_a_machine_that_is_now_fast_and_now_slow_is_seen_through(home, tmp_path):
    times, listening = np.array([1.0, 1.25, 0.8, 1.1]), Listening()
    of_batches = iter([times[0], *times])  # the first round measures its own a second time, in another batch
    moody = drifting(of_batches, made_up=AWAY, compute_timing=TimingProtocol(live=64))
    result = _run(
        home, tmp_path / "out", hardware=moody, samples=200, enough=0.0,
        compute_model=listening, shares=Shares(50, again=0.2),
    ).run()  # fmt: skip
    off = np.log(slowness(result.rounds, "compute") / times)
    assert np.abs(off - off.mean()).max() < 0.06
    of_round = np.repeat(times, [one.count("compute") for one in result.rounds])
    measured = DataDirectory(tmp_path / "out" / "measured").compute().read()
    took = {m.sample_id: m.repeats.times_ms for m in measured if not m.second_pass}
    for m in listening.heard[-1]:
        said = (took[m.sample_id] / m.repeats.times_ms).mean()
        assert np.abs(np.log(said / of_round[m.sample_id]) - off.mean()) < 0.06
    assert "slower by" in shown(result)


@pytest.mark.parametrize("live", [pytest.param(3, marks=pytest.mark.slow), 64])
def test_second_measurements_are_of_earlier_rounds_and_none_is_a_third(home, tmp_path, live):
    timing = TimingProtocol(live=live)
    hardware = MadeUpHardware(made_up=AWAY, compute_timing=timing, comm_timing=timing)
    tasks = (*_tasks(2), replace(_tasks(1, seed=1)[0], topology=Topology(3, 4 << 30)))
    shares = Shares(30, again=0.3, exchanges=0.4)
    result = _run(
        home, tmp_path / "out", tasks=tasks, hardware=hardware, samples=120, enough=0.0, shares=shares,
    ).run()  # fmt: skip
    again = [(its.number, one) for its in result.rounds for one in its.again]
    assert all(one.before < number for number, one in again if number)
    assert len({(one.part, one.sample_id) for _, one in again}) == len(again) == 4 * 9
    measured = DataDirectory(tmp_path / "out" / "measured")
    for part, parts in (("compute", measured.compute()), ("exchange", measured.comm())):
        found = [(m.sample_id, m.second_pass) for m in parts.read()]
        assert len(set(found)) == len(found)
        twice = {number for number, second in found if second}
        assert twice == {one.sample_id for _, one in again if one.part == part}


def test_parts_of_other_samples_are_not_taken_for_these(home, tmp_path):
    settings = {"samples": 40, "enough": 0.0, "shares": Shares(20)}
    for name, seed in (("one", 0), ("other", 1)):
        _run(home, tmp_path / name, **settings, seed=seed).run()
    shutil.rmtree(tmp_path / "one" / "models")
    second = tmp_path / "one" / "rounds" / "round-0001.json"
    second.unlink()
    mine, others = (
        sorted((tmp_path / name / "measured" / "compute").glob("*.parquet"))[-1] for name in ("one", "other")
    )
    assert mine.name == others.name
    kept = mine.read_bytes()
    mine.write_bytes(others.read_bytes())
    with pytest.raises(UserError, match=r"holds another sample .* than this run chooses now"):
        _run(home, tmp_path / "one", **settings).run()
    mine.write_bytes(kept)
    sorted((tmp_path / "one" / "measured" / "compute").glob("*.parquet"))[0].unlink()
    with pytest.raises(UserError, match=r"lacks [0-9]+ measurements of rounds that are done"):
        _run(home, tmp_path / "one", **settings).run()


def test_minutes_are_kept_by_a_run_that_was_killed_after_its_first_round(home, tmp_path):
    first = _timed_run(home, tmp_path / "out", 1.0, 600)
    assert len(first.rounds) == 1  # it took longer than the minutes
    shutil.rmtree(tmp_path / "out" / "models")
    (tmp_path / "out" / "rounds" / "round-0000.json").unlink()  # the budget was written before it
    assert _timed_run(home, tmp_path / "out", 1.0, 0.001) == first


@pytest.mark.slow
def test_gains_of_forms_come_true(tmp_path):
    """From installed models that are wrong about copies and rows here by half."""
    tables = (replace(table, rows=min(table.rows, 2000)) for table in dlrm_like(24, batch_size=BATCH_SIZE, seed=3))
    small = Task(tuple(tables), Topology(DEVICES, 4 << 30), BATCH_SIZE)
    fitters = {"compute_model": Ensemble(), "comm_model": SetCommunication()}
    _run(
        "cpu", tmp_path / "out", tasks=(small,), hardware=MadeUpHardware(made_up=HOME, noise=0.02),
        samples=150,
        shares=Shares(50, exchanges=0.4, proposals=0.25, doubts=0.5), **fitters,
    ).run()  # fmt: skip
    simulators = [Simulator(models) for models in (CostModels.load(tmp_path / "out"), HOME.truth)]
    columns = Greedy("dim").find(small, simulators[0]).plan
    for plan in (laid_out(small, *[COPIES] * 24), laid_out(small, *[range(DEVICES)] * 24)):
        promised, true = (sim.cost(small, plan).total_ms / sim.cost(small, columns).total_ms for sim in simulators)
        assert promised == pytest.approx(true, rel=0.1)


BROKEN = Answering(lambda sample, seed: Outcome(None, "MemoryError: too much", 0.0))


@dataclass(frozen=True)
class _BrokenHardware(MadeUpHardware):
    """Kernels fail; exchanges too, if they are to."""

    exchanges_too: bool = False

    def compute_meter(self, warn):
        return BROKEN

    def comm_meter(self, num_devices, warn):
        return BROKEN if self.exchanges_too else super().comm_meter(num_devices, warn)


def test_failed_samples_are_counted_and_left_out(home, tmp_path):
    settings = {"samples": 20}
    result = _run(home, tmp_path / "half", hardware=_BrokenHardware(made_up=AWAY), **settings).run()
    failed = [one for one in result.rounds[0].samples if one.measured_ms is None]
    assert {one.part for one in failed} == {"compute"}
    assert f"20 measurements, {len(failed)} failed" in shown(result)
    before, after = CostModels.load(home), CostModels.load(tmp_path / "half" / "models")
    assert after.forward.scale_ms > before.forward.scale_ms
    assert [m.scale_ms for m in after.compute.members] == [m.scale_ms for m in before.compute.members]
    with pytest.raises(UserError, match="nothing could be measured: MemoryError: too much; what was tried stands in"):
        _run(home, tmp_path / "none", hardware=_BrokenHardware(exchanges_too=True), **settings).run()


def test_one_device_exchanges_nothing(home, tmp_path):
    alone = tuple(replace(task, topology=Topology(1, 16 << 30)) for task in _tasks(2))
    result = _run(home, tmp_path / "out", tasks=alone, samples=20).run()
    assert result.rounds[0].count("compute") == 18
    assert result.rounds[0].count("exchange") == 0


def test_a_tiny_run_on_real_hardware(home, tmp_path):
    timing = TimingProtocol(warmup=1, rounds=2, repeats_per_round=1, live=8, flush_bytes=0)
    hardware = Hardware(DeviceSpec("cpu"), EmbeddingSettings(), timing, timing, PATIENCE_S)
    task = toy_task(num_devices=2)
    calls = ComputeAugmentation(max_dim=16, max_tables=3)
    result = _run(
        home, tmp_path / "out", hardware=hardware, tasks=(task,), calls=calls, samples=16,
        shares=Shares(measurements=8, again=0.25),
    ).run()  # fmt: skip
    assert sum(one.measurements for one in result.rounds) <= 16
    assert all(one.measured_ms for its in result.rounds for one in its.samples)
    models = CostModels.load(tmp_path / "out" / "models")
    assert models.hardware.kind == "cpu"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "model=roofline:h100",
            "the compute model of roofline:h100 can't be fitted further: this compute_model makes none of its kind",
        ),
        ("samples=0", "samples=0 must be a whole number of at least 1"),
        ("shares.again=0.9", "again=0.9 must be a number of at most 0.5"),
        ("compute_model.member.training_further.loss=mape", "unknown loss 'mape'"),
        ("exchanges.num_devices=[2]", "unknown setting of neuroshard refine 'exchanges.num_devices'"),
        ("calls.forms=[rows]", "unknown setting of neuroshard refine 'calls.forms'"),
        ("exchanges.collectives=[host_all_to_all]", "host_all_to_all needs several hosts"),
        ("calls.tiers=[cached]", "has no second tier of memory"),
    ],
)
def test_settings_that_a_run_could_not_use_are_refused_in_a_line(tmp_path, capsys, monkeypatch, setting, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = run_command(capsys, "refine", setting)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
