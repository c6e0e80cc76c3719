"""Arguments of TorchRec's planner in NeuroShard's planner: plan loaders, timeouts and storage reservations."""

import logging
from copy import deepcopy
from dataclasses import dataclass

import pytest
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.planner.storage_reservations import (
    FixedAbsoluteStorageReservation,
    FixedPercentageStorageReservation,
    HeuristicalStorageReservation,
    InferenceStorageReservation,
)
from torchrec.distributed.planner.types import PlanLoader, StorageReservation
from torchrec.distributed.sharding_plan import get_default_sharders

from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.torchrec import model
from neuroshard.torchrec import planner as planner_module
from neuroshard.torchrec.releases import OTHER_CONTEXT
from tests.kit.messages import check, logged_codes, logged_one, refused
from tests.kit.torchrec_models import bags, places, planner

CAP = 1 << 20


@dataclass
class Stored(PlanLoader):
    """A stored plan: options by their hash, and the hash of the planning context."""

    options: dict | None
    context: str | None

    def load(self):
        return self.options

    def plan_context_hash(self):
        return self.context


class BySku(StorageReservation):
    """A reservation for several kinds of machines: large devices reserve more memory than small ones."""

    def __init__(self):
        self.last = None

    def reserve(self, topology, batch_size, module, sharders, constraints=None):
        self.last = deepcopy(topology)
        for device in self.last.devices:
            device.storage.hbm -= CAP // 4 if device.storage.hbm > CAP // 2 else CAP // 8
        return self.last

    @property
    def last_reserved_topology(self):
        return self.last


def stored_plan(model, reservation=None, hashed=True, **settings):
    """What TorchRec's planner finds for the devices and batch size of `planner()`, stored."""
    ours = planner(**settings)
    [request] = ours._requests
    theirs = EmbeddingShardingPlanner(
        topology=request.topology,
        batch_size=request.batch_size,
        storage_reservation=reservation or FixedPercentageStorageReservation(0.0),
        constraints=dict(request.constraints),
        stats=[],
    )
    plan = theirs.plan(model, get_default_sharders())
    options = {option.storage_hash(): option for option in theirs._best_plan}
    return plan, Stored(options, theirs.hash_planner_context_inputs_str() if hashed else None)


@pytest.mark.parametrize(("device", "hashed"), [("cpu", True), ("cuda", True), ("cpu", False)])
def test_planner_uses_the_plan_of_a_plan_loader(device, hashed, caplog):
    """A stored plan without a hash is used too, as in TorchRec."""
    plan, stored = stored_plan(bags(*"abc"), device=device)
    stored.context = stored.context if hashed else None
    ours = planner(device=device, plan_loader=stored, models="roofline:h100")
    assert places(ours.plan(bags(*"abc"))) == places(plan)
    assert "plan-loader-not-used" not in logged_codes(caplog)
    assert [table.name for table in ours.last_plan.task.tables] == ["a", "b", "c"]
    assert ours.last_cost.total_ms > 0


def test_torchrec_stores_and_loads_plans_of_our_planner(caplog):
    """Our shards have any width; TorchRec's hash of an option depends on the number of shards."""
    found, whole = [], {name: ParameterConstraints(min_partition=4) for name in "ab"}

    def store(options):
        found.extend(options)
        return options

    first = planner(constraints=whole, callbacks=[store]).plan(bags(*"ab"))
    stored = Stored({option.storage_hash(): option for option in found}, None)
    again = planner(constraints=whole, plan_loader=stored)
    fits = all(len(one.ranks) in (1, 4) for one in first.plan[""].values())  # TorchRec cuts into 16 / 4 shards
    assert places(again.plan(bags(*"ab"))) == places(first)
    assert ("plan-loader-not-used" in logged_codes(caplog)) is not fits


def _all_on_one_device(stored):
    stored.context = None
    for shard in (shard for option in stored.options.values() for shard in option.shards):
        shard.rank = 0


@pytest.fixture
def refusals(monkeypatch):
    """The errors of stored plans that the planner refuses."""
    found = []

    def loaded_plan(*given):
        try:
            return model.loaded_plan(*given)
        except UserError as error:
            found.append(error)
            raise

    monkeypatch.setattr(planner_module, "loaded_plan", loaded_plan)
    return found


def _check_planned_again(caplog, refusals, code, names=()):
    """Check that a stored plan was refused with a code, and that the one warning passes the reason on."""
    error = refusals[0]
    check(error.message, code, names=names)
    message = logged_one(caplog, "plan-loader-not-used", names=["plan_loader"])
    assert message.limit == str(error.changed(remedy=""))
    assert message.remedy == error.message.remedy


