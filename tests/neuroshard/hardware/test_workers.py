"""Workers that die, hang or fail; real processes."""

import os
import signal
import time
from functools import partial

import numpy as np
import pytest

from neuroshard.errors import UserError
from neuroshard.hardware.runs import Outcome
from neuroshard.hardware.workers import WorkerGroup
from neuroshard.samples import Repeats


class _Bench:
    """Doubles numbers; misbehaves on some."""

    def __init__(self, rank):
        self.rank = rank

    def measure(self, samples, seeds, report):
        outcomes = []
        for index, sample in enumerate(samples):
            report(index)
            if sample == "die" and self.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if sample == "hang":
                time.sleep(60)
            value = float(sample) if isinstance(sample, int) else 0.0
            outcomes.append(Outcome(Repeats(np.array([2 * value]), np.array([0.0])), None, 0.1))
        return outcomes


def _make(rank, count, port):
    return _Bench(rank)


def _refuse(reason, rank, count, port):
    raise UserError(reason)


def _crash(rank, count, port):
    os._exit(7)


def _values(outcomes):
    return [outcome.error if outcome.repeats is None else outcome.repeats.times_ms[0] for outcome in outcomes]


def test_a_dead_worker_costs_one_sample_and_few_seconds():
    said = []
    with WorkerGroup(_make, 2, 60, said.append) as group:
        start = time.monotonic()
        outcomes = group.measure([1, "die", 3], [0, 0, 0])
        assert time.monotonic() - start < 20
        assert _values(outcomes) == [2.0, "worker 1 died (signal SIGKILL)", 6.0]
        assert _values(group.measure([5], [0])) == [10.0]
    assert len(said) == 1
    assert "worker 1 died" in said[0]


def test_a_silent_worker_is_given_up():
    with WorkerGroup(_make, 1, 2, lambda line: None) as group:
        outcomes = group.measure([1, "hang", 3], [0, 0, 0])
    assert _values(outcomes) == [2.0, "timed out: a worker said nothing for 2 s", 6.0]


@pytest.mark.parametrize(
    ("make", "message"), [(partial(_refuse, "no such device"), "no such device"), (_crash, "died .exit code 7")]
)
def test_workers_that_cannot_start_are_the_users_to_know(make, message):
    with WorkerGroup(make, 2, 60, print) as group, pytest.raises(UserError, match=message):
        group.measure([1], [0])


def test_closing_leaves_no_process():
    group = WorkerGroup(_make, 2, 60, print)
    group.measure([1], [0])
    pids = group.pids
    assert len(pids) == 2
    group.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
