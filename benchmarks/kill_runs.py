"""Kills runs at random moments, again and again, and looks whether anything was lost.

usage: kill_runs.py [KILLS] [KIND ...]    (50; all kinds: collect, collect-made-up, sweep, pretrain, read)

A run is started, killed with SIGKILL after a random share of the time that a whole one takes, and started again with
the same command, until it is done; then a fresh one begins, until so many were killed and one was done at least. After
every kill, whatever was finished before must still be there, byte for byte, and be readable; worker processes must
have ended. Finished runs must equal one that nobody killed: in all but times, and on a made-up device, whose times
are known, in all.

Pre-training replaces a finished bundle by one of another seed, and is killed up to 20 ms after it begins to write: what
is there must load, and be one of the two bundles, byte for byte. A bundle that is replaced again and again is read
all the time: every reader must get one of the two whole, with its own digest.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import safetensors.numpy

from neuroshard.models import Card, CostModels, save_bundle
from neuroshard.models.bundle import load_bundle
from neuroshard.models.kinds import tensors_of
from neuroshard.records import DataDirectory
from neuroshard.records.run_directory import runs_below
from neuroshard.stages.augment.collect import Collect
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.search.results.search_results import SearchRun
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.testing import random_models
from neuroshard.testing.devices.made_up_hardware import MadeUpHardware

DATA = Path(__file__).resolve().parent / "data" / "cpu"
_WORKERS_END_S = 10.0
_WRITING_S = 0.02
_SHARES = (0.2, 1.1)  # of the time that a whole run takes, after which runs are killed
_SEEDS = (0, 1)
_MADE_UP = "--made-up"  # collects on a made-up device
_REPLACE = "--replace"  # writes bundles
_READS = 200  # of a bundle until its writer is killed, in the mean


@dataclass(frozen=True)
class Kind:
    """One kind of run.

    Attributes:
        arguments: of Python; the run leaves `out` in its working directory.
        finished: the files that must survive, once they are there.
        readable: reads what is there; raises where something is damaged.
    """

    name: str
    arguments: tuple[str, ...]
    finished: tuple[str, ...]
    readable: Callable[[Path], None]
    same: Callable[[Path, Path], bool]


def _read_data(out: Path) -> None:
    if (out / "manifest.json").exists():
        directory = DataDirectory(out)
        directory.manifest()
        directory.compute().read()
        directory.comm().read()


def _read_runs(out: Path) -> None:
    for run in runs_below(out):
        SearchRun.load(run.path).plans()


def _same_samples(one: Path, other: Path) -> bool:
    ids = [[m.sample_id for m in DataDirectory(path).compute().read()] for path in (one, other)]
    return ids[0] == ids[1]


def _same_measurements(one: Path, other: Path) -> bool:
    return _measurements(one) == _measurements(other)


def _measurements(path: Path) -> list[tuple[object, ...]]:
    directory = DataDirectory(path)
    every = [m for parts in (directory.compute(), directory.comm()) for m in parts.read()]
    return [(m.sample, m.sample_id, m.second_pass, m.error, m.repeats and m.repeats.times_ms.tolist()) for m in every]


def _same_plans(one: Path, other: Path) -> bool:
    names = [sorted(str(plan.relative_to(path)) for plan in path.rglob("plans/*.json")) for path in (one, other)]
    return names[0] == names[1] and all((one / n).read_bytes() == (other / n).read_bytes() for n in names[0])


KINDS = (
    Kind(
        "collect",
        ("-m", "neuroshard", "collect", "out=out", "max_noise=null", "num_compute_samples=96",
         "num_comm_samples=64", "num_second_pass=0",
         "batch_sizes=[256]", "comm.num_devices=[2]", "compute.max_tables=3", "tables.num_tables=60"),
        ("compute/*.parquet", "comm/*.parquet", "manifest.json", "tables.parquet"),
        _read_data, _same_samples,
    ),
    Kind(
        "collect-made-up", (str(Path(__file__).resolve()), _MADE_UP),
        ("compute/*.parquet", "comm/*.parquet", "manifest.json", "tables.parquet"),
        _read_data, _same_measurements,
    ),
    Kind(
        "sweep",
        ("-m", "neuroshard", "search", "-m", "tasks=paper", "tasks.draw.count=8",
         "searcher=random,dim_greedy,neuroshard_published",
         "out='out/${method}'"),
        ("*/plans/*.json", "*/records/*.json", "*/results.parquet"), _read_runs, _same_plans,
    ),
)  # fmt: skip


def main() -> None:
    if sys.argv[1:] == [_MADE_UP]:
        _collect_made_up()
        return
    if sys.argv[1:2] == [_REPLACE]:
        _replace(Path(sys.argv[2]))
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    tried: dict[str, Callable[[Path, np.random.Generator], str]] = {
        **{kind.name: partial(_tried, kind, kills) for kind in KINDS},
        "pretrain": partial(_replaced, kills),
        "read": partial(_read_meanwhile, kills),
    }
    rng = np.random.default_rng(0)
    print("| run | kills | of them with files finished | finished files lost or changed | runs finished and compared |")
    print("| --- | --- | --- | --- | --- |")
    for name in sys.argv[2:] or tried:
        with tempfile.TemporaryDirectory() as folder:
            print(tried[name](Path(folder), rng), flush=True)


def _collect_made_up() -> None:
    """Collect in many small parts on a device whose answers are known."""
    comm = CommAugmentation(num_devices=(2, 4), max_dim=64, min_tables=2, max_tables=6, max_start_ms=2.0)
    tables, device = dlrm_like(num_tables=60, batch_size=1024), MadeUpHardware()
    compute = ComputeAugmentation(max_dim=64, max_tables=8)
    Collect(tables, device, compute, comm, (1024,), "out", 0, 480, 160, 48).run()


def _read_meanwhile(kills: int, folder: Path, rng: np.random.Generator) -> str:
    """Of a bundle, while a process replaces it as fast as it can, until it is killed and another one goes on."""
    out, whole, reads, mixed = folder / "out", set[tuple[str | None, bytes]](), 0, 0
    for seed in _SEEDS:
        _save(out, seed)
        whole.add(_read_bundle(out))
    for _ in range(kills):
        process = subprocess.Popen([sys.executable, __file__, _REPLACE, str(out)])
        _await_writing(process, out)
        for _ in range(int(rng.integers(1, 2 * _READS))):
            reads, mixed = reads + 1, mixed + (_read_bundle(out) not in whole)
        process.kill()
        process.wait()
        mixed += _read_bundle(out) not in whole
    return f"| read while it is replaced | {kills} | {reads} reads | {mixed} | - |"


def _replace(out: Path) -> None:
    """Until it is killed."""
    for number in count():
        _save(out, _SEEDS[number % 2])


def _save(out: Path, seed: int) -> None:
    save_bundle(out, random_models(seed=seed), Card())


def _read_bundle(out: Path) -> tuple[str | None, bytes]:
    models = CostModels.load(out)
    return models.digest, safetensors.numpy.save(tensors_of({"forward": models.forward}))


def _replaced(kills: int, folder: Path, rng: np.random.Generator) -> str:
    """Of pre-training over a bundle of another seed."""
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
    """Content by name of what `bundle.json` and the weights that it names hold."""
    content = (out / "bundle.json").read_bytes()
    weights = f"weights-{json.loads(content)['weights']}.safetensors"
    return {"bundle.json": content, weights: (out / weights).read_bytes()}


def _await_writing(process: subprocess.Popen[bytes], out: Path) -> None:
    """Until a file appears or goes, or the run ends."""
    ours = _names(out) | {".lock"}
    while process.poll() is None and _names(out) | {".lock"} == ours:
        time.sleep(0.0005)


def _names(out: Path) -> set[str]:
    return {file.name for file in out.iterdir()}


def _tried(kind: Kind, kills: int, folder: Path, rng: np.random.Generator) -> str:
    whole = folder / "whole"
    whole.mkdir()
    began = time.monotonic()
    subprocess.run(_command(kind), cwd=whole, check=True, capture_output=True)
    whole_s = time.monotonic() - began
    done, with_files, lost, compared = 0, 0, 0, 0
    place, held = folder / "killed", dict[str, str]()
    while done < kills or not compared:
        place.mkdir(exist_ok=True)
        killed = _killed(kind, place, float(rng.uniform(*_SHARES)) * whole_s)
        kind.readable(place / "out")
        now = _digests(kind, place / "out")
        lost += sum(now.get(name) != digest for name, digest in held.items())
        held = now
        if killed:
            done += 1
            with_files += bool(now)
        else:
            assert kind.same(whole / "out", place / "out"), f"{kind.name}: a killed run ended elsewhere"
            compared += 1
            shutil.rmtree(place)
            held = {}
    return f"| {kind.name} | {done} | {with_files} | {lost} | {compared} |"


def _command(kind: Kind) -> list[str]:
    return [sys.executable, *kind.arguments]


def _killed(kind: Kind, place: Path, after_s: float) -> bool:
    """Whether it had to be killed; False if it ended before, as it should."""
    process = subprocess.Popen(
        _command(kind), cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, text=True
    )
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
    """Every process of the session ends by itself."""
    deadline = time.monotonic() + _WORKERS_END_S
    while subprocess.run(["pgrep", "--session", str(session)], capture_output=True, check=False).stdout:
        assert time.monotonic() < deadline, "worker processes outlive their run"
        time.sleep(0.1)


def _digests(kind: Kind, out: Path) -> dict[str, str]:
    files = [file for pattern in kind.finished for file in out.glob(pattern) if not file.name.startswith(".")]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


if __name__ == "__main__":
    main()
