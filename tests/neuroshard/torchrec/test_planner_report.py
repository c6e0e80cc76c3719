"""TorchRec's reports and callbacks with plans of NeuroShard."""

import logging
import re
from dataclasses import replace
from operator import mul

import pytest
from torch import nn
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import Stats

from neuroshard import Constraints, Table, TableRule
from tests.kit.messages import logged_codes, logged_one, refused
from tests.kit.torchrec_models import bags, planner, sequences

ROWS, DIM = 128, 32


class _Listening(Stats):
    def __init__(self):
        self.told = []

    def log(self, **told):
        self.told.append(told)


def _model():
    return nn.ModuleDict({"s": sequences("s", rows=ROWS, dim=DIM), "bags": bags(*"abc", rows=ROWS, dim=DIM)})


def _planned(model=None, **settings):
    """Return the planner, its plan, and the arguments of a report."""
    listening, reservation = _Listening(), FixedPercentageStorageReservation(0.1)
    given = {"stats": listening, "storage_reservation": reservation} | settings
    ours = planner(4, "cuda", 1 << 30, on_host=2, **given)
    plan = ours.plan(model or _model())
    return ours, plan, *listening.told


def test_planner_report_covers_all_modules_of_the_model():
    constraints = {"a": ParameterConstraints(min_partition=8), "s": ParameterConstraints(sharding_types=["table_wise"])}
    ours, plan, told = _planned(constraints=constraints)
    assert told["sharding_plan"] is plan
    assert (told["batch_size"], told["topology"].world_size, set(told["constraints"])) == (4, 4, {"a", "s"})
    options = {option.fqn: option for option in told["best_plan"]}
    assert set(options) == {"bags.a", "bags.b", "bags.c", "s.s"}
    device_ms = [0.0] * 4
    for fqn, option in options.items():
        path, name = fqn.split(".")
        assert [shard.rank for shard in option.shards] == plan.plan[path][name].ranks
        assert all(shard.storage.hbm >= ROWS * shard.size[1] * 4 for shard in option.shards)
        assert all(shard.perf.total > 0 for shard in option.shards)
        for shard in option.shards if path == "bags" else ():
            device_ms[shard.rank] += shard.perf.total
    held = {placed.device for placed in ours.last_plan.placements}
    assert device_ms == pytest.approx([ms if d in held else 0 for d, ms in enumerate(ours.last_cost.device_ms)])


def test_planner_report_splits_compute_into_forward_and_backward_as_torchrec_does():
    """Backward compute is twice forward compute, and both add up to the predicted compute."""
    ours, _, told = _planned(models="roofline:h100")
    perfs = [shard.perf for option in told["best_plan"] for shard in option.shards]
    assert all(perf.bwd_compute == pytest.approx(2 * perf.fwd_compute) for perf in perfs)
    assert sum(perf.input_dist_comms for perf in perfs) > 0
    held = {placed.device for placed in ours.last_plan.placements}
    total = sum(ours.last_cost.compute[device] for device in held)
    assert sum(perf.fwd_compute + perf.bwd_compute for perf in perfs) == pytest.approx(total)


def test_reports_share_communication_by_output_columns_of_sequence_tables():
    """Communication of a device is divided by output columns of samples, not by columns of tables."""
    constraints = {n: ParameterConstraints(sharding_types=["table_wise"]) for n in "abcs"}
    constraints["s"].pooling_factors = [20.0]
    rules = Constraints((TableRule("*", devices=(0,)),))
    ours, _, told = _planned(models="roofline:h100", constraints=constraints, rules=rules)
    comms = {option.name: option.shards[0].perf.fwd_comms for option in told["best_plan"]}
    assert comms["s"] == pytest.approx(20 * comms["a"])
    assert sum(comms.values()) == pytest.approx(ours.last_cost.forward[0])
    assert [option.is_pooled for option in told["best_plan"]] == [option.name != "s" for option in told["best_plan"]]


MEASURED = [Table(name, ROWS, DIM, 2.5, (*(0.0,) * 16, 1.0), 4, 16) for name in "abc"]


def _reported(caplog):
    """The lines that the planner added to TorchRec's report."""
    return [record.getMessage() for record in caplog.records if record.name == "neuroshard.torchrec.planner_report"]


@pytest.mark.parametrize("types", [None, ["table_wise", "column_wise", "data_parallel", "row_wise"]])
def test_torchrecs_own_report_prints_our_plans_and_profiled_lookups(caplog, types):
    caplog.set_level(logging.INFO)
    constraints = {name: ParameterConstraints(sharding_types=types) for name in "abc"} if types else {}
    given = {"models": "roofline:h100", "constraints": constraints}
    _planned(stats=[EmbeddingStats()], tables=MEASURED, **given)
    assert "--- Planner Statistics ---" in caplog.text
    (line,) = [line for line in caplog.text.splitlines() if " bags.b " in line]
    assert " 2.5 " in line
    (report,) = _reported(caplog)
    assert re.findall(r"\b\d+\.\d\d\b|\d+%|roofline:h100", report)[1:] == ["10%", "10%", "roofline:h100"]
    assert 1 <= float(re.search(r"\b\d\.\d\d\b", report)[0]) < 2  # the imbalance
    caplog.clear()
    ours, _ = _planned(stats=None, **given)
    assert "--- Planner Statistics ---" not in caplog.text
    assert str(ours.last_cost) in caplog.text
    assert _reported(caplog) == []


