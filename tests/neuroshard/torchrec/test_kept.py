"""Plans that outlive a job: kept in a file, read where the same is asked, changed or made anew where not."""

import json
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from functools import partial
from threading import Event

import pytest
from torch import nn
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import BoundsCheckMode

from neuroshard.plans.plan import Plan, assemble
from neuroshard.plumbing.errors import UserError
from neuroshard.searching.searcher import Found, Searcher
from neuroshard.tasks.constraints import Constraints, TableRule
from neuroshard.testing import linear_models
from neuroshard.testing.toys import LinearCompute
from neuroshard.torchrec import NeuroShardPlanner
from neuroshard.torchrec.kept import KeptPlan, load_any_plan
from neuroshard.torchrec.made_for import digests, made_for
from tests.kit.torchrec_models import bags, planner, sequences


class _Counting(Searcher):
    """Everything on the last device; counts how often it is asked."""

    def __init__(self):
        self.asked = 0

    def find(self, task, simulator):
        self.asked += 1
        last = task.topology.num_devices - 1
        return Found(assemble(task, [(i, table.dim, last) for i, table in enumerate(task.tables)]))


def _model(*names):
    return nn.ModuleDict({"bags": bags(*names), "sequences": sequences("s", rows=50, dim=8)})


def _models(devices, **compute):
    return replace(linear_models(devices), compute=LinearCompute(**compute), batch_size=None)


def _planner(path, devices=2, searcher=None, **settings):
    return planner(devices, keep=path, searcher=searcher or _Counting(), **settings)


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


SIZE = 100 * 16 * 4  # bytes of each of the tables


@pytest.mark.parametrize(
    ("factor", "kept"), [(1.0, True), (0.999, True), (1.04, True), (0.97, True), (0.94, False), (1.06, False)]
)
def test_other_free_bytes_keep_the_plan(tmp_path, caplog, factor, kept):
    """Both lie on one device, which has room for four."""
    path, cap = tmp_path / "plan.json", 4 * SIZE
    planned = _planner(path, cap=cap).plan(bags("a", "b"))
    caplog.clear()
    searcher = _Counting()
    again = _planner(path, searcher=searcher, cap=int(factor * cap))
    assert _said(again.plan(bags("a", "b"))) == _said(planned)
    assert searcher.asked == (not kept)
    assert ("the kept plan was made for other devices; searching anew" in caplog.text) is not kept


def test_devices_with_a_little_less_memory_keep_only_what_they_hold(tmp_path):
    path = tmp_path / "plan.json"
    _planner(path).plan(bags("a", "b"))
    kept = KeptPlan.load(path)
    task, less = kept.plan.task, [memory - 1 for memory in kept.device_memory]
    small = replace(task, topology=replace(task.topology, memory_bytes=SIZE))
    full = replace(kept, plan=replace(kept.plan, task=small))
    assert kept.differences(kept.made_for, less) == ()
    assert full.differences(kept.made_for, kept.device_memory) == ()
    assert full.differences(kept.made_for, less) == ("devices",)


QUICK = {"searcher": "neuroshard", "improvement": {"shakes": 0}, "max_splits": 0, "models": "roofline:h100"}


def test_tables_and_devices_that_come_and_go_change_the_plan(tmp_path, caplog):
    path = tmp_path / "plan.json"
    _planner(path, **QUICK).plan(_model("a", "b", "c"))
    ours = _planner(path, **QUICK)
    ours.plan(_model("a", "c", "d"))
    assert "the kept plan was made for other tables, modules; it is changed" in caplog.text
    assert "table b: gone" in caplog.text
    assert "table d: new" in caplog.text
    assert [table.name for table in ours.last_plan.task.tables] == ["a", "c", "d", "s"]
    assert not ours.last_plan.task.tables[-1].pooled
    assert KeptPlan.load(path).plan == ours.last_plan
    caplog.clear()
    wider = _planner(path, devices=4, **QUICK)
    wider.plan(_model("a", "c", "d"))
    assert "the kept plan was made for other tables, devices; it is changed" in caplog.text
    assert wider.last_plan.task.topology.num_devices == 4


OTHER_FILES = {
    "a checkpoint": b"PK\x03\x04" + bytes(1000),
    "other JSON": b"{}",
    "a format further inside": b'{"name": "neuroshard-kept-plan-1"}',
    "an empty file": b"",
}


