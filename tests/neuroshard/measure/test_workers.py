"""Worker processes that die, hang or fail."""

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from traceback import format_exception

import numpy as np
import pytest

from neuroshard.measure._workers.runs import Outcome
from neuroshard.measure._workers.workers import WorkerGroup
from neuroshard.measure.store.samples import Repeats
from neuroshard.plumbing.errors import UserError, user_error_in
from neuroshard.plumbing.messages import Message
from tests.kit.messages import check, refused
from tests.kit.processes import PATIENCE_S


class _Bench:
    """Doubles numbers; dies at "die", and at a path makes that file and falls silent."""

    def __init__(self, rank):
        self.rank = rank

    def measure(self, samples, seeds, report):
        outcomes = []
        for index, sample in enumerate(samples):
            report(index)
            if sample == "die" and self.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if isinstance(sample, Path):
                sample.touch()
                signal.pause()
            value = float(sample) if isinstance(sample, int) else 0.0
            outcomes.append(Outcome(Repeats(np.array([2 * value]), np.array([0.0])), None, 0.1))
        return outcomes


def _make(rank, count, port):
    return _Bench(rank)


def _refuse(reason, rank, count, port):
    raise UserError("hardware-no-gpu", reason)


def _fail(reason, rank, count, port):
    raise OSError(reason)


def _crash(rank, count, port):
    os._exit(7)


def _values(outcomes):
    return [outcome.error if outcome.repeats is None else outcome.repeats.times_ms[0] for outcome in outcomes]


@dataclass(frozen=True)
class _Flaky:
    """Makes benches, but dies at the starts of these numbers; counts starts in a file."""

    starts: Path
    fatal: tuple[int, ...]

    def __call__(self, rank, count, port):
        if rank == 0:
            with self.starts.open("a") as file:
                file.write(".")
            if self.starts.stat().st_size - 1 in self.fatal:
                os.kill(os.getpid(), signal.SIGKILL)
        return _Bench(rank)


def test_worker_group_fails_only_the_sample_of_a_worker_that_dies():
    said = []
    with WorkerGroup(_make, 2, PATIENCE_S, said.append) as group:
        assert _values(group.measure([1, "die", 3], [0, 0, 0])) == [2.0, "worker 1 died (signal SIGKILL)", 6.0]
        assert _values(group.measure([5], [0])) == [10.0]
    [warning] = said
    check(warning, "worker-stopped", names=["worker 1"])


@pytest.mark.parametrize("fatal", [(1,), (1, 2), (0,)])
def test_worker_group_measures_all_other_samples_if_a_worker_dies_at_start(tmp_path, fatal):
    said = []
    make = _Flaky(tmp_path / "starts", fatal)
    with WorkerGroup(make, 2, PATIENCE_S, said.append) as group:
        assert _values(group.measure([1, "die", 3], [0, 0, 0])) == [2.0, "worker 1 died (signal SIGKILL)", 6.0]
    for warning in said:
        check(warning, warning.code, names=["worker 1" if warning.code == "worker-stopped" else "worker 0", "SIGKILL"])
    assert sorted(warning.code for warning in said) == ["worker-not-started"] * len(fatal) + ["worker-stopped"]


def test_starts_that_keep_failing_end_the_run(tmp_path):
    make = _Flaky(tmp_path / "starts", (1, 2, 3, 4))
    with WorkerGroup(make, 2, PATIENCE_S, print) as group:
        with refused("workers-not-started", names=["worker 0 died (signal SIGKILL)"]):
            group.measure([1, "die", 3], [0, 0, 0])
        assert group.pids == []
    assert make.starts.read_text() == "...."


class _CannotBeMade:
    """Raises an error in place of making a bench."""

    def __init__(self, error):
        self.error = error

    def __call__(self, *_):
        raise self.error


