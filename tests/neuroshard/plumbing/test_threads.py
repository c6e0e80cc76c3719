"""Numbers of threads: limits, parallel work, and plans that do not depend on them."""

from threading import Barrier, get_ident

import numpy as np  # noqa: F401  # loads a BLAS
import pytest
from threadpoolctl import threadpool_info

import neuroshard as ns
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing import threads
from neuroshard.plumbing.threads import blas_threads, in_threads, useful_threads
from neuroshard.stages.search.methods.heuristics import Greedy
from neuroshard.testing import random_models, toy_task
from tests.kit.processes import PATIENCE_S


def _threads():
    return [pool["num_threads"] for pool in threadpool_info()]


def test_blas_threads_are_limited_only_inside_the_context():
    with blas_threads(2):
        before = _threads()
        with blas_threads(1):
            assert _threads()
            assert set(_threads()) == {1}
        assert _threads() == before
        with pytest.raises(ZeroDivisionError), blas_threads(1):
            raise ZeroDivisionError
        assert _threads() == before


def test_searches_run_on_one_thread(monkeypatch):
    seen = []
    find = Greedy.find
    monkeypatch.setattr(Greedy, "find", lambda *some: seen.extend(_threads()) or find(*some))
    with blas_threads(2):
        ns.search(toy_task(6), Simulator(random_models()), searcher="dim_greedy")
    assert set(seen) == {1}


def test_search_finds_the_same_plan_with_any_number_of_threads():
    for seed in range(3):
        task, simulator = toy_task(20, seed=seed), Simulator(random_models(seed=seed))
        with blas_threads(2):
            many = ns.search(task, simulator, searcher="neuroshard_published")
            direct = ns.plumbing.registry.build("searcher", "neuroshard_published").find(task, simulator).plan
        assert many == direct


def test_in_threads_works_in_parallel_and_returns_results_in_order():
    together, seen = Barrier(3, timeout=PATIENCE_S), set()

    def work(part):
        together.wait()  # all three must be here at once
        seen.add(get_ident())
        return part * part

    assert in_threads(work, [3, 1, 2, 6, 5, 4], 3) == [9, 1, 4, 36, 25, 16]
    assert len(seen) == 3
    assert in_threads(lambda part: get_ident() + part, [0], 3) == [get_ident()]  # one part needs no thread
    assert in_threads(lambda part: get_ident() + part, [0, 1], 1) == [get_ident(), get_ident() + 1]


def test_useful_threads_are_1_for_little_work_and_8_for_much(monkeypatch):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: range(12), raising=False)
    assert useful_threads(1000) == 1
    assert useful_threads(1_000_000) == 8
