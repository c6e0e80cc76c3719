"""Plan files: what is written is read, and what is wrong is named."""

import json
from pathlib import Path

import pytest

from neuroshard.cost.cost import Prediction
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.words.placement import Placement, Shard

GOLDEN = Path(__file__).parent / "golden" / "plan-2.json"


def _content():
    return json.loads(GOLDEN.read_text())


def _without_task(content):
    """Tasks have tests of their own, and may get fields that these files don't have."""
    return {name: value for name, value in content.items() if name != "task"}


def test_files_are_read_and_written():
    plan = Plan.load(GOLDEN)
    rows = [table.rows for table in plan.task.tables]
    assert plan.placements == (
        Placement(Shard(0, 0, 16, 0, rows[0]), 0),
        Placement(Shard(0, 16, 8, 0, rows[0]), 2),
        Placement(Shard(1, 0, 8, 0, rows[1]), 1),
    )
    assert plan.prediction == Prediction("cpu", 7.25, 0.5)
    assert plan.violations == ()
    assert _without_task(plan.to_json()) == _without_task(_content())
    assert _content()["format"] == "neuroshard-plan-2"


def test_the_models_are_named_in_the_file():
    assert _content()["prediction"]["models"] == "cpu"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("format"), "is not of format 'neuroshard-plan-2'"),
        (lambda content: content.update(format="neuroshard-plan-3"), "but 'neuroshard-plan-3'"),
        (lambda content: content.update(format=["neuroshard-plan-1"]), "but \\['neuroshard-plan-1'\\]"),
        (lambda content: content.update(format="neuroshard-plan-1"), "of another version of neuroshard: make it anew"),
        (lambda content: content.pop("prediction"), "field 'prediction' is missing"),
        (lambda content: content["placements"][0].pop("tier"), "field 'tier' is missing"),
        (lambda content: content["placements"][0].pop("rows"), "field 'rows' is missing"),
        (
            lambda content: content["placements"][0].update(tier="disk"),
            "unknown tier 'disk'; valid: cached, device, host",
        ),
        (lambda content: content["placements"][0].update(tier=0), r"placements\[0\].tier=0 must be text"),
        (lambda content: content["placements"][0].update(row=-1), r"placements\[0\].row=-1 must be"),
        (lambda content: content["placements"][0].update(dim=2), "dim=2 must be a whole number of at least 4"),
        (lambda content: content["placements"][0].update(offset=0), "unknown field 'offset'"),
        (lambda content: content["placements"][0].update(row=1), "ends with row"),
        (lambda content: content["placements"][0].update(rows=1), "row 1, is covered by no shard"),
        (lambda content: content["placements"][0].update(device=2), "two shards of table"),
        (lambda content: content["placements"].pop(), "is covered by no shard"),
        (lambda content: content["placements"].append(content["placements"][0]), "two shards of table"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    content = _content()
    change(content)
    with pytest.raises(UserError, match=message) as caught:
        Plan.from_json(content, "mine")
    assert str(caught.value).startswith("mine")


def test_row_blocks_are_refused_where_plans_are_read():
    content = _content()
    last = content["placements"].pop()
    half = last["rows"] // 2
    content["placements"] += [last | {"rows": half}, last | {"row": half, "rows": last["rows"] - half, "device": 3}]
    with pytest.raises(UserError, match="blocks of rows on 2 device"):
        Plan.from_json(content)
