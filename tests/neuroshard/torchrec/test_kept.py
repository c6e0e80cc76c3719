"""Plans kept in a file: used again for equal inputs, and adapted or replaced for other inputs."""

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

from neuroshard import Constraints, Plan, TableRule
from neuroshard.plans.kept_files import digest
from neuroshard.plumbing.registry import build
from neuroshard.plumbing.schema import readable_bytes
from neuroshard.searching.searcher import searcher_of
from neuroshard.stages.search.options.tier_changes import reassign_tiers
from neuroshard.stages.search.runs.evaluate import Evaluate
from neuroshard.stages.search.runs.explain import Explain
from neuroshard.targets.target import Export
from neuroshard.tasks.memory import MemoryUse
from neuroshard.testing import linear_models
from neuroshard.testing.toys import LinearCompute
from neuroshard.torchrec import NeuroShardPlanner, load_sharding_plan
from neuroshard.torchrec.input_digests import digests, input_digests
from neuroshard.torchrec.kept import KeptPlan
from neuroshard.words.placement import Tier, TierAssignment
from tests.kit.messages import check, logged_codes, logged_one, refused
from tests.kit.plans import table
from tests.kit.torchrec_models import AllOnLast, bags, places, planner, sequences, shaped_bags, topology


def _model(*names):
    return nn.ModuleDict({"bags": bags(*names), "sequences": sequences("s", rows=50, dim=8)})


def _planner(path, devices=2, searcher=None, **settings):
    return planner(devices, keep=path, searcher=searcher or AllOnLast(), **settings)


OUTDATED, ADAPTED = "kept-plan-outdated", "kept-plan-adapted"


def _check_differing(caplog, code, inputs):
    """Check that the one warning of this code names exactly these inputs that differ; return the warning."""
    message = logged_one(caplog, code)
    assert message.what.endswith(f" {inputs}")
    assert message.what.count(",") == inputs.count(",")
    return message


def _is_kept(caplog):
    """Return True if no warning says that the kept plan was made for other inputs."""
    return {OUTDATED, ADAPTED}.isdisjoint(logged_codes(caplog))


def test_planner_of_a_restarted_job_keeps_the_stored_plan(path):
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
    assert Plan.load(path) == first.last_plan
    assert Plan.load(path).prediction.cost_ms == pytest.approx(first.last_cost.total_ms)


@pytest.mark.parametrize(
    ("other", "names"),
    [
        ({"batch_size": 8}, "tables, batch size"),
        ({"constraints": {"b": ParameterConstraints(min_partition=8)}}, "constraints"),
        ({"models": replace(linear_models(2), compute=LinearCompute(per_table_ms=1.0), batch_size=None)}, "models"),
        ({"searcher": "dim_greedy"}, "search"),
    ],
)
def test_changed_inputs_are_named_and_searched_again(path, caplog, other, names):
    _planner(path).plan(_model("a", "b"))
    before = path.read_text()
    caplog.clear()
    searcher = AllOnLast()
    _planner(path, **{"searcher": searcher} | other).plan(_model("a", "b"))
    _check_differing(caplog, OUTDATED, names)
    assert searcher.asked == ("searcher" not in other)
    assert path.read_text() != before
    caplog.clear()
    _planner(path, **other).plan(_model("a", "b"))
    assert _is_kept(caplog)


SIZE = 100 * 16 * 4  # bytes of each of the tables


@pytest.mark.parametrize(
    ("factor", "kept"), [(1.0, True), (0.999, True), (1.04, True), (0.97, True), (0.94, False), (1.06, False)]
)
@pytest.mark.parametrize(("device", "memory"), [("cpu", "ddr_cap"), ("cuda", "hbm_cap"), ("cuda", "ddr_cap")])
def test_kept_plan_is_used_as_long_as_it_fits_the_free_memory(path, caplog, device, memory, factor, kept):
    """Both tables are on one device, which has memory for four."""
    cap = 4 * SIZE
    planned = _planner(path, topology=topology(2, device, cap)).plan(bags("a", "b"))
    caplog.clear()
    searcher = AllOnLast()
    other = topology(2, device, cap, **{memory: int(factor * cap)})
    assert _planner(path, searcher=searcher, topology=other).plan(bags("a", "b")) == planned
    assert searcher.asked == (not kept)
    assert _is_kept(caplog) is kept
    if not kept:
        _check_differing(caplog, OUTDATED, "devices")


