"""Kills runs at random moments, again and again, and checks that no finished result is lost.

usage: kill_runs.py [KILLS] [CASE ...]    (50; all cases: those of `CASES`, pretrain)

A run is started, killed with SIGKILL after a random share of the time that a whole one takes, and started again with
the same command, until it is done; then a fresh one begins, until so many were killed and one was done at least. After
every kill, whatever was finished before must still be there, byte for byte, and be readable; worker processes must
have ended. Finished runs must equal one that nobody killed: in all but times, and on a made-up device, whose times
are known, in all.

Pre-training replaces a finished bundle by one of another seed, and is killed up to 20 ms after it begins to write: what
is there must load, and be one of the two bundles, byte for byte.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from shared import CPU, simulator_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neuroshard.measure import Hardware
from neuroshard.measure.steps.step_samples import StepProtocol
from neuroshard.measure.store import DataDirectory
from neuroshard.measure.store.noise import fastest
from neuroshard.measure.store.run_directory import RunDirectory, runs_below
from neuroshard.models import load_bundle
from neuroshard.stages.augment.collect import Collect
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.search.evaluate.kernel_measurer import KernelMeasurer
from neuroshard.stages.search.evaluate.measurer import Measurer
from neuroshard.stages.search.evaluate.mirrored_measurer import MirroredMeasurer
from neuroshard.stages.search.evaluate.step_measurer import StepMeasurer
from neuroshard.stages.search.evaluate.verification import Verify
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Random
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.published.grid import GridSettings
from neuroshard.stages.search.results.search_results import SearchRun
from neuroshard.stages.search.runs.evaluate import Evaluate
from neuroshard.stages.search.runs.search import Search
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.tasks.draw import TaskDraw, drawn
from neuroshard.tasks.task import Task
from neuroshard.words.topology import Topology
from tests.kit.devices.made_up import MadeUpHardware

DATA = Path(__file__).resolve().parent / "data" / "cpu"
_WORKERS_END_S, _WRITING_S = 10.0, 0.02
_RUN = "--run"  # the case of that name, here
_SHARES = (0.2, 1.1)  # of the time that a whole run takes, after which runs are killed
_SEEDS = (0, 1)


@dataclass(frozen=True)
class Case:
    """A run that is killed again and again, and the checks of its files.

    Attributes:
        run: arguments of Python, or one of ours; it leaves `out` in its working directory.
        finished: patterns of the files that must survive, once they are there.
        same: whether two finished runs are alike.
    """

    name: str
    run: tuple[str, ...] | Callable[[], object]
    finished: tuple[str, ...]
    same: Callable[[Path, Path], bool]

    @property
    def command(self) -> list[str]:
        """The command that starts the run in a process of its own."""
        arguments = (str(Path(__file__).resolve()), _RUN, self.name) if callable(self.run) else self.run
        return [sys.executable, *arguments]


def _read(out: Path) -> None:
    """Read the data, the bundles and the plans below `out` that can be read alone; the resumed
    run reads the other files.
    """
    for manifest in out.rglob("manifest.json"):
        _sample_ids(manifest.parent)
    for bundle in out.rglob("bundle.json"):
        load_bundle(bundle.parent)
    for run in runs_below(out):
        if (run.path / "plans").exists():
            SearchRun.load(run.path).plans()


def _same_samples(one: Path, other: Path) -> bool:
    return _sample_ids(one) == _sample_ids(other)


def _sample_ids(path: Path) -> list[list[int]]:
    directory = DataDirectory(path)
    return [
        [m.sample_id for m in fastest(its.each())] for its in (directory.compute(), directory.comm(), directory.local())
    ]


def _same_files(*patterns: str) -> Callable[[Path, Path], bool]:
    """Return a function that checks that two runs have the same files with these patterns, byte for byte,
    and at least one such file.
    """
    return lambda one, other: _digests(patterns, one) == _digests(patterns, other) != {}


def _same_names(one: Path, other: Path) -> bool:
    """Return True if two runs have files with the same names. Pictures do not count: they are drawn after a run has
    finished, and the same command draws them again.
    """
    written = "**/*.json", "**/*.parquet"
    return _digests(written, one).keys() == _digests(written, other).keys()


def collect_made_up() -> object:
    """Collect measurements in many small chunks on a made-up device, whose times are formulas."""
    comm = CommAugmentation(num_devices=(2, 4), max_dim=64, min_tables=2, max_tables=6, max_start_ms=2.0)
    tables, device = dlrm_like(num_tables=60, batch_size=1024), MadeUpHardware()
    compute = ComputeAugmentation(max_dim=64, max_tables=8)
    return Collect(tables, device, compute, comm, (1024,), "out", 0, 480, 160, 48).run()


def verified(count: int, hardware: Hardware, measure: Measurer, passes: int) -> object:
    """Search plans of `count` tasks, and verify the candidate plans by measurements."""
    searcher = NeuroShard(
        2, 1, 1, GridSettings(points=2), Improvement(perturbations=1), acceptance=None, sharding_types=("column_wise",)
    )
    verify = Verify(hardware, candidate_plans=passes, passes=passes, measure=measure)
    return Search("cpu", _tasks(count), searcher, "neuroshard", "out", verify=verify).run()


def evaluate_made_up() -> object:
    """Measure the kernels and exchanges of plans of many tasks on a made-up device, whose times are formulas."""
    Search("cpu", _tasks(40), Random(0), "random", "searched", count_input=True).run()
    return Evaluate(["searched"], None, MadeUpHardware(), out="out", count_input=True).run()


def evaluated(measure: Measurer) -> object:
    """Measure a few training steps with two random plans."""
    (task,), simulator = _tasks(1), simulator_of("cpu")
    names = [f"plan-{seed:02d}.json" for seed in range(2)]
    for seed, name in enumerate(names):
        simulator.predicted(Random(seed).find(task, simulator).plan).save(Path(name))
    return Evaluate(names, None, CPU, out="out", count_input=True, measure=measure).run()


def _tasks(count: int) -> tuple[Task, ...]:
    tables = [replace(table, rows=min(table.rows, _MOST_ROWS)) for table in dlrm_like(num_tables=60, batch_size=1024)]
    return drawn(tuple(tables), Topology(2, 4 << 30), 1024, TaskDraw(count, min_tables=8, max_tables=16, max_dim=64))


_STEPS = StepProtocol(builds=2, turns=1, steps=1)
_MIRRORED = MirroredMeasurer(_STEPS, exchanges="cpu")
_MOST_ROWS = 20_000
_DATA = ("manifest.json", "tables.parquet", "compute/*.parquet", "comm/*.parquet", "local/*.parquet")
_BEGUN = ("settings.json", "tasks.json", "run.json")
_MEASURED = ("measurements/*/*.parquet", *_BEGUN)
_PASSES = ("plans/*.json", "candidate_plans/*/*.json", "measurements/*/*.parquet", "candidate_plans.parquet")
_CANDIDATE_PLANS = ("candidate_plans/*/*.json", *_MEASURED)
_EVALUATED = ("devices.parquet", *_MEASURED)  # results say how long searches took, too

CASES = (
    Case(
        "collect",
        ("-m", "neuroshard", "collect", "out=out", "max_noise=null", "num_compute_samples=96",
         "num_comm_samples=64", "num_local_samples=16", "num_second_pass=0", "batch_sizes=[256]",
         "comm.num_devices=[2]", "compute.max_tables=3", "local.max_tables=4", "local.num_devices=[2,4]",
         "tables.num_tables=60"),
        _DATA, _same_samples,
    ),
    Case("collect-made-up", collect_made_up, _DATA, _same_files(*_DATA)),
    Case(
        "verify-made-up", partial(verified, 4, MadeUpHardware(), KernelMeasurer(), 4),
        (*_PASSES, *_BEGUN, "candidate_plans/*.json", "records/*.json", "results.parquet", "measured/*/*.parquet"),
        _same_files(*_PASSES, *_BEGUN),
    ),
    Case("verify-steps", partial(verified, 1, CPU, StepMeasurer(_STEPS), 2), _CANDIDATE_PLANS, _same_names),
    Case("verify-mirrored", partial(verified, 1, CPU, _MIRRORED, 2), _CANDIDATE_PLANS, _same_names),
    Case(
        "evaluate-made-up", evaluate_made_up,
        ("results.parquet", *_EVALUATED, *(f"measured/{one}" for one in _DATA)), _same_files(*_EVALUATED),
    ),
    Case("evaluate-steps", partial(evaluated, StepMeasurer(replace(_STEPS, builds=4))), _MEASURED, _same_names),
    Case("evaluate-mirrored", partial(evaluated, _MIRRORED), _MEASURED, _same_names),
    Case(
        "sweep",
        ("-m", "neuroshard", "search", "-m", "tasks=paper", "tasks.draw.count=8",
         "searcher=random,dim_greedy,neuroshard_published", "out='out/${method}'"),
        ("*/plans/*.json", "*/records/*.json", "*/results.parquet"), _same_files("*/plans/*.json"),
    ),
)  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == [_RUN]:
        next(case for case in CASES if case.name == sys.argv[2]).run()
        return
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    tried: dict[str, Callable[[Path, np.random.Generator], str]] = {
        **{case.name: partial(_tried, case, kills) for case in CASES},
        "pretrain": partial(_replaced, kills),
    }
    rng = np.random.default_rng(0)
    print("| run | kills | of them with files finished | finished files lost or changed | runs finished and compared |")
    print("| --- | --- | --- | --- | --- |")
    for name in sys.argv[2:] or tried:
        with tempfile.TemporaryDirectory() as folder:
            print(tried[name](Path(folder), rng), flush=True)


def _replaced(kills: int, folder: Path, rng: np.random.Generator) -> str:
    """Kill pre-training again and again while it replaces a bundle of another seed; return the
    result as a row of the table.
    """
    out, wholes = folder / "out", []
    for seed in _SEEDS:
        subprocess.run(_pretrain(out, seed), check=True, capture_output=True)
        wholes.append(_bundle(out))
    done, mixed, compared = 0, 0, 0
    while done < kills:
        seed = _SEEDS[1 - wholes.index(_bundle(out))]  # the other one
        process = subprocess.Popen(_pretrain(out, seed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _await_writing(process, out)
        time.sleep(float(rng.uniform(0, _WRITING_S)))
        process.kill()
        killed = process.wait() < 0
        load_bundle(out)
        mixed += _bundle(out) not in wholes
        done, compared = done + killed, compared + (not killed and _bundle(out) == wholes[_SEEDS.index(seed)])
    return f"| pretrain over another bundle | {done} | {done} | {mixed} | {compared} |"


def _pretrain(out: Path, seed: int) -> list[str]:
    few = ("max_samples=100", "compute_model.member.training.epochs=2", "comm_model.training.epochs=2")
    return [sys.executable, "-m", "neuroshard", "pretrain", f"data={DATA}", f"out={out}", f"seed={seed}", *few]


def _bundle(out: Path) -> dict[str, bytes]:
    """Return the content of `bundle.json` and of the weight file that it names, by file name."""
    content = (out / "bundle.json").read_bytes()
    weights = f"weights-{json.loads(content)['weights']}.safetensors"
    return {"bundle.json": content, weights: (out / weights).read_bytes()}


def _await_writing(process: subprocess.Popen[bytes], out: Path) -> None:
    """Wait until a file in `out` appears or disappears, or until the process ends."""
    ours = _names(out) | {".lock"}
    while process.poll() is None and _names(out) | {".lock"} == ours:
        time.sleep(0.0005)


def _names(out: Path) -> set[str]:
    return {file.name for file in out.iterdir()}


def _tried(case: Case, kills: int, folder: Path, rng: np.random.Generator) -> str:
    whole = folder / "whole"
    whole.mkdir()
    began = time.monotonic()
    subprocess.run(case.command, cwd=whole, check=True, capture_output=True)
    whole_s = time.monotonic() - began
    done, with_files, lost, compared = 0, 0, 0, 0
    place, held = folder / "killed", dict[str, str]()
    while done < kills or not compared:
        place.mkdir(exist_ok=True)
        killed = _killed(case, place, float(rng.uniform(*_SHARES)) * whole_s)
        _read(place / "out")
        now = _digests(case.finished, place / "out")
        lost += sum(now.get(name) != digest for name, digest in held.items())
        held = now
        done, with_files = done + killed, with_files + bool(killed and now)
        if not killed or RunDirectory(place / "out").finished:  # as it says, and may refuse to go on
            assert case.same(whole / "out", place / "out"), f"{case.name}: a killed run ended elsewhere"
            compared += 1
            shutil.rmtree(place)
            held = {}
    return f"| {case.name} | {done} | {with_files} | {lost} | {compared} |"


def _killed(case: Case, place: Path, after_s: float) -> bool:
    """Start a run and kill it after `after_s` seconds. Return True if it was killed, and False if it ended before."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(case.command, cwd=place, start_new_session=True, text=True, **quiet)
    try:
        _, said = process.communicate(timeout=after_s)
    except subprocess.TimeoutExpired:
        process.kill()  # it alone: its workers have to notice
        process.communicate()
        _await_workers(process.pid)
        return True
    assert process.returncode == 0, said
    return False


def _await_workers(session: int) -> None:
    """Wait until every process of the killed run's session has ended by itself; fail after 10 s."""
    deadline = time.monotonic() + _WORKERS_END_S
    while subprocess.run(["pgrep", "--session", str(session)], capture_output=True, check=False).stdout:
        assert time.monotonic() < deadline, "worker processes outlive their run"
        time.sleep(0.1)


def _digests(patterns: Sequence[str], out: Path) -> dict[str, str]:
    files = [file for pattern in patterns for file in out.glob(pattern) if not file.name.startswith(".")]
    return {str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


if __name__ == "__main__":
    main()
