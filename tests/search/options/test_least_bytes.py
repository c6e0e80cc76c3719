"""Tasks that cannot fit are refused before a cost model is asked; tasks that fit are not refused."""

import pytest

from neuroshard import Constraints, InfeasibleError, MemoryUse, PinnedShard, Table, TableRule, Task, Topology
from neuroshard.models.roofline import RooflineComm, RooflineCompute
from neuroshard.stages.search.local.improvement import Improvement
from neuroshard.stages.search.methods.heuristics import Greedy, Random
from neuroshard.stages.search.methods.neuroshard import NeuroShard
from neuroshard.stages.search.methods.published import BeamSearch
from neuroshard.stages.search.methods.replan import Replan
from neuroshard.stages.search.methods.torchrec_planner import TorchRecSearch
from neuroshard.stages.search.options.least_bytes import LeastBytes, check_least_bytes
from neuroshard.stages.search.space.packing import pack
from neuroshard.stages.search.space.search_space import SearchSpace
from neuroshard.testing import ONCE
from neuroshard.words.form import CALLS
from neuroshard.words.placement import ON_DEVICE
from tests.kit.messages import refused
from tests.kit.plans import whole
from tests.kit.searches import H100, found
from tests.kit.tasks import plain_tables
from tests.kit.torchrec_models import bags, planner

QUICKLY = NeuroShard(improvement=Improvement(perturbations=2))
TABLES = plain_tables([32] * 12, range(2000, 14000, 1000))
TOTAL = sum(table.size_bytes for table in TABLES)


def _task(share, host_share=0.0, tables=TABLES, training=False, **fields):
    """Make a task on four devices of two hosts, with memory for shares of the weights of tables."""
    memory = MemoryUse("rowwise_adagrad", 1) if training else MemoryUse()
    topology = Topology(4, int(TOTAL * share / 4), devices_per_host=2, host_memory_bytes=int(TOTAL * host_share / 2))
    return Task(tables, topology, 256, memory, **fields)


@pytest.fixture
def asked(monkeypatch):
    """Record the calls of the cost models."""
    counts = []
    for owner, name in ((RooflineCompute, "embed"), (RooflineComm, "transfer_ms")):
        method = getattr(owner, name)

        def counted(*args, method=method, **settings):
            counts.append(method)
            return method(*args, **settings)

        monkeypatch.setattr(owner, name, counted)
    return counts


def _rule(pattern, **limits):
    return Constraints((TableRule(pattern, **limits),))


NARROW = Table("narrow", 200_000, 4, 2.0, ONCE)  # 3.2 MB, 4 columns wide
PINNED = Constraints((), tuple(PinnedShard(f"t{number}", 32, (1,)) for number in range(9)))
REFUSED = {
    "devices": _task(0.99),
    "devices, training": _task(1.0, training=True),
    "devices and hosts": _task(0.7, 0.29),
    "devices and hosts, training": _task(0.7, 0.3, training=True),
    "hosts": _task(2.0, 0.99, constraints=_rule("*", tiers=("uvm",))),
    "hosts, cached": _task(2.0, 0.99, constraints=_rule("*", tiers=("uvm_caching",))),
    "devices, as the rules say": _task(0.99, 2.0, constraints=_rule("*", tiers=("device",))),
    "rows alone": _task(0.99, constraints=_rule("*", sharding_types=("row_wise",))),
    "data-parallel alone": _task(3.99, constraints=_rule("*", sharding_types=("data_parallel",))),
    "one table column-wise": _task(
        0.9, tables=(*TABLES[:2], NARROW), constraints=_rule("narrow", sharding_types=("column_wise",))
    ),
    "one table never split": _task(
        0.5, tables=(*TABLES[:2], NARROW), constraints=_rule("*", sharding_types=("column_wise",))
    ),
    "confined to some devices": _task(1.5, constraints=_rule("t*", devices=(0, 3))),
    "pinned to one device": _task(
        1.5, constraints=Constraints((), tuple(PinnedShard(f"t{i}", 32, (1,)) for i in range(9)))
    ),
}


@pytest.mark.parametrize("task", REFUSED.values(), ids=REFUSED)
def test_infeasible_task_is_refused_before_any_model_call(task, asked):
    with pytest.raises(InfeasibleError):
        QUICKLY.find(task, H100)
    assert len(asked) == 0


@pytest.mark.parametrize(
    "searcher",
    [
        QUICKLY,
        BeamSearch(),
        Greedy("size"),
        Random(),
        *(TorchRecSearch(sharding_types=its) for its in (("column_wise",), ("column_wise", "row_wise"))),
    ],
    ids=lambda searcher: type(searcher).__name__,
)
@pytest.mark.parametrize("training", [False, True])
def test_searchers_refuse_tables_above_total_memory_before_any_prediction(searcher, training, asked):
    with refused("tables-exceed-devices", kind=InfeasibleError):
        searcher.find(_task(0.99, training=training), H100)
    assert len(asked) == 0


def test_replan_refuses_tables_above_total_memory_before_any_prediction(asked):
    before = whole(_task(8.0), 0)
    with refused("tables-exceed-devices", kind=InfeasibleError):
        Replan(start=before, rest=QUICKLY).find(_task(0.99), H100)
    assert len(asked) == 0


def test_planner_refuses_tables_above_total_memory_before_any_prediction(asked):
    ours = planner(4, "cuda", 1 << 20, on_host=2, models="roofline:h100", batch_size=64)
    with refused("both-memories-too-small", kind=InfeasibleError):
        ours.plan(bags(*"abcdef", rows=20_000, dim=128))
    assert len(asked) == 0


def test_pack_returns_none_above_total_memory_without_packing_any_item(monkeypatch):
    space, looked = SearchSpace.of_task(_task(0.99)), []
    monkeypatch.setattr("neuroshard.stages.search.space.packing._pack_item", lambda *_: looked.append(1))
    assert pack(space, space.free_bytes) is None
    assert looked == []


FITTING = {
    "just": _task(1.01),
    "devices and hosts": _task(0.7, 0.5),
    "rows alone": _task(1.05, constraints=_rule("*", sharding_types=("row_wise",))),
    "data-parallel alone": _task(4.01, constraints=_rule("*", sharding_types=("data_parallel",))),
    "one table row-wise": _task(0.9, tables=(*TABLES[:2], NARROW)),
    "confined to some devices": _task(2.1, constraints=_rule("t*", devices=(0, 3))),
}


@pytest.mark.parametrize("task", FITTING.values(), ids=FITTING)
def test_task_that_just_fits_is_accepted(task):
    check_least_bytes(task, CALLS)
    found(QUICKLY, task)


@pytest.mark.parametrize("form", ["column_wise", "row_wise", "data_parallel"])
@pytest.mark.parametrize("training", [False, True])
def test_least_bytes_are_at_most_the_bytes_of_a_found_plan(form, training):
    task = _task(9.0, training=training, constraints=_rule("*", sharding_types=(form,)))
    least, plan = LeastBytes.of(task, CALLS, [[ON_DEVICE] * len(TABLES)]), found(QUICKLY, task)
    assert least.totals[0] <= sum(plan.device_bytes)
    if not training:
        assert least.totals[0] == sum(plan.device_bytes)