def test_kept_plan_is_outdated_if_devices_have_less_memory_than_it_needs(path):
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
def test_kept_plan_is_outdated_if_a_host_has_less_memory_than_it_needs(path, tier, free):
    """One of two hosts has less memory: after both tables, `free` bytes of the host's memory are left."""
    _planner(path, topology=topology(4, "cuda", on_host=2)).plan(bags("a", "b"))
    kept = KeptPlan.load(path)
    assert kept.host_memory == (2 << 20, 2 << 20)
    task = replace(kept.plan.task, topology=replace(kept.plan.task.topology, host_memory_bytes=2 * SIZE + free))
    kept = replace(kept, plan=reassign_tiers(kept.plan, task, (TierAssignment(tier),) * 2))
    for less in range(0, 20, 5):
        hosts = kept.host_memory[0], kept.host_memory[1] - less
        fits = tier is Tier.DEVICE or less <= free
        assert kept.differences(kept.made_for, kept.device_memory, hosts) == (() if fits else ("devices",))


def test_kept_plan_is_outdated_if_a_host_filled_by_other_tables_has_less_memory(path):
    """Delegated tables take all memory of the host."""
    _planner(path, topology=topology(2, "cuda")).plan(bags("a"))
    kept = KeptPlan.load(path)
    task = replace(kept.plan.task, topology=replace(kept.plan.task.topology, host_memory_bytes=0))
    kept = replace(kept, plan=replace(kept.plan, task=task))
    for less, differing in ((0, ()), (1, ("devices",))):
        assert kept.differences(kept.made_for, kept.device_memory, [kept.host_memory[0] - less]) == differing


@pytest.mark.parametrize(("less", "fits"), [(0, True), (1, False)])
def test_kept_plan_is_outdated_if_a_device_filled_by_other_tables_has_less_memory(path, less, fits):
    _planner(path, memory=MemoryUse()).plan(bags("a"))
    kept = KeptPlan.load(path)
    first, last = kept.device_memory
    filled = replace(kept.plan.task, topology=replace(kept.plan.task.topology, memory_bytes=(1, last)))
    kept = replace(kept, plan=replace(kept.plan, task=filled))
    devices = () if fits else ("devices",)
    assert kept.differences(kept.made_for, (first - less, last), kept.host_memory) == devices


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_kept_plan_without_host_memory_is_loaded_with_that_of_its_task(path, device):
    _planner(path, topology=topology(4, device, on_host=2)).plan(bags("a", "b"))
    kept = KeptPlan.load(path)
    content = json.loads(path.read_text())
    del content["host_memory"], content["digest"], content["format"]
    older = {"format": json.loads(path.read_text())["format"], "digest": digest(content)} | content
    path.write_text(json.dumps(older))
    assert KeptPlan.load(path) == kept


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("optimizer", "kept"), [(torch.optim.SGD, True), (LAMB, False), (torch.optim.Adam, False)])
def test_kept_plan_is_outdated_if_optimizer_state_of_delegated_tables_changes(path, caplog, given, optimizer, kept):
    """Optimizer state reduces the free memory, both of tables that TorchRec plans and of tables of a given plan."""
    model, also = (nn.ModuleDict({"bags": bags("a"), "others": bags("b")}) for _ in range(2))
    asked = {"device": "cuda", "constraints": {"b": ParameterConstraints(sharding_types=["table_row_wise"])}}
    if given:
        asked["given"] = ShardingPlan({"others": _planner(None, **asked).plan(model).plan["others"]})
    apply_optimizer_in_backward(optimizer, also["others"].parameters(), {"lr": 0.1})
    _planner(path, **asked).plan(model)
    caplog.clear()
    _planner(path, **asked).plan(also)
    assert _is_kept(caplog) is kept
    if not kept:
        _check_differing(caplog, ADAPTED, "other parameters")


