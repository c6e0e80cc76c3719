import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import neuroshard as ns
from neuroshard import InfeasibleError, Simulator, Table, Task, Topology
from neuroshard.plumbing.configs import choices
from neuroshard.plumbing.registry import build
from neuroshard.plumbing.schema import to_bytes
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Greedy, Random
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.published.grid import GridSettings
from neuroshard.testing import ONCE, OpaqueCompute, SearcherConformance, linear_models, random_models, toy_task
from tests.kit.messages import refused
from tests.kit.searches import ms_of
from tests.kit.tasks import plain_tables, plain_task
from tests.search.published.plain_search import plain_search

WHOLE = BeamSearch(max_splits=0)

FEWER_SETTINGS = {"split_factors": [2], "sort_by": ["perf"]}
INSTALLED = {"models": {"model": "cpu"}}
FEWER_PERTURBATIONS = {"improvement": {"perturbations": 20}}
SETTINGS = {
    "neuroshard": FEWER_PERTURBATIONS,
    "torchrec": FEWER_SETTINGS,
    "torchrec_all_types": FEWER_SETTINGS,
    "torchrec_simulated": FEWER_SETTINGS,
    "with_other_models": INSTALLED,
    "without_augmentation": INSTALLED,
}


PEERS = [name for name in choices("searcher") if name.startswith("torchrec")]  # whose planner makes deep copies
# Others with other settings.
ALIKE = ["lookup_greedy", "size_lookup_greedy", "without_augmentation", "without_grid", "without_splits"]


@cache
def _searcher(name):
    return build("searcher", name, **SETTINGS.get(name, {}))


class _Configured(SearcherConformance):
    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make(self):
        return _searcher(self.name)


@pytest.mark.parametrize("name", [name for name in choices("searcher") if name not in (*PEERS, *ALIKE, "replan")])
class TestEverySearcher(_Configured):
    most_tasks = 3


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in choices("searcher") if name != "replan"])
class TestEverySearcherInFull(_Configured):
    pass


def test_greedy_by_dim_balances_columns_over_devices():
    plan = Greedy("dim").find(plain_task([64, 32, 32, 16, 16]), Simulator(linear_models(2))).plan
    assert plan.device_dims == (80, 80)


@pytest.mark.parametrize(
    ("score", "heavy"),
    [
        ("size", {"rows": 100_000}),
        ("dim", {"dim": 128, "rows": 4}),
        ("lookup", {"pooling_factor": 90.0}),
        ("size_lookup", {"pooling_factor": 20.0, "rows": 10_000}),
    ],
)
def test_greedy_places_the_table_with_the_highest_score_alone(score, heavy):
    light = plain_tables([16] * 4, 100)
    tables = (*light, replace(light[0], name="heavy", **heavy))
    plan = Greedy(score).find(Task(tables, Topology(2, 1 << 30), 256), Simulator(linear_models(2))).plan
    assert ["heavy"] in [[table.name for table in tables] for tables in plan.device_tables]


def test_beam_search_with_splits_never_costs_more_than_without():
    for seed in range(6):
        task = toy_task(10, seed=seed)
        simulator = Simulator(random_models(seed=seed))
        split, whole = (ms_of(one.find(task, simulator).plan, simulator) for one in (BeamSearch(), WHOLE))
        assert split <= whole + 1e-4


@pytest.mark.parametrize("num_devices", [2, 4, 8])
def test_neuroshard_never_costs_more_than_the_published_search(num_devices):
    gains = []
    for seed in range(6):
        task = toy_task(12, num_devices, seed=seed)
        simulator = Simulator(random_models(num_devices, seed))
        searchers = BeamSearch(), NeuroShard(improvement=Improvement(perturbations=30))
        published, ours = (ms_of(one.find(task, simulator).plan, simulator) for one in searchers)
        assert ours <= published * (1 + 1e-5)
        gains.append(1 - ours / published)
    assert max(gains) > 0.001


def test_models_of_any_sharding_type_are_searched():
    opaque = replace(linear_models(), compute=OpaqueCompute())
    task, simulator = toy_task(5), Simulator(opaque)
    few_splits = (
        BeamSearch(max_splits=3),
        NeuroShard(max_splits=3, improvement=Improvement(perturbations=10), acceptance=None),
    )
    found = (one.find(task, simulator).plan for one in (Greedy("lookup"), *few_splits))
    greedy, published, ours = (ms_of(plan, simulator) for plan in found)
    _, expected = plain_search(task, simulator, max_splits=3)
    # Searched by a sum, in proportion to costs of tables alone.
    assert expected * (1 - 1e-4) <= published < expected * 1.01
    assert ours < published <= greedy


