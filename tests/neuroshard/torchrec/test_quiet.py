"""What TorchRec's planner says of tables in copies is kept back, wherever it plans for us; all else is heard."""

import logging
from dataclasses import replace

import neuroshard as ns
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.testing import toy_task
from neuroshard.torchrec.delegated import without_copies_remarks
from neuroshard.words.form import Form
from tests.kit.torchrec_models import bags, planner


def test_other_warnings_are_heard(caplog):
    with without_copies_remarks():
        logging.warning("Sharding spec not found for %s", "a")
        logging.warning("something else")
    logging.warning("Sharding spec not found for b")
    assert [record.getMessage() for record in caplog.records] == ["something else", "Sharding spec not found for b"]


def test_a_search_with_torchrecs_planner_is_quiet(caplog):
    copied = Constraints((TableRule("*", forms=(Form.COPIES,)),))
    task = replace(toy_task(3, num_devices=2), constraints=copied)
    plan = ns.search(task, ns.Simulator(ns.CostModels.load("roofline:h100")), "torchrec_all_forms")
    assert set(plan.forms) == {Form.COPIES}
    assert "Sharding spec" not in caplog.text


def test_a_delegated_table_in_copies_is_quiet(caplog):
    plan = planner().plan(bags("a", dim=10))
    assert plan.plan[""]["a"].sharding_type == "data_parallel"
    assert "delegated" in caplog.text
    assert "Sharding spec" not in caplog.text