def test_kept_plan_is_outdated_if_buffers_of_delegated_modules_grow(path, caplog):
    """Buffers reduce the free memory of devices."""
    for size in (10, 10, 20):
        caplog.clear()
        quantised, plain = sequences("b", data_type=DataType.INT8), bags("a")
        quantised.register_buffer("ids", torch.zeros(size))
        _planner(path).plan(nn.ModuleDict({"bags": plain, "others": quantised}))
        assert _is_kept(caplog) is (size == 10)
        if size == 20:
            _check_differing(caplog, OUTDATED, "bytes beside tables")


QUICK = {"searcher": "neuroshard", "improvement": {"perturbations": 0}, "max_splits": 0, "models": "roofline:h100"}


def test_kept_plan_is_adapted_to_added_and_removed_tables_and_devices(path, caplog):
    """One of the tables is a sequence table in two shards."""
    given = QUICK | {"rules": Constraints((TableRule("s", min_shards=2, sharding_types=("column_wise",)),))}
    _planner(path, **given).plan(_model("a", "b", "c"))
    ours = _planner(path, **given)
    ours.plan(_model("a", "c", "d"))
    changes = _check_differing(caplog, ADAPTED, "tables, modules").limit
    assert all(table in changes for table in ("(d)", "(b)"))
    assert [table.name for table in ours.last_plan.task.tables] == ["a", "c", "d", "s"]
    assert not ours.last_plan.task.tables[-1].pooled
    assert KeptPlan.load(path).plan == ours.last_plan
    caplog.clear()
    wider = _planner(path, devices=4, **given)
    sharding = wider.plan(_model("a", "c", "d")).plan["sequences"]["s"]
    assert "2 -> 4 devices" in _check_differing(caplog, ADAPTED, "tables, devices").limit
    assert OUTDATED not in logged_codes(caplog)
    assert wider.last_plan.task.topology.num_devices == 4
    assert wider.last_plan.violations == ()
    assert (sharding.sharding_type, len(sharding.ranks)) == ("column_wise", 2)


NAMES = ["a", "b", "c"]


def _shaped(shapes=None, **fields):
    return shaped_bags(dict.fromkeys(NAMES, (100, 16)) | (shapes or {}), **fields)


def _known(pooling_factor, rows=100):
    return [table(name, rows, 16, pooling_factor) for name in NAMES]


RESTARTS = {
    "a table that grew": ({}, {"shapes": {"a": (150, 16)}}, "a: rows 100 -> 150"),
    "a grown table with its old profile": ({"tables": _known(2.0)}, {"shapes": {"a": (150, 16)}}, "a: rows 100 -> 150"),
    "a wider table": ({}, {"shapes": {"b": (100, 32)}}, "b: dim 16 -> 32"),
    "other weights": ({}, {"data_type": DataType.FP16}, "a: bytes per element 4 -> 2"),
    "other batches profiled": ({"tables": _known(2.0)}, {"tables": _known(2.5)}, "a: pooling factor 2 -> 2.5"),
    "other pooling factors": ({}, {"constraints": {"a": ParameterConstraints(pooling_factors=[3.0])}}, "a: pooling f"),
    "a table added": ({}, {"shapes": {"d": (100, 16)}}, "(d)"),
}


@pytest.mark.parametrize(("before", "after", "said"), RESTARTS.values(), ids=RESTARTS)
def test_replanning_a_kept_plan_keeps_devices_of_changed_tables(path, caplog, before, after, said):
    """All tables are on the last device, where no search would place all of them."""
    model = {name: value for name, value in after.items() if name in ("shapes", "data_type")}
    asked = before | {name: value for name, value in after.items() if name not in model}
    first = places(_planner(path, **before).plan(_shaped()))
    caplog.clear()
    ours = _planner(path, **asked)
    again = places(ours.plan(_shaped(**model)))
    assert first.items() <= again.items()
    assert said in logged_one(caplog, ADAPTED).limit
    assert OUTDATED not in logged_codes(caplog)
    assert KeptPlan.load(path).plan == ours.last_plan
    caplog.clear()
    never = AllOnLast()
    assert places(_planner(path, **asked, searcher=never).plan(_shaped(**model))) == again
    assert _is_kept(caplog)
    assert never.asked == 0