@pytest.mark.parametrize(
    "error",
    [TypeError("x"), RuntimeError("x"), KeyError("x"), SystemExit(0), ImportError("x", name="neuroshard.no_module")],
)
def test_defect_at_the_start_of_workers_is_raised_as_a_defect_with_its_trace(error):
    with WorkerGroup(_CannotBeMade(error), 1, PATIENCE_S, lambda _: None) as group:
        with pytest.raises(RuntimeError, match=type(error).__name__) as raised:
            group.measure([1], [0])
        assert group.pids == []
    assert user_error_in(raised.value) is None
    assert "in __call__" in "".join(format_exception(raised.value))


@pytest.mark.parametrize(
    ("error", "code", "names"),
    [
        (OSError(98, "Address in use"), "workers-not-started", ["OSError", "Address in use"]),
        (MemoryError(), "workers-not-started", ["MemoryError"]),
        (ImportError("x", name="fbgemm_gpu"), "worker-package-missing", ["ImportError: x"]),
    ],
)
def test_user_errors_at_the_start_of_workers_are_raised_as_such(error, code, names):
    with (
        WorkerGroup(_CannotBeMade(error), 1, PATIENCE_S, lambda _: None) as group,
        refused(code, names=names),
    ):
        group.measure([1], [0])


class _Clock:
    """Stands still until `path` appears; then 10 s pass between any two readings, for as long as it is there.

    The first reading after it has appeared tells nothing yet: the message that the sample was begun may not be read.
    """

    def __init__(self, path):
        self.path, self.seen = path, 0

    def __call__(self):
        self.seen += self.path.exists()
        return 10.0 * max(self.seen - 1, 0)


def test_worker_group_gives_up_a_silent_worker(tmp_path):
    hangs = tmp_path / "hangs"
    with WorkerGroup(_make, 1, 2, lambda line: hangs.unlink(), clock=_Clock(hangs)) as group:
        outcomes = group.measure([1, hangs, 3], [0, 0, 0])
    first, silent, last = _values(outcomes)
    assert (first, last) == (2.0, 6.0)
    assert silent.endswith(" 2 s")


@pytest.mark.parametrize(
    ("make", "reason"),
    [(partial(_fail, "no such port"), "OSError: no such port"), (_crash, "died (exit code 7)")],
)
def test_workers_that_cannot_start_raise_a_user_error_with_the_reason(make, reason):
    with WorkerGroup(make, 2, PATIENCE_S, print) as group, refused("workers-not-started", names=[reason]):
        group.measure([1], [0])


def test_user_error_at_the_start_of_a_worker_keeps_code_place_and_reason():
    with (
        WorkerGroup(partial(_refuse, "no such device"), 2, PATIENCE_S, print) as group,
        pytest.raises(UserError) as raised,
    ):
        group.measure([1], [0])
    assert raised.value.message == Message("hardware-no-gpu", "no such device", "starting the worker processes")


def test_closing_a_worker_group_ends_its_processes():
    group = WorkerGroup(_make, 2, PATIENCE_S, print)
    group.measure([1], [0])
    pids = group.pids
    assert len(pids) == 2
    group.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _write_and_wait(place, rank, count, port):
    """Write the number of this process to a file, and never start."""
    (place / f"{rank}.new").write_text(f"{os.getpid()}")
    (place / f"{rank}.new").rename(place / f"{rank}")
    signal.pause()


def _measure_in(place):
    """Start two workers that never become ready."""
    with WorkerGroup(partial(_write_and_wait, place), 2, timeout_s=PATIENCE_S) as group:
        group.measure([1], [0])


def _awaited(happened):
    deadline = time.monotonic() + PATIENCE_S
    while not (result := happened()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return result


def test_workers_end_with_a_killed_parent_even_while_they_wait(tmp_path):
    parent = multiprocessing.get_context("spawn").Process(target=_measure_in, args=(tmp_path,))
    parent.start()
    _awaited(lambda: all((tmp_path / rank).exists() for rank in "01"))
    workers = [int((tmp_path / rank).read_text()) for rank in "01"]
    parent.kill()
    parent.join()
    _awaited(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