@pytest.mark.parametrize(("models", "waits"), [("h100", True), ("roofline:h100", False)])
def test_reports_have_the_time_that_devices_wait_for_their_hosts(models, waits, caplog):
    caplog.set_level(logging.INFO)
    ours, _, _ = _planned(models=models, data_parallel=True)
    waited_ms = ours.last_cost.waited_ms
    assert (waited_ms > 0) is waits
    assert [f" {waited_ms:.2f} ms " in report for report in _reported(caplog)] == [waits]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, [1.25, 1.25]),
        ({"pooling_factors": [3.0, 1.0]}, [1.875, 0.625]),
        ({"pooling_factors": [3.0, 1.0], "num_poolings": [2.0, 1.0]}, [15 / 14, 5 / 14]),
        ({"pooling_factors": [3.0], "num_poolings": [2.0, 1.0]}, [2.5 / 3, 2.5 / 3]),
        ({"pooling_factors": [3.0], "num_poolings": [2.0], "batch_sizes": [4]}, [1.25]),
    ],
)
def test_reports_have_the_lookups_used_for_planning(given, told):
    """Lookups of constraints are scaled to profiled lookups, because reports multiply by the pooling factors."""
    model = bags("a", rows=ROWS, dim=DIM, features=("f", "g"))
    constraints = {"a": ParameterConstraints(**given)} if given else {}
    _, _, reported = _planned(model, constraints=constraints, tables=MEASURED[:1])
    (option,) = reported["best_plan"]
    poolings = given.get("num_poolings") or [1.0] * len(option.input_lengths)
    assert option.input_lengths == pytest.approx(told)
    assert sum(map(mul, option.input_lengths, poolings)) == pytest.approx(2.5)


def _all_on(rank):
    def moved(options):
        for option in options:
            if option.path == "bags":
                option.shards = [replace(option.shards[0], size=[ROWS, DIM], offset=[0, 0], rank=rank)]
                option.sharding_type = "table_wise"
        return options

    return moved


def _ranks_of_bags(told):
    return {shard.rank for option in told["best_plan"] for shard in option.shards if option.path == "bags"}


def test_planner_result_is_the_plan_that_callbacks_return():
    ours, plan, told = _planned(callbacks=[_all_on(0), _all_on(3)])
    assert {tuple(parameter.ranks) for parameter in plan.plan["bags"].values()} == {(3,)}
    assert {placed.device for placed in ours.last_plan.placements} == {3}
    assert ours.last_cost.compute[3] == ours.last_cost.compute.max()
    assert list(plan.plan["s"]) == ["s"]
    assert _ranks_of_bags(told) == {3}


def test_planner_reports_a_kept_plan_without_calling_its_callbacks_again(path):
    moved, calls = _all_on(3), []
    _, first, _ = _planned(keep=path, callbacks=[moved])

    def counted(options):
        calls.append(options)
        return moved(options)

    counted.__qualname__ = moved.__qualname__
    _, again, told = _planned(keep=path, callbacks=[counted])
    assert again == first
    assert calls == []
    assert _ranks_of_bags(told) == {3}
    _planned(keep=path)
    _, _, told = _planned(keep=path)
    assert _ranks_of_bags(told) != {3}


def test_callbacks_that_break_tables_raise_an_error():
    def broken(options):
        options[0].shards = options[0].shards[:1]
        options[0].shards[0] = replace(options[0].shards[0], size=[ROWS, DIM // 2])
        return options

    with refused("plan-shards-gap", names=["'a'", "row 0", "column 16"]):
        _planned(callbacks=[broken])


@pytest.mark.parametrize(
    ("rule", "widths"),
    [(TableRule("*", min_shards=3), [4, 4, 8]), (TableRule("*", min_shards=2, equal_widths=True), [8, 8])],
)
def test_planner_warns_of_shards_of_unequal_width_that_weights_do_not_load_into(rule, widths, caplog):
    ours = planner(3, rules=Constraints(rules=(rule,)))
    ours.plan(bags("a"))
    assert sorted(placed.shard.dim for placed in ours.last_plan.placements) == widths
    given = ours.plan(bags("a"))
    for planning in (ours, planner(3, given=given)):
        caplog.clear()
        planning.plan(bags("a"))
        assert ("plan-widths-not-loadable" in logged_codes(caplog)) is (len(set(widths)) > 1)
        if len(set(widths)) > 1:
            message = logged_one(caplog, "plan-widths-not-loadable", names=["1 table", "(a)"])
            assert "rules=" in message.remedy