def test_grown_delegated_table_moves_no_table_of_a_kept_plan(path, caplog):
    quantised = [sequences("q", rows=rows, data_type=DataType.INT8) for rows in (50, 80)]
    models = [nn.ModuleDict({"bags": bags(*NAMES), "others": its}) for its in quantised]
    first, again = (places(_planner(path).plan(model), "bags") for model in models)
    assert first == again
    _check_differing(caplog, ADAPTED, "other parameters")


def test_adapting_a_kept_plan_moves_only_the_grown_table_that_no_longer_fits(path):
    """Rules of the first plan place all three tables on the last of two devices, which has memory for four."""
    asked = QUICK | {"cap": 4 * SIZE, "memory": MemoryUse()}
    last = Constraints((TableRule("*", devices=(1,)),))
    first = places(_planner(path, rules=last, **asked).plan(_shaped()))
    again = _planner(path, **asked)
    moved = places(again.plan(_shaped({"a": (250, 16)})))
    assert {name: moved[name] for name in "bc"} == {name: first[name] for name in "bc"}
    assert (first["a"][1], moved["a"][1]) == ([1], [0])
    assert again.last_plan.violations == ()


@pytest.mark.parametrize(("searcher", "said"), [(AllOnLast(), True), ("neuroshard", False)])
def test_kept_plan_warns_of_possible_savings_and_moves_nothing(path, caplog, searcher, said):
    first = places(_planner(path, searcher=searcher, tables=_known(2.0)).plan(_shaped()))
    again = _planner(path, searcher=searcher, tables=_known(2.1))
    assert places(again.plan(_shaped())) == first
    kept_ms = again.last_cost.total_ms
    better = again.replan(_shaped(), previous=path)
    assert (better.moved_bytes > 0) is said
    assert ("kept-plan-gain-of-moving" in logged_codes(caplog)) is said
    if said:
        times = [f"{ms:.2f} ms" for ms in (kept_ms, again.last_cost.total_ms)]
        logged_one(caplog, "kept-plan-gain-of-moving", names=[*times, readable_bytes(better.moved_bytes)])


def test_explain_and_export_read_plans_kept_by_the_planner(path, tmp_path):
    """The commands read a kept plan like a plan file of a search."""
    ours = _planner(path, models="cpu", searcher="dim_greedy")
    ours.plan(_shaped())
    (explained,) = Explain(str(path)).run().explanations
    assert explained.plan == ours.last_plan
    assert explained.cost.total_ms == pytest.approx(ours.last_cost.total_ms)
    result = Export(str(path), "torchrec", str(tmp_path / "sharding.json")).run()
    assert result.plan == ours.last_plan
    (entry,) = Evaluate(str(path), None, build("hardware", "cpu"))._entries()
    assert (entry.plan, entry.error) == (ours.last_plan, None)
    assert searcher_of("replan", start=str(path)).find(ours.last_plan.task, ours._finder.simulator).plan.task


def _half_delegated():
    """A model, and constraints that leave one table of a collection and a whole collection to TorchRec's planner."""
    model = nn.ModuleDict({"one": bags("a", "b"), "two": bags("c")})
    constraints = {name: ParameterConstraints(sharding_types=["table_column_wise"]) for name in "bc"}
    return model, constraints


def test_exports_of_kept_plans_to_torchrec_have_the_tables_of_all_planners(path, tmp_path):
    model, constraints = _half_delegated()
    planned = _planner(path, constraints=constraints).plan(model)
    out = tmp_path / "sharding.json"
    result = Export(str(path), "torchrec", str(out)).run()
    assert (result.num_tables, result.remarks) == (3, ())
    assert load_sharding_plan(out, model) == planned
    Export(str(path), "torchrec", str(out), module="one").run()
    assert load_sharding_plan(out, model) == planned
    with refused("export-module-not-kept", names=["'other'", "'one'", "'two'"]):
        Export(str(path), "torchrec", str(out), module="other").run()


def test_exports_of_kept_plans_to_torchrec_may_rename_the_only_collection(path, tmp_path):
    planned = _planner(path).plan(nn.ModuleDict({"one": bags("a", "b")}))
    Export(str(path), "torchrec", str(tmp_path / "sharding.json"), module="other").run()
    assert load_sharding_plan(tmp_path / "sharding.json").plan == {"other": planned.plan["one"]}


