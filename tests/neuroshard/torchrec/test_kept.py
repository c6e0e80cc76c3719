"""Plans that outlive a job: kept in a file, read where the same is asked, changed or made again where not."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Event

import pytest
import torch
from torch import nn
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import BoundsCheckMode, ShardingPlan
from torchrec.optim import LAMB
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.types import DataType

from neuroshard import Constraints, TableRule, UserError
from neuroshard.stages.search.space.homes import rehomed
from neuroshard.tasks.memory import MemoryUse
from neuroshard.testing import linear_models
from neuroshard.testing.toys import LinearCompute
from neuroshard.torchrec import NeuroShardPlanner
from neuroshard.torchrec.kept import KeptPlan, _digest, load_any_plan
from neuroshard.torchrec.made_for import digests, made_for
from neuroshard.words.placement import Tier, TierAssignment
from tests.kit.torchrec_models import AllOnLast, bags, planner, sequences, topology


def _model(*names):
    return nn.ModuleDict({"bags": bags(*names), "sequences": sequences("s", rows=50, dim=8)})


def _planner(path, devices=2, searcher=None, **settings):
    return planner(devices, keep=path, searcher=searcher or AllOnLast(), **settings)


def test_a_restarted_job_keeps_its_plan(path):
    given = {"a": ParameterConstraints(bounds_check_mode=BoundsCheckMode.IGNORE)}
    searcher, never = AllOnLast(), AllOnLast()
    first = _planner(path, searcher=searcher, constraints=given)
    planned = first.plan(_model("a", "b"))
    again = _planner(str(path), searcher=never, constraints=given)
    assert again.plan(_model("a", "b")) == planned
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
        ({"models": replace(linear_models(2), compute=LinearCompute(per_table_ms=1.0), batch_size=None)}, "models"),
        ({"constraints": {"a": ParameterConstraints(pooling_factors=[3.0])}}, "tables, constraints"),
        ({"searcher": "dim_greedy"}, "search"),
    ],
)
def test_what_differs_is_said_and_searched_again(path, caplog, other, names):
    _planner(path).plan(_model("a", "b"))
    before = path.read_text()
    caplog.clear()
    searcher = AllOnLast()
    _planner(path, **{"searcher": searcher} | other).plan(_model("a", "b"))
    assert f"the kept plan was made for other {names}; searching again" in caplog.text
    assert searcher.asked == ("searcher" not in other)
    assert path.read_text() != before
    caplog.clear()
    _planner(path, **other).plan(_model("a", "b"))
    assert "made for other" not in caplog.text


SIZE = 100 * 16 * 4  # bytes of each of the tables


@pytest.mark.parametrize(
    ("factor", "kept"), [(1.0, True), (0.999, True), (1.04, True), (0.97, True), (0.94, False), (1.06, False)]
)
@pytest.mark.parametrize(("device", "memory"), [("cpu", "ddr_cap"), ("cuda", "hbm_cap"), ("cuda", "ddr_cap")])
def test_other_free_bytes_keep_the_plan(path, caplog, device, memory, factor, kept):
    """Both are on one device, which has room for four."""
    cap = 4 * SIZE
    planned = _planner(path, topology=topology(2, device, cap)).plan(bags("a", "b"))
    caplog.clear()
    searcher = AllOnLast()
    other = topology(2, device, cap, **{memory: int(factor * cap)})
    assert _planner(path, searcher=searcher, topology=other).plan(bags("a", "b")) == planned
    assert searcher.asked == (not kept)
    assert ("the kept plan was made for other devices; searching again" in caplog.text) is not kept


def test_devices_with_a_little_less_memory_keep_only_what_they_hold(path):
    _planner(path).plan(bags("a", "b"))
    kept = KeptPlan.load(path)
    task, less = kept.plan.task, [memory - 1 for memory in kept.device_memory]
    small = replace(task, topology=replace(task.topology, memory_bytes=SIZE))
    full = replace(kept, plan=replace(kept.plan, task=small))
    hosts = kept.host_memory
    assert kept.differences(kept.made_for, less, hosts) == ()
    assert full.differences(kept.made_for, kept.device_memory, hosts) == ()
    assert full.differences(kept.made_for, less, hosts) == ("devices",)


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.UVM])
@pytest.mark.parametrize("free", [0, 10])
def test_hosts_with_a_little_less_memory_keep_only_what_they_hold(path, tier, free):
    """One of two hosts has less; `free` bytes of it are left beside both tables, or what would be both."""
    _planner(path, topology=topology(4, "cuda", on_host=2)).plan(bags("a", "b"))
    kept = KeptPlan.load(path)
    assert kept.host_memory == (2 << 20, 2 << 20)
    task = replace(kept.plan.task, topology=replace(kept.plan.task.topology, host_memory_bytes=2 * SIZE + free))
    kept = replace(kept, plan=rehomed(kept.plan, task, (TierAssignment(tier),) * 2))
    for less in range(0, 20, 5):
        hosts = kept.host_memory[0], kept.host_memory[1] - less
        fits = tier is Tier.DEVICE or less <= free
        assert kept.differences(kept.made_for, kept.device_memory, hosts) == (() if fits else ("devices",))


def test_hosts_that_others_fill_lose_nothing(path):
    """Tables that TorchRec plans have all of their memory."""
    _planner(path, topology=topology(2, "cuda")).plan(bags("a"))
    kept = KeptPlan.load(path)
    task = replace(kept.plan.task, topology=replace(kept.plan.task.topology, host_memory_bytes=0))
    kept = replace(kept, plan=replace(kept.plan, task=task))
    for less, differing in ((0, ()), (1, ("devices",))):
        assert kept.differences(kept.made_for, kept.device_memory, [kept.host_memory[0] - less]) == differing


@pytest.mark.parametrize(("less", "fits"), [(0, True), (1, False)])
def test_devices_that_others_fill_lose_nothing(path, less, fits):
    _planner(path, memory=MemoryUse()).plan(bags("a"))
    kept = KeptPlan.load(path)
    first, last = kept.device_memory
    filled = replace(kept.plan.task, topology=replace(kept.plan.task.topology, memory_bytes=(1, last)))
    kept = replace(kept, plan=replace(kept.plan, task=filled))
    devices = () if fits else ("devices",)
    assert kept.differences(kept.made_for, (first - less, last), kept.host_memory) == devices


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_files_without_hosts_memory_have_what_their_task_says(path, device):
    _planner(path, topology=topology(4, device, on_host=2)).plan(bags("a", "b"))
    kept = KeptPlan.load(path)
    content = json.loads(path.read_text())
    del content["host_memory"], content["digest"], content["format"]
    older = {"format": json.loads(path.read_text())["format"], "digest": _digest(content)} | content
    path.write_text(json.dumps(older))
    assert KeptPlan.load(path) == kept


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("optimizer", "kept"), [(torch.optim.SGD, True), (LAMB, False), (torch.optim.Adam, False)])
def test_optimizers_of_what_isnt_planned_here_count(path, caplog, given, optimizer, kept):
    """They take memory that is then left to none: of tables that TorchRec plans, and of those of a given plan."""
    model, also = (nn.ModuleDict({"bags": bags("a"), "others": bags("b")}) for _ in range(2))
    asked = {"device": "cuda", "constraints": {"b": ParameterConstraints(sharding_types=["table_row_wise"])}}
    if given:
        asked["given"] = ShardingPlan({"others": _planner(None, **asked).plan(model).plan["others"]})
    apply_optimizer_in_backward(optimizer, also["others"].parameters(), {"lr": 0.1})
    _planner(path, **asked).plan(model)
    caplog.clear()
    _planner(path, **asked).plan(also)
    assert ("the kept plan was made for other other parameters; searching again" in caplog.text) is not kept


def test_ids_beside_tables_of_what_isnt_planned_here_count(path, caplog):
    """They take memory that is then left to none."""
    for size in (10, 10, 20):
        caplog.clear()
        quantised, plain = sequences("b", data_type=DataType.INT8), bags("a")
        quantised.register_buffer("ids", torch.zeros(size))
        _planner(path).plan(nn.ModuleDict({"bags": plain, "others": quantised}))
        assert ("the kept plan was made for other bytes beside tables; searching" in caplog.text) is (size == 20)


QUICK = {"searcher": "neuroshard", "improvement": {"perturbations": 0}, "max_splits": 0, "models": "roofline:h100"}


def test_tables_and_devices_that_come_and_go_change_the_plan(path, caplog):
    """One of the tables is a sequence table, in halves."""
    given = QUICK | {"rules": Constraints((TableRule("s", min_shards=2, sharding_types=("column_wise",)),))}
    _planner(path, **given).plan(_model("a", "b", "c"))
    ours = _planner(path, **given)
    ours.plan(_model("a", "c", "d"))
    assert "the kept plan was made for other tables, modules; it is changed" in caplog.text
    assert "table b: gone" in caplog.text
    assert "table d: new" in caplog.text
    assert [table.name for table in ours.last_plan.task.tables] == ["a", "c", "d", "s"]
    assert not ours.last_plan.task.tables[-1].pooled
    assert KeptPlan.load(path).plan == ours.last_plan
    caplog.clear()
    wider = _planner(path, devices=4, **given)
    sharding = wider.plan(_model("a", "c", "d")).plan["sequences"]["s"]
    assert "the kept plan was made for other tables, devices; it is changed" in caplog.text
    assert "searching again" not in caplog.text
    assert wider.last_plan.task.topology.num_devices == 4
    assert wider.last_plan.violations == ()
    assert (sharding.sharding_type, len(sharding.ranks)) == ("column_wise", 2)


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (TableRule("s", min_shards=2, sharding_types=("column_wise",)), "column_wise"),
        (TableRule("s", sharding_types=("row_wise",)), "row_wise"),
    ],
)
def test_plans_with_sequence_tables_are_kept(path, rule, kind):
    first, again = (_planner(path, **QUICK, rules=Constraints((rule,))) for _ in range(2))
    planned = first.plan(_model("a"))
    assert planned.plan["sequences"]["s"].sharding_type == kind
    assert again.plan(_model("a")) == KeptPlan.load(path).sharding_plan == planned
    assert again.last_plan == load_any_plan(path) == first.last_plan
    assert again.last_plan.forms[1] == rule.sharding_types[0]


OTHER_FILES = {
    "a checkpoint": b"PK\x03\x04" + bytes(1000),
    "other JSON": b"{}",
    "a format further inside": b'{"name": "neuroshard-kept-plan-1"}',
    "an empty file": b"",
    "a plan of ours": None,
}


@pytest.mark.parametrize("content", OTHER_FILES.values(), ids=OTHER_FILES)
def test_what_isnt_a_kept_plan_is_never_overwritten(path, content):
    searcher, previous = AllOnLast(), _planner(None).search(_model("a"))
    if content is None:
        previous.save(path)
        assert load_any_plan(path) == previous
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    for find in (NeuroShardPlanner.plan, partial(NeuroShardPlanner.replan, previous=previous)):
        with pytest.raises(UserError, match=r"^keep=.*plan\.json is something else than a kept plan and isn't overwr"):
            find(_planner(path, searcher=searcher), _model("a"))
    assert searcher.asked == 0
    assert path.read_bytes() == before
    with pytest.raises(UserError, match="something else"):
        _planner(path.parent).plan(_model("a"))


def test_where_nothing_can_be_written_jobs_run(path, caplog):
    """A file that comes while searching stays, as does one where a directory should be."""

    class Late(AllOnLast):
        def find(self, task, simulator):
            path.write_text("a checkpoint")
            return super().find(task, simulator)

    for keep in (path, path / "plan.json"):
        caplog.clear()
        assert _planner(keep, searcher=Late()).plan(_model("a")).plan
        assert "the plan can't be kept in" in caplog.text
        assert path.read_text() == "a checkpoint"


def test_a_kept_plan_with_a_changed_number_is_not_trusted(path):
    _planner(path).plan(_model("a", "b"))
    kept = path.read_text()
    numbers = [found.start() for found in re.finditer(r"(?<![\w.])\d", kept)]  # their first digits
    numbers = [at for at in numbers if at > kept.index("made_for")]
    assert len(numbers) > 20
    for at in numbers:
        path.write_text(f"{kept[:at]}{int(kept[at]) % 9 + 1}{kept[at + 1 :]}")
        with pytest.raises(UserError, match=r"plan\.json was changed or damaged after it was written: its digest"):
            KeptPlan.load(path)
    content = json.loads(kept)
    path.write_text(json.dumps(dict(sorted(content.items(), reverse=True)), indent=7))
    assert KeptPlan.load(path).made_for == content["made_for"]  # nothing but how it is set and ordered was changed


def test_a_damaged_file_is_no_reason_to_stop(path, caplog):
    plan = _planner(path).plan(_model("a"))
    kept = path.read_text()
    moved = re.sub(r'("ranks": \[\s*)1', r"\g<1>2", kept, count=1)
    without_digest = re.sub(r'"digest": "\w*",', "", kept)
    older = re.sub(r"neuroshard-kept-plan-\d", "neuroshard-kept-plan-1", without_digest)
    for damaged in (kept[: len(kept) // 2], moved, without_digest, older):
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"plan\.json"):
            load_any_plan(path)
        for again in (1, 0):
            caplog.clear()
            assert _planner(path).plan(_model("a")) == plan
            assert caplog.text.count("searching again") == again
            assert path.read_text() == kept


def test_of_several_writers_one_is_heard(tmp_path, path):
    stop = Event()
    plans = [_planner(tmp_path / f"{n}.json").plan(_model("a", *"bcdefghijkl"[:n])) for n in range(3)]
    kept = [KeptPlan({"writer": str(number)}, None, plan, (1 << 20,), (0,)) for number, plan in enumerate(plans)]

    def write(one):
        for _ in range(20):
            one.save(path)

    def read():
        found = set()
        while not stop.is_set():
            if path.exists():
                one = KeptPlan.load(path)
                assert one.sharding_plan == plans[int(one.made_for["writer"])]
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


def test_models_without_pooled_tables_are_kept_too(path):
    model = _model("a")["sequences"]
    plan = _planner(path).plan(model)
    assert _planner(path).plan(model) == plan
    with pytest.raises(UserError, match="holds no table that was planned here"):
        load_any_plan(path)


def test_digests_say_what_differs():
    one, other = (digests({"x": value, "same": [1, {"a": (2.5, None)}]}) for value in (AllOnLast, {"a": 1}))
    assert one["same"] == other["same"]
    assert one["x"] != other["x"]
    assert digests({"x": linear_models(2)}) == digests({"x": linear_models(2)})
    here, there, elsewhere = (type("Rule", (), {"__module__": name})() for name in ("a.b", "a.c.d", "b"))
    assert digests({"rule": here}) == digests({"rule": there})  # a class that moves to another module
    assert digests({"rule": here}) != digests({"rule": elsewhere})


def test_what_a_plan_is_made_for_is_worked_out_once(path, monkeypatch):
    asked = []
    counted = lambda *args: asked.append(args) or made_for(*args)  # noqa: E731
    monkeypatch.setattr("neuroshard.torchrec.planner.made_for", counted)
    _planner(path).plan(_model("a"))
    assert len(asked) == 1
    _planner(None).plan(_model("a"))
    assert len(asked) == 1


def test_a_plan_that_no_file_holds_whole_is_not_kept(path, caplog):
    def halved(options):
        for option in options:
            option.output_dtype = DataType.FP16
        return options

    for _ in range(2):
        plan = _planner(path, callbacks=[halved]).plan(_model("a"))
        assert plan.plan["bags"]["a"].output_dtype == DataType.FP16
    assert not path.exists()
    assert "a callback set output_dtype of table 'bags.a', which no file holds" in caplog.text
