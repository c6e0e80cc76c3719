"""Plans that outlive a job: kept in a file, read where the same is asked, changed or made anew where not."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.types import BoundsCheckMode

from neuroshard.errors import UserError
from neuroshard.plans.plan import Plan, assemble
from neuroshard.searcher import Searcher
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.testing import linear_models
from neuroshard.testing.toys import LinearCompute
from neuroshard.torchrec import NeuroShardPlanner
from neuroshard.torchrec.kept import KeptPlan, digests, load_any_plan
from neuroshard.torchrec.made_for import made_for

META = torch.device("meta")
NONE = FixedPercentageStorageReservation(0.0)


class _Counting(Searcher):
    """Everything on the last device; counts how often it is asked."""

    def __init__(self):
        self.asked = 0

    def search(self, task, simulator):
        self.asked += 1
        return assemble(task, [(i, table.dim, task.topology.num_devices - 1) for i, table in enumerate(task.tables)])


def _model(*names, rows=100, sequences=True):
    bags = [EmbeddingBagConfig(name=n, num_embeddings=rows, embedding_dim=16, feature_names=[f"f_{n}"]) for n in names]
    modules = {"bags": EmbeddingBagCollection(bags, device=META)}
    if sequences:
        config = EmbeddingConfig(name="s", num_embeddings=50, embedding_dim=8, feature_names=["f_s"])
        modules["sequences"] = EmbeddingCollection([config], device=META)
    return nn.ModuleDict(modules)


def _models(devices, **compute):
    return replace(linear_models(devices), compute=LinearCompute(**compute), batch_size=None)


def _planner(path, devices=2, searcher=None, **settings):
    topology = Topology(devices, "cpu", ddr_cap=1 << 20, local_world_size=devices, created_by_factory=True)
    settings = {"models": _models(devices), "batch_size": 4, "storage_reservation": NONE} | settings
    return NeuroShardPlanner(topology=topology, keep=path, searcher=searcher or _Counting(), **settings)


def _said(plan):
    return {module: dict(parameters) for module, parameters in plan.plan.items()}


def test_a_restarted_job_keeps_its_plan(tmp_path):
    path = tmp_path / "plan.json"
    given = {"a": ParameterConstraints(bounds_check_mode=BoundsCheckMode.IGNORE)}
    searcher, never = _Counting(), _Counting()
    first = _planner(path, searcher=searcher, constraints=given)
    planned = first.plan(_model("a", "b"))
    again = _planner(str(path), searcher=never, constraints=given)
    assert _said(again.plan(_model("a", "b"))) == _said(planned)
    assert planned.plan["bags"]["a"].bounds_check_mode == BoundsCheckMode.IGNORE
    assert (searcher.asked, never.asked) == (1, 0)
    assert again.last_plan == first.last_plan
    assert again.last_cost.total_ms == first.last_cost.total_ms > 0
    assert load_any_plan(path) == first.last_plan
    assert load_any_plan(path).prediction.cost_ms == pytest.approx(first.last_cost.total_ms)


@pytest.mark.parametrize(
    ("other", "names"),
    [
        ({"batch_size": 8}, "tables, batch size"),
        ({"constraints": {"b": ParameterConstraints(min_partition=8)}}, "constraints"),
        ({"models": _models(2, per_table_ms=1.0)}, "models"),
        ({"constraints": {"a": ParameterConstraints(pooling_factors=[3.0])}}, "tables, constraints"),
        ({"searcher": "dim_greedy"}, "search"),
    ],
)
def test_what_differs_is_said_and_searched_anew(tmp_path, caplog, other, names):
    path = tmp_path / "plan.json"
    _planner(path).plan(_model("a", "b"))
    before = path.read_text()
    caplog.clear()
    searcher = _Counting()
    _planner(path, **{"searcher": searcher} | other).plan(_model("a", "b"))
    assert f"the kept plan was made for other {names}; searching anew" in caplog.text
    assert searcher.asked == ("searcher" not in other)
    assert path.read_text() != before
    caplog.clear()
    _planner(path, **{"searcher": _Counting()} | other).plan(_model("a", "b"))
    assert "made for other" not in caplog.text


QUICK = {"searcher": "neuroshard", "improvement": {"shakes": 0}, "max_splits": 0, "models": "roofline:h100"}


def test_tables_and_devices_that_come_and_go_change_the_plan(tmp_path, caplog):
    path = tmp_path / "plan.json"
    _planner(path, **QUICK).plan(_model("a", "b", "c"))
    planner = _planner(path, **QUICK)
    planner.plan(_model("a", "c", "d"))
    assert "the kept plan was made for other tables, modules; it is changed" in caplog.text
    assert "table b: gone" in caplog.text
    assert "table d: new" in caplog.text
    assert [table.name for table in planner.last_plan.task.tables] == ["a", "c", "d", "s"]
    assert not planner.last_plan.task.tables[-1].pooled
    assert KeptPlan.load(path).plan == planner.last_plan
    caplog.clear()
    wider = _planner(path, devices=4, **QUICK)
    wider.plan(_model("a", "c", "d"))
    assert "the kept plan was made for other tables, devices; it is changed" in caplog.text
    assert wider.last_plan.task.topology.num_devices == 4


def test_a_damaged_file_is_no_reason_to_stop(tmp_path, caplog):
    path = tmp_path / "plan.json"
    path.write_text("{}")
    plan = _planner(path).plan(_model("a"))
    assert "searching anew" in caplog.text
    assert _said(_planner(path).plan(_model("a"))) == _said(plan)
    content = json.loads(path.read_text())
    lacking = content | {"modules": {"bags": content["modules"]["bags"]}}
    path.write_text(json.dumps(lacking))
    caplog.clear()
    assert _said(_planner(path).plan(_model("a"))) == _said(plan)
    assert "the kept plan lacks a table; searching anew" in caplog.text
    content["plan"]["placements"][0]["device"] = 7
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"plan\.json: .*device 7"):
        KeptPlan.load(path)


def test_where_nothing_can_be_written_jobs_run(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert _planner(tmp_path / "file" / "plan.json").plan(_model("a")).plan
    assert "the plan can't be kept in" in caplog.text


def test_models_without_pooled_tables_are_kept_too(tmp_path):
    path = tmp_path / "plan.json"
    model = _model("a")["sequences"]
    plan = _planner(path).plan(model)
    assert _said(_planner(path).plan(model)) == _said(plan)
    with pytest.raises(UserError, match="holds no table that was planned here"):
        load_any_plan(path)


def test_files_of_plans_are_read_as_plans(tmp_path):
    planner = _planner(None)
    plan = planner.search(_model("a"))
    plan.save(tmp_path / "ours.json")
    assert load_any_plan(tmp_path / "ours.json") == plan
    assert isinstance(plan, Plan)


def test_digests_say_what_differs():
    one, other = (digests({"x": value, "same": [1, {"a": (2.5, None)}]}) for value in (_Counting, {"a": 1}))
    assert one["same"] == other["same"]
    assert one["x"] != other["x"]
    assert digests({"x": linear_models(2)}) == digests({"x": linear_models(2)})


def test_a_plan_with_sequence_tables_is_kept_and_changed(tmp_path, caplog):
    path = tmp_path / "plan.json"
    given = {"rules": Constraints((TableRule("s", min_shards=2, forms=("columns",)),))}
    first = _planner(path, **QUICK, **given)
    planned = first.plan(_model("a"))
    assert planned.plan["sequences"]["s"].sharding_type == "column_wise"
    again = _planner(path, **QUICK, **given)
    assert _said(again.plan(_model("a"))) == _said(planned)
    assert again.last_plan == first.last_plan == load_any_plan(path)
    caplog.clear()
    wider = _planner(path, devices=3, **QUICK, **given)
    sharding = wider.plan(_model("a", "b")).plan["sequences"]["s"]
    assert "it is changed" in caplog.text
    assert "searching anew" not in caplog.text
    assert (sharding.sharding_type, len(sharding.ranks)) == ("column_wise", 2)
    assert wider.last_plan.violations == ()
    rows = {"rules": Constraints((TableRule("s", forms=("rows",)),))}
    assert _planner(path, **QUICK, **rows).plan(_model("a")).plan["sequences"]["s"].sharding_type == "row_wise"
    kept = KeptPlan.load(path)
    assert kept.plan.forms[1] == "rows"
    assert kept.sharding_plan.plan["sequences"]["s"].sharding_type == "row_wise"


def test_what_a_plan_is_made_for_is_worked_out_once(tmp_path, monkeypatch):
    asked = []
    counted = lambda *args: asked.append(args) or made_for(*args)  # noqa: E731
    monkeypatch.setattr("neuroshard.torchrec.planner.made_for", counted)
    _planner(tmp_path / "plan.json").plan(_model("a"))
    assert len(asked) == 1
    _planner(None).plan(_model("a"))
    assert len(asked) == 1