def test_exports_of_kept_plans_to_other_systems_name_the_tables_that_they_lack(path, tmp_path):
    model, constraints = _half_delegated()
    _planner(path, constraints=constraints).plan(model)
    result = Export(str(path), "json", str(tmp_path / "placements.json")).run()
    (remark,) = result.remarks
    check(remark, "export-tables-left-out", names=[2, "one.b, two.c", "to=torchrec"])
    assert result.num_tables == 1


@pytest.mark.parametrize("other", [{"batch_size": 8}, {"devices": 4}])
@pytest.mark.parametrize("keep_types", [False, True])
def test_planner_warns_of_types_that_lose_optimizer_state_or_keeps_types(path, caplog, other, keep_types):
    """The plan is searched again or adapted; its first types follow from rules that the second planner lacks."""
    asked = QUICK | {"memory": MemoryUse(), "tables": _known(200.0), "acceptance": None}
    _planner(path, **asked, rules=Constraints((TableRule("*", sharding_types=("column_wise",)),))).plan(_shaped())
    ours = _planner(path, **asked | other, keep_types=keep_types, data_parallel=True)
    kinds = {kind for kind, _ in places(ours.plan(_shaped())).values()}
    assert ("data_parallel" in kinds) is not keep_types
    assert ("checkpoint-state-lost" in logged_codes(caplog)) is not keep_types
    if not keep_types:
        logged_one(caplog, "checkpoint-state-lost", names=["data_parallel_optimizer", "a: table-wise -> data"])


@pytest.mark.parametrize("num_groups", [1, "auto"])
def test_planner_warns_of_lost_state_if_rules_split_a_table_in_any_groups(path, caplog, num_groups):
    asked = QUICK | {"devices": 4, "memory": MemoryUse("rowwise_adagrad"), "keep_types": True}
    _planner(path, **asked).plan(_shaped())
    cut = Constraints((TableRule("a", min_shards=2, max_shards=2),))
    ours = _planner(path, **asked, rules=cut, batch_size=8, num_groups=num_groups)
    assert len(places(ours.plan(_shaped()))["a"][1]) == 2
    logged_one(caplog, "checkpoint-state-lost", names=["a: table-wise -> 2 column shards"])


@pytest.mark.parametrize(("batch", "said"), [(4, "devices"), (8, "devices, batch size")])
def test_kept_plan_is_adapted_to_fewer_devices_at_any_batch_size(path, caplog, batch, said):
    """The last of three devices is removed with all tables; the job keeps the global or the local batch size."""
    asked = {"models": "roofline:h100", "memory": MemoryUse()}
    _planner(path, devices=3, **asked).plan(_shaped())
    caplog.clear()
    ours = _planner(path, **asked, batch_size=batch)
    assert {rank for _, ranks in places(ours.plan(_shaped())).values() for rank in ranks} <= {0, 1}
    assert "3 -> 2 devices" in _check_differing(caplog, ADAPTED, f"tables, {said}").limit


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
    assert again.last_plan == Plan.load(path) == first.last_plan
    assert again.last_plan.forms[1] == rule.sharding_types[0]


OTHER_FILES = {
    "a checkpoint": b"PK\x03\x04" + bytes(1000),
    "other JSON": b"{}",
    "a format further inside": b'{"name": "neuroshard-kept-plan-1"}',
    "an empty file": b"",
    "a plan of ours": None,
}


@pytest.mark.parametrize("content", OTHER_FILES.values(), ids=OTHER_FILES)
def test_foreign_file_is_never_overwritten_by_keep(path, content):
    searcher, previous = AllOnLast(), _planner(None).search(_model("a"))
    if content is None:
        previous.save(path)
        assert Plan.load(path) == previous
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    for find in (NeuroShardPlanner.plan, partial(NeuroShardPlanner.replan, previous=previous)):
        with refused("kept-plan-other-file", names=[f"keep={path}"]):
            find(_planner(path, searcher=searcher), _model("a"))
    assert searcher.asked == 0
    assert path.read_bytes() == before
    with refused("kept-plan-other-file", names=[f"keep={path.parent}"]):
        _planner(path.parent).plan(_model("a"))