@pytest.mark.parametrize(
    ("made_with", "asked_with", "change", "code", "named"),
    [
        ({}, {}, lambda stored: setattr(stored, "context", "other"), "plan-loader-context-differs", [OTHER_CONTEXT]),
        ({}, {}, lambda stored: setattr(stored, "options", None), "plan-loader-empty", []),
        ({}, {}, lambda it: it.options.update({5: next(iter(it.options.values()))}), "plan-loader-failed", []),
        ({}, {}, lambda stored: stored.options.popitem(), "plan-loader-tables-missing", ["c"]),
        ({}, {"cap": 3 * 100 * 16 * 4}, _all_on_one_device, "plan-loader-plan-invalid", ["device 0"]),  # its memory
        (
            {"device": "cuda"},
            {"device": "cuda"},
            lambda stored: None,
            "plan-sharding-type-unsupported",
            ["row_wise"],
        ),  # unknown to the models
        (
            {"devices": 4, "num_groups": 2},
            {"devices": 4},
            lambda stored: None,
            "plan-loader-context-differs",
            [OTHER_CONTEXT],
        ),
    ],
)
def test_planner_replans_if_the_plan_of_the_plan_loader_does_not_fit(
    made_with, asked_with, change, code, named, refusals, caplog
):
    _, stored = stored_plan(bags(*"abc"), **made_with)
    change(stored)
    found = planner(plan_loader=stored, **asked_with).plan(bags(*"abc"))
    _check_planned_again(caplog, refusals, code, named)
    assert places(found) == places(planner(**asked_with).plan(bags(*"abc")))


def _elsewhere(stored):
    """Move the rows of a stored plan so that they begin in the middle of a host."""
    stored.context = None
    for shard in (shard for option in stored.options.values() for shard in option.shards):
        shard.rank = (shard.rank + 1) % 4


@pytest.mark.parametrize(("change", "taken"), [(lambda stored: None, True), (_elsewhere, False)])
def test_planner_uses_a_stored_plan_only_if_its_rows_are_on_whole_hosts(change, taken, refusals, caplog):
    said = {"constraints": {"a": ParameterConstraints(sharding_types=["table_row_wise"])}, "models": "roofline:h100"}
    plan, stored = stored_plan(bags("a"), devices=4, device="cuda", on_host=2, **said)
    change(stored)
    again = planner(4, "cuda", on_host=2, plan_loader=stored, **said)
    assert places(again.plan(bags("a"))) == places(plan)
    assert ("plan-loader-not-used" not in logged_codes(caplog)) is taken
    if not taken:
        _check_planned_again(caplog, refusals, "table-blocks-outside-pod", ["ranks 1, 2", "column 0"])


def test_planner_uses_a_stored_plan_with_the_groups_it_was_made_for(refusals, caplog):
    plan, stored = stored_plan(bags(*"abc"), num_groups=2, devices=4)
    ours = planner(4, plan_loader=stored, num_groups="auto", models="roofline:h100")
    assert places(ours.plan(bags(*"abc"))) == places(plan)
    assert ours.last_groups.num_groups == 2
    assert "plan-loader-not-used" not in logged_codes(caplog)
    stored.context = "other"
    refusals.clear()  # of other numbers of groups
    ours.plan(bags(*"abc"))
    _check_planned_again(caplog, refusals, "plan-loader-context-differs", [OTHER_CONTEXT])


def test_timeout_warns_after_the_search_and_keeps_the_plan(monkeypatch, caplog):
    clock = iter(range(0, 1000, 50))
    expected = places(planner(timeout_seconds=1000).plan(bags(*"abc")))
    assert "planning-over-timeout" not in logged_codes(caplog)
    monkeypatch.setattr(planner_module, "perf_counter", lambda: next(clock))
    assert places(planner(timeout_seconds=10).plan(bags(*"abc"))) == expected
    logged_one(caplog, "planning-over-timeout", names=["50.0 s", "timeout_seconds is 10"])


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("make", "left"),
    [
        (lambda: None, int(CAP * 0.85)),
        (lambda: FixedPercentageStorageReservation(0.5), CAP // 2),
        (lambda: FixedAbsoluteStorageReservation(CAP // 4), CAP * 3 // 4),
        (lambda: HeuristicalStorageReservation(0.5, dense_tensor_estimate=1000), CAP // 2 - 1000 - 3 * 4 * 8 * 20),
        (lambda: InferenceStorageReservation(0.5, dense_tensor_estimate=1000), CAP // 2 - 1000 - 3 * 4 * 8),
        (BySku, CAP * 3 // 4),
    ],
)
def test_every_storage_reservation_leaves_its_stated_memory(make, left, caplog):
    caplog.set_level(logging.INFO)
    ours = planner(device="cuda", storage_reservation=make(), stats=EmbeddingStats())
    assert ours.search(bags(*"abc")).task.topology.device_memory == (left, left)
    ours.plan(bags(*"abc"))
    assert "--- Planner Statistics ---" in caplog.text  # TorchRec's words
    assert ours.last_plan.violations == ()


@pytest.mark.parametrize(
    ("reservation", "named"),
    [
        (FixedPercentageStorageReservation(1.0), ["FixedPercentageStorageReservation", "1 MiB"]),
        (FixedAbsoluteStorageReservation(2 * CAP), ["FixedAbsoluteStorageReservation", "1 MiB"]),
        (InferenceStorageReservation(0.5, CAP), ["InferenceStorageReservation", "1.5 MiB"]),
    ],
)
def test_reservation_of_all_memory_is_reported(reservation, named):
    kind, where = InfeasibleError, "storage_reservation"
    with refused("reservation-leaves-nothing", where=where, names=[*named, "device 0"], kind=kind):
        planner(device="cuda", storage_reservation=reservation).plan(bags(*"abc"))