@pytest.mark.parametrize("content", OTHER_FILES.values(), ids=OTHER_FILES)
def test_what_isnt_a_kept_plan_is_never_overwritten(tmp_path, content):
    path, searcher = tmp_path / "model.pt", _Counting()
    path.write_bytes(content)
    previous = _planner(None).search(_model("a"))
    for find in (NeuroShardPlanner.plan, partial(NeuroShardPlanner.replan, previous=previous)):
        with pytest.raises(UserError, match=r"^keep=.*model\.pt is something else than a kept plan and isn't overwr"):
            find(_planner(path, searcher=searcher), _model("a"))
    assert searcher.asked == 0
    assert path.read_bytes() == content
    with pytest.raises(UserError, match="something else"):
        _planner(tmp_path).plan(_model("a"))


def test_a_plan_of_ours_is_not_overwritten(tmp_path):
    path = tmp_path / "plan.json"
    _planner(None).search(_model("a")).save(path)
    before = path.read_text()
    with pytest.raises(UserError, match="something else than a kept plan"):
        _planner(path).replan(_model("a", "b"), previous=path)
    assert path.read_text() == before


def test_a_file_that_comes_while_searching_stays(tmp_path, caplog):
    path = tmp_path / "plan.json"

    class Slow(_Counting):
        def find(self, task, simulator):
            path.write_text("a checkpoint")
            return super().find(task, simulator)

    assert _planner(path, searcher=Slow()).plan(_model("a")).plan
    assert "the plan can't be kept in" in caplog.text
    assert path.read_text() == "a checkpoint"


def _numbers(node, at=()):
    """The paths of all numbers in JSON."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if isinstance(value, (int, float)):
            yield (*at, key)
        yield from _numbers(value, (*at, key))


def _changed(content, at):
    changed = deepcopy(content)
    inner = changed
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] += 1
    return changed


def test_a_kept_plan_with_a_changed_number_is_not_believed(tmp_path):
    path = tmp_path / "plan.json"
    _planner(path).plan(_model("a", "b"))
    content = json.loads(path.read_text())
    numbers = [at for part in ("modules", "plan") for at in _numbers(content[part], (part,))]
    assert len(numbers) > 20
    for at in numbers:
        path.write_text(json.dumps(_changed(content, at)))
        with pytest.raises(UserError, match=r"plan\.json was changed or damaged after it was written: its digest"):
            KeptPlan.load(path)
    path.write_text(json.dumps(dict(sorted(content.items(), reverse=True)), indent=7))
    assert KeptPlan.load(path).made_for == content["made_for"]  # nothing but how it is set and ordered was changed


def test_a_damaged_file_is_no_reason_to_stop(tmp_path, caplog):
    path = tmp_path / "plan.json"
    plan = _planner(path).plan(_model("a"))
    kept = path.read_text()
    content = json.loads(kept)
    without_digest = {key: value for key, value in content.items() if key != "digest"}
    older = without_digest | {"format": "neuroshard-kept-plan-1"}
    moved = _changed(content, ("modules", "bags", "a", "ranks", 0))
    for damaged in (kept[: len(kept) // 2], *map(json.dumps, (moved, without_digest, older))):
        path.write_text(damaged)
        caplog.clear()
        assert _said(_planner(path).plan(_model("a"))) == _said(plan)
        assert caplog.text.count("searching anew") == 1
        assert path.read_text() == kept
        caplog.clear()
        assert _said(_planner(path, searcher=_Counting()).plan(_model("a"))) == _said(plan)
        assert "searching anew" not in caplog.text
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"plan\.json"):
            load_any_plan(path)


def test_of_several_writers_one_is_heard(tmp_path):
    path, stop = tmp_path / "plan.json", Event()
    plans = [_planner(tmp_path / f"{n}.json").plan(_model("a", *"bcdefghijkl"[:n])) for n in range(3)]
    kept = [KeptPlan({"writer": str(number)}, None, plan, (1 << 20,)) for number, plan in enumerate(plans)]

    def write(one):
        for _ in range(20):
            one.save(path)

    def read():
        found = set()
        while not stop.is_set():
            if path.exists():
                one = KeptPlan.load(path)
                assert _said(one.sharding_plan) == _said(plans[int(one.made_for["writer"])])
                found.add(one.made_for["writer"])
        return found

    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read)
        try:
            for writing in [pool.submit(write, one) for one in kept]:
                writing.result()
        finally:
            stop.set()
        assert reading.result()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.json", "1.json", "2.json", "plan.json"]


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
    ours = _planner(None)
    plan = ours.search(_model("a"))
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


def test_a_class_that_moves_to_another_module_keeps_its_digest():
    here, there, elsewhere = (type("Rule", (), {"__module__": name}) for name in ("a.b", "a.c.d", "b"))
    known = digests({"rule": here()})
    assert digests({"rule": there()}) == known
    assert digests({"rule": elsewhere()}) != known