def test_jobs_run_if_the_plan_cannot_be_written(path, caplog):
    """A file that appears during the search is kept, and so is a file in place of a directory."""

    class Late(AllOnLast):
        def find(self, task, simulator):
            path.write_text("a checkpoint")
            return super().find(task, simulator)

    for keep in (path, path / "plan.json"):
        caplog.clear()
        assert _planner(keep, searcher=Late()).plan(_model("a")).plan
        logged_one(caplog, "kept-plan-not-saved", names=[keep, "keep="])
        assert path.read_text() == "a checkpoint"


def test_kept_plan_with_a_changed_number_is_refused_as_damaged(path):
    _planner(path).plan(_model("a", "b"))
    kept = path.read_text()
    numbers = [found.start() for found in re.finditer(r"(?<![\w.])\d", kept)]  # their first digits
    numbers = [at for at in numbers if at > kept.index("made_for")]
    assert len(numbers) > 20
    for at in numbers:
        path.write_text(f"{kept[:at]}{int(kept[at]) % 9 + 1}{kept[at + 1 :]}")
        with refused("kept-plan-damaged", where=f"kept plan {path}"):
            KeptPlan.load(path)
    content = json.loads(kept)
    path.write_text(json.dumps(dict(sorted(content.items(), reverse=True)), indent=7))
    assert KeptPlan.load(path).made_for == content["made_for"]  # nothing but how it is set and ordered was changed


def test_planner_plans_again_if_the_kept_file_is_damaged(path, caplog):
    plan = _planner(path).plan(_model("a"))
    kept = path.read_text()
    moved = re.sub(r'("ranks": \[\s*)1', r"\g<1>2", kept, count=1)
    without_digest = re.sub(r'"digest": "\w*",', "", kept)
    older = re.sub(r"neuroshard-kept-plan-\d", "neuroshard-kept-plan-1", without_digest)
    for code, damaged in (
        ("json-unreadable", kept[: len(kept) // 2]),
        ("kept-plan-damaged", moved),
        ("kept-plan-damaged", without_digest),
        ("file-format-other", older),
    ):
        path.write_text(damaged)
        with refused(code, names=[path]):
            Plan.load(path)
        for again in (1, 0):
            caplog.clear()
            assert _planner(path).plan(_model("a")) == plan
            assert logged_codes(caplog).count("kept-plan-unreadable") == again
            if again:
                logged_one(caplog, "kept-plan-unreadable", names=[path])
            assert path.read_text() == kept


def test_concurrent_writers_of_a_kept_plan_leave_a_complete_file(tmp_path, path):
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


def test_plan_of_a_model_without_pooled_tables_is_kept(path):
    model = _model("a")["sequences"]
    plan = _planner(path).plan(model)
    assert _planner(path).plan(model) == plan
    with refused("kept-plan-without-tables", names=[path]):
        Plan.load(path)


def test_digests_differ_only_for_changed_inputs():
    one, other = (digests({"x": value, "same": [1, {"a": (2.5, None)}]}) for value in (AllOnLast, {"a": 1}))
    assert one["same"] == other["same"]
    assert one["x"] != other["x"]
    assert digests({"x": linear_models(2)}) == digests({"x": linear_models(2)})
    here, there, elsewhere = (type("Rule", (), {"__module__": name})() for name in ("a.b", "a.c.d", "b"))
    assert digests({"rule": here}) == digests({"rule": there})  # a class that moves to another module
    assert digests({"rule": here}) != digests({"rule": elsewhere})


def test_digests_of_inputs_are_computed_once(path, monkeypatch):
    asked = []
    counted = lambda *args: asked.append(args) or input_digests(*args)  # noqa: E731
    monkeypatch.setattr("neuroshard.torchrec.planner.input_digests", counted)
    _planner(path).plan(_model("a"))
    assert len(asked) == 1
    _planner(None).plan(_model("a"))
    assert len(asked) == 1


def test_plan_that_a_file_cannot_store_completely_is_not_kept(path, caplog):
    def halved(options):
        for option in options:
            option.output_dtype = DataType.FP16
        return options

    for _ in range(2):
        caplog.clear()
        plan = _planner(path, callbacks=[halved]).plan(_model("a"))
        assert plan.plan["bags"]["a"].output_dtype == DataType.FP16
        logged_one(caplog, "kept-plan-callback-field", names=["output_dtype", "'bags.a'", path])
    assert not path.exists()