def test_beam_search_halves_a_dominating_table():
    task, simulator = plain_task([128, 4]), Simulator(linear_models(2))
    plan, whole = (searcher.find(task, simulator).plan for searcher in (BeamSearch(), WHOLE))
    assert sorted(p.shard.dim for p in plan.placements if p.shard.table == 0) in ([64, 64], [60, 68])
    assert ms_of(plan, simulator) < ms_of(whole, simulator)


def test_beam_search_finds_a_plan_if_greedy_finds_no_room():
    dims = [128, 128, 128, 64, 64, 4]
    total = sum(dims) * 1000 * 4
    task = plain_task(dims, devices=3, memory_bytes=total // 3 + 4 * 1000 * 4)
    with refused("searcher-no-device-with-room", names=["'t3'", "188 KiB"], kind=InfeasibleError):
        Greedy("size", max_halvings=0).find(task, Simulator(linear_models(3)))
    assert BeamSearch(max_splits=1).find(task, Simulator(linear_models(3))).plan.fits


def test_search_succeeds_with_the_memory_that_its_error_advises():
    tables = plain_tables(16, 1000 + 317 * np.arange(5), 1.0)
    total = sum(table.size_bytes for table in tables)
    simulator = Simulator(linear_models(3))
    with refused("plan-not-found", names=["'t4'"], kind=InfeasibleError) as caught:
        BeamSearch().find(Task(tables, Topology(3, total // 3 + 1), 256), simulator)
    cap = to_bytes(re.search(r"[\d.]+ [KM]iB", caught.value.message.remedy)[0], "cap")
    assert BeamSearch().find(Task(tables, Topology(3, int(cap * 1.01)), 256), simulator).plan.fits


def test_neuroshard_splits_tables_that_fit_on_no_device():
    task = plain_task([64, 64, 64], memory_bytes=1000 * 100 * 4)
    named = ["'t2'", "250 KiB", "141 KiB"]
    with refused("searcher-no-device-with-room", names=named, kind=InfeasibleError):
        Greedy("size", max_halvings=0).find(task, Simulator(linear_models(2)))
    plan = BeamSearch().find(task, Simulator(linear_models(2))).plan
    assert plan.fits
    assert len(plan.placements) == 4


def test_infeasible_errors_name_the_limiting_tables():
    simulator = Simulator(linear_models(2))
    with refused("tables-exceed-devices", names=["750 KiB", "topology.memory_bytes"], kind=InfeasibleError):
        BeamSearch().find(plain_task([128] * 3, memory_bytes=600_000), simulator)
    tall, small = Table("tall", 25_000, 4, 1.0, ONCE), Table("small", 10, 4, 1.0, ONCE)
    with refused("table-exceeds-device", names=["'tall'", "391 KiB", "4 columns"], kind=InfeasibleError):
        BeamSearch().find(Task((tall, small), Topology(2, 390_000), 256), simulator)


def test_search_function_finds_the_plan_of_the_searcher_class():
    task, simulator = toy_task(6), Simulator(linear_models())
    assert ns.search(task, simulator) == NeuroShard().find(task, simulator).plan
    assert ns.search(task, simulator, searcher="dim_greedy") == Greedy("dim").find(task, simulator).plan
    assert ns.search(task, simulator, beam_width=1) == NeuroShard(beam_width=1).find(task, simulator).plan


def test_unknown_searchers_and_settings_name_the_nearest():
    task, simulator = toy_task(6), Simulator(linear_models())
    with refused("unknown-name", names=["'dim_gredy'", "'dim_greedy'"]):
        ns.search(task, simulator, searcher="dim_gredy")
    with refused("unknown-name", names=["'beam_widht'", "'beam_width'"]):
        ns.search(task, simulator, beam_widht=2)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (BeamSearch, {"beam_width": 0}),
        (BeamSearch, {"beam_width": 1.5}),
        (BeamSearch, {"num_candidates": 0}),
        (BeamSearch, {"max_splits": -1}),
        (GridSettings, {"points": -1}),
        (GridSettings, {"max_factor": float("inf")}),
        (NeuroShard, {"tolerance": float("nan")}),
        (Random, {"seed": "one"}),
    ],
)
def test_searcher_settings_outside_limits_are_refused(kind, setting):
    with refused("value-outside-limits", names=[*setting, *map(repr, setting.values())]):
        kind(**setting)


def test_searchers_refuse_models_for_another_number_of_devices():
    with refused("models-devices-differ", names=["4 devices", "2 devices"]):
        BeamSearch().find(toy_task(6, num_devices=2), Simulator(linear_models(4)))
