"""Exported plans for other systems, checked by how these systems read them, and tasks constrained for these systems."""

import json
import sys
from collections import Counter
from dataclasses import replace
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import neuroshard as ns
from neuroshard import Constraints, Placement, Shard, TableRule, Task, Tier, TierAssignment, Topology
from neuroshard.targets.target import TARGETS, constrained, target_named
from neuroshard.testing import linear_models, toy_task
from neuroshard.words.form import Form
from neuroshard.words.placement import ON_DEVICE
from tests.kit.messages import check, refused
from tests.kit.plans import DATA_PARALLEL, laid_out, placed, table, whole

GOLDEN = Path(__file__).parent / "golden"
HOST = TierAssignment(Tier.UVM)


def _task(tables, num_devices=4, host_size=2):
    return Task(tuple(tables), Topology(num_devices, 1 << 50, 0, host_size, 1 << 50), 256)


def _homed(plan, *homes):
    """Return the plan with these tiers for its first tables."""
    given = dict(enumerate(homes))
    return replace(
        plan,
        placements=tuple(
            replace(one, tier_assignment=given.get(one.shard.table, one.tier_assignment)) for one in plan.placements
        ),
    )


NAMES = ("user", "item page", "clicks", "country", "history")


def _golden_plan(target):
    """Return a plan with all placements that a target can express."""
    task = _task([table(name, 1000 * (n + 1)) for n, name in enumerate(NAMES[:4])] + [table("history", 1 << 27, 32)])
    if target == "sok":
        plan = laid_out(task, 3, 1, range(4), 2, range(4))
        return _homed(plan, ON_DEVICE, ON_DEVICE, ON_DEVICE, HOST, TierAssignment(Tier.UVM_CACHING, 0.5))
    return laid_out(task, 3, {1: 8, 3: 8}, range(4), DATA_PARALLEL, {(0, 1): 16, (2, 3): 16})


@pytest.mark.parametrize(
    ("target", "suffix"), [("sok", ".py"), ("hugectr", ".py"), ("torchrec", ".json"), ("json", ".json")]
)
def test_exported_files_match_recorded_files(target, suffix, tmp_path):
    exported = ns.export_plan(_golden_plan(target), target)
    paths = exported.save(tmp_path / f"{target}{suffix}")
    assert [path.suffix for path in paths] == ([".py", ".json"] if suffix == ".py" else [".json"])
    for path in paths:
        assert path.read_text() == (GOLDEN / f"{path.name}.txt").read_text(), path.name


# What SOK does: https://nvidia-merlin.github.io/HugeCTR/sparse_operation_kit.


def _sok_placements(task, content):
    """Of a file's content, each with its kind of variable."""
    found = []
    for index, variable in enumerate(content["variables"]):
        its, mode = task.tables[index], variable["mode"]
        assert (variable["table"], variable["rows"], variable["dimension"]) == (its.name, its.rows, its.dim)
        where = range(content["num_gpus"]) if mode == "distributed" else int(mode.removeprefix("localized:"))
        found += [(one, variable["variable"]) for one in placed(task, index, where)]
    return found


def _sok_calls(snippet, rank, size):
    """What the snippet makes on one GPU, by table: the names and values of its arguments."""
    tensorflow = SimpleNamespace(float16="float16", float32="float32", int64="int64")
    sok = SimpleNamespace(Variable=lambda **given: given | {"kind": "static"}, DynamicVariable=lambda **given: given)
    hvd = SimpleNamespace(rank=lambda: rank, size=lambda: size)
    modules = {"tensorflow": tensorflow, "sparse_operation_kit": sok, "horovod.tensorflow": hvd}
    return _run(snippet, modules | {"horovod": SimpleNamespace(tensorflow=hvd)})["make_tables"]("initializer")


def _run(snippet, modules):
    """The names that a snippet defines, where some modules are others."""
    names = {}
    with patch.dict(sys.modules, modules):
        exec(snippet, names)
    return names


@st.composite
def _sok_plans(draw):
    size = draw(st.sampled_from([1, 2, 4]))
    tables = [
        table(f"t{n}", draw(st.sampled_from([7, 1000, 1 << 30])), draw(st.sampled_from([8, 24, 64])))
        for n in range(draw(st.integers(size, 6)))
    ]
    task = _task(tables, size, draw(st.sampled_from([1, size])))
    places, homes = [], []
    for index, its in enumerate(tables):
        gpu = index if index < size else draw(st.integers(0, size - 1))
        places.append(gpu if index < size or size == 1 or draw(st.booleans()) else range(size))
        homes.append(
            draw(
                st.sampled_from(
                    [TierAssignment(), HOST, *([TierAssignment(Tier.UVM_CACHING, 0.25)] if its.rows > 1000 else [])]
                )
            )
        )
    return _homed(laid_out(task, *places), *homes)


@given(_sok_plans())
def test_sok_file_and_snippet_match_the_plan(plan):
    exported = ns.export_plan(plan, "sok")
    read = _sok_placements(plan.task, json.loads(json.dumps(exported.content)))
    assert {one for one, _ in read} == {replace(one, tier_assignment=TierAssignment()) for one in plan.placements}
    for one, kind in read:
        home = next(its.tier_assignment for its in plan.placements if its.shard == one.shard)
        assert (home.tier is Tier.DEVICE) == (kind == "static")
    for rank in range(plan.task.topology.num_devices):
        _check_sok_calls(plan, exported, rank)


def _check_sok_calls(plan, exported, rank):
    """The snippet says on every GPU what the content does."""
    calls = _sok_calls(exported.snippet, rank, plan.task.topology.num_devices)
    assert list(calls) == [its.name for its in plan.task.tables]
    for variable in exported.content["variables"]:
        call = calls[variable["table"]]
        assert call["mode"] == variable["mode"]
        assert call["name"] == variable["table"]
        if variable["variable"] == "static":
            assert (call["kind"], call["shape"]) == ("static", [variable["rows"], variable["dimension"]])
            assert call["initializer"] == "initializer"
            continue
        assert (call["dimension"], call["var_type"], call["key_type"]) == (variable["dimension"], "hybrid", "int64")
        assert not {"evict_strategy", "device_id"}.intersection(call)  # which SOK reads wrongly
        here = variable["mode"] in ("distributed", f"localized:{rank}")
        capacity, in_gpu = (variable["capacity"], variable["max_hbm_for_vectors"]) if here else (1024, 0)
        assert (call["init_capacity"], call["max_capacity"]) == (capacity, capacity)
        assert call["max_hbm_for_vectors"] == in_gpu


def test_sok_snippet_raises_if_the_number_of_processes_differs():
    with pytest.raises(RuntimeError, match=r"\b2\b.*\b4\b"):
        _sok_calls(ns.export_plan(_golden_plan("sok"), "sok").snippet, 0, 2)


@pytest.mark.parametrize(
    ("rows", "share", "devices", "capacity", "in_gpu"),
    [
        (1 << 27, 0.5, 4, 1 << 26, 2),  # 32 Mi rows x 128 bytes on each, half of them in GPU memory
        ((1 << 27) + 1, 0.5, 4, 1 << 27, 2),
        (1 << 27, 0.99, 4, 1 << 26, 3),
        (1 << 27, 1.0, 4, 1 << 26, 4),
        (1 << 27, 0.25, 1, 1 << 28, 4),
    ],
)
def test_sok_capacities_are_powers_of_two_and_caches_whole_gib(rows, share, devices, capacity, in_gpu):
    plan = _plan(table("t", rows, 32), range(4) if devices == 4 else 0, TierAssignment(Tier.UVM_CACHING, share))
    exported = ns.export_plan(plan, "sok")
    variable = exported.content["variables"][0]
    assert (variable["capacity"], variable["max_hbm_for_vectors"]) == (capacity, in_gpu)
    assert variable["capacity"] >= 2 * ceil(rows / devices)


# What HugeCTR does: HugeCTR/embeddings/embedding_collection.cpp.


def _hugectr_placements(task, content):
    """Of a file's content."""
    found, index = [], {its["name"]: n for n, its in enumerate(content["tables"])}
    counted = Counter()
    for kind, entries in content["shard_strategy"]:
        for entry in entries:
            name, parts = (entry, 1) if isinstance(entry, str) else entry
            counted[name] += 1
            gpus = [gpu for gpu, names in enumerate(content["shard_matrix"]) if name in names]
            dim = content["tables"][index[name]]["ev_size"]
            assert len(gpus) % parts == 0
            assert dim % parts == 0
            if kind == "dp":
                assert (gpus, parts) == (list(range(content["num_gpus"])), 1)
                found += placed(task, index[name], DATA_PARALLEL)
                continue
            each = len(gpus) // parts
            groups = [tuple(gpus[part * each : (part + 1) * each]) for part in range(parts)]
            where = {its if len(its) > 1 else its[0]: dim // parts for its in groups}
            found += placed(task, index[name], where)
    assert set(counted.values()) == {1}
    assert set(counted) == set(index)
    return found


@st.composite
def _hugectr_plans(draw):
    hosts, host_size = draw(st.sampled_from([(1, 1), (1, 4), (2, 2), (2, 4), (4, 2)]))
    size = hosts * host_size
    tables = [table(f"t{n}", dim=draw(st.sampled_from([8, 24, 64]))) for n in range(draw(st.integers(1, 6)))]
    task = _task(tables, size, host_size)
    return laid_out(task, *(draw(_hugectr_place(task, its)) for its in tables))


@st.composite
def _hugectr_place(draw, task, its):
    size, topology = task.topology.num_devices, task.topology
    parts = [parts for parts in range(1, size + 1) if its.dim % (4 * parts) == 0]
    kind = draw(st.sampled_from(["columns", DATA_PARALLEL, "rows", "hosts"] if size > 1 else ["columns"]))
    if kind == DATA_PARALLEL:
        return DATA_PARALLEL
    if kind == "rows":
        return range(size)
    if kind == "hosts" and 1 < topology.host_size < size:
        count = draw(st.sampled_from([count for count in parts if count <= len(topology.hosts)]))
        homes = sorted(draw(st.permutations(range(len(topology.hosts))))[:count])
        return {topology.hosts[home]: its.dim // count for home in homes}
    count = draw(st.sampled_from(parts))
    return dict.fromkeys(draw(st.permutations(range(size)))[:count], its.dim // count)


@given(_hugectr_plans())
def test_hugectr_file_and_snippet_match_the_plan(plan):
    exported, given_to = ns.export_plan(plan, "hugectr"), {}
    content = json.loads(json.dumps(exported.content))
    assert sorted(_hugectr_placements(plan.task, content)) == sorted(plan.placements)
    hugectr = SimpleNamespace(EmbeddingTableConfig=lambda **given: given)
    names = _run(exported.snippet, {"hugectr": hugectr})
    names["shard"](SimpleNamespace(shard=lambda **given: given_to.update(given)))
    as_json = json.loads(json.dumps(given_to))
    assert as_json == {name: exported.content[name] for name in ("shard_matrix", "shard_strategy")}
    assert list(names["make_tables"]().values()) == exported.content["tables"]
    assert all(isinstance(entry, (str, tuple)) for _, group in given_to["shard_strategy"] for entry in group)


def test_sequence_tables_of_hugectr_are_in_groups_of_their_width():
    tables = [table("a"), *(table(name, dim=dim, pooled=False) for name, dim in (("b", 8), ("c", 16), ("d", 8)))]
    plan = laid_out(_task(tables), *[range(4)] * 4)
    strategy = ns.export_plan(plan, "hugectr").content["shard_strategy"]
    assert strategy == [["mp", ["a"]], ["mp", ["b", "d"]], ["mp", ["c"]]]


@settings(max_examples=20)
@given(plan=_hugectr_plans())
def test_exported_torchrec_file_is_read_back_as_the_same_plan(tmp_path_factory, plan):
    from neuroshard.torchrec import from_sharding_plan, load_sharding_plan

    path = tmp_path_factory.mktemp("torchrec") / "plan.json"
    ns.export_plan(plan, "torchrec", module="model.ebc").save(path)
    read = load_sharding_plan(path)
    assert list(read.plan) == ["model.ebc"]
    assert sorted(from_sharding_plan(plan.task, read).placements) == sorted(plan.placements)


@given(st.one_of(_sok_plans(), _hugectr_plans()))
def test_json_export_has_the_placements_of_the_plan(plan):
    content = json.loads(json.dumps(ns.export_plan(plan, "json").content))
    index = {table["name"]: n for n, table in enumerate(content["tables"])}
    read = [
        Placement(
            Shard(index[its["table"]], its["first_column"], its["columns"], its["first_row"], its["rows"]),
            its["device"],
            TierAssignment(Tier(its["tier"]), its["cache_load_factor"]),
        )
        for its in content["placements"]
    ]
    assert sorted(read) == sorted(plan.placements)
    assert [table["sharding_type"] for table in content["tables"]] == list(plan.sharding_types)


def _plan(its, where, home=ON_DEVICE, others=4):
    """Of a table, with another table on every GPU."""
    task = _task([its, *(table(f"other{n}") for n in range(others))])
    return _homed(laid_out(task, where, *range(others)), home)


@pytest.mark.parametrize(
    ("target", "plan", "code", "names"),
    [
        ("sok", _plan(table("t"), DATA_PARALLEL), "export-table-unsupported",
         ["'t'", "data_parallel", "table_wise", "row_wise", "target=sok"]),
        ("sok", _plan(table("t"), {0: 8, 1: 8}), "export-table-unsupported",
         ["'t'", "column_wise", "table_wise", "row_wise", "target=sok"]),
        ("sok", _plan(table("t"), [2, 3]), "export-table-unsupported", ["'t'", "table_row_wise"]),
        ("sok", _plan(table("t", pooled=False), 0), "export-table-unsupported", ["'t'", "table_wise", "row_wise"]),
        ("sok", _plan(table("t"), 0, others=3), "sok-device-empty", ["device 3", "topology.num_devices"]),
        ("sok", _plan(table("t", 1 << 26), 0, TierAssignment(Tier.UVM_CACHING, 0.2)), "sok-cache-small",
         ["'t'", "819 MiB", "1 GiB"]),
        ("sok", _plan(table("t", bytes_per_element=2), 0, HOST), "sok-host-element-bytes",
         ["'t'", 2, "bytes_per_element=4"]),
        ("hugectr", _plan(table("t"), {0: 4, 1: 12}), "export-table-unsupported",
         ["'t'", 4, 12, "target=hugectr"]),
        ("hugectr", _plan(table("t"), 0, HOST), "export-table-unsupported", ["'t'", "uvm", "device"]),
        ("hugectr", _plan(table("t", bytes_per_element=2), 0), "target-element-bytes",
         ["'t'", 2, "bytes_per_element=4"]),
        *((name, laid_out(toy_task(1, memory_bytes=1000), 0), "export-plan-breaks-task", ["device 0", "1000 bytes"])
          for name in TARGETS),
        ("hugetcr", _plan(table("t"), 0), "unknown-name", ["'hugetcr'", "'hugectr'"]),
    ],
)  # fmt: skip
def test_export_refuses_plans_that_the_target_cannot_express(target, plan, code, names):
    with refused(code, where="" if code in ("target-element-bytes", "unknown-name") else "plan", names=names):
        ns.export_plan(plan, target)


def test_sok_export_accepts_tables_on_one_gpu_beside_one_on_all():
    plan = _plan(table("t"), range(4), others=1)
    assert ns.export_plan(plan, "sok").content["variables"][0]["mode"] == "distributed"


def test_sok_snippet_leaves_out_names_that_tensorflow_refuses():
    calls = _sok_calls(ns.export_plan(_golden_plan("sok"), "sok").snippet, 0, 4)
    assert [calls[name].get("name") for name in NAMES] == ["user", None, "clicks", "country", "history"]


# Rules that keep a task's plans to what a target can express.

TABLE = table("a")
TASK = Task((TABLE, table("b")), Topology(4, 1 << 30, 0, 2, 1 << 30), 64)
LAYOUTS = {
    "whole": 0,
    "halves": {0: 8, 1: 8},
    "quarters": {0: 4, 1: 4, 2: 4, 3: 4},
    "unequal": {0: 4, 1: 12},
    "rows": range(4),
    "host": [2, 3],
    "grid": {(0, 1): 8, (2, 3): 8},
    "copies": DATA_PARALLEL,
    "uvm": 0,
    "uvm_caching": 0,
}
HOMES = {"uvm": HOST, "uvm_caching": TierAssignment(Tier.UVM_CACHING, 1.0)}
KEPT = {
    "sok": {"whole", "rows", "uvm", "uvm_caching"},
    "hugectr": {"whole", "halves", "rows", "host", "grid", "copies"},
    "torchrec": set(LAYOUTS),
    "json": set(LAYOUTS),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("target", KEPT)
def test_target_expresses_exactly_the_plans_that_keep_its_rules(target, layout):
    task = target_named(target).constrained(TASK)
    plan = _homed(laid_out(task, LAYOUTS[layout], 1), HOMES.get(layout, ON_DEVICE), ON_DEVICE)
    assert (plan.violations == ()) == (layout in KEPT[target]), plan.violations
    if plan.violations == ():
        target_named(target).check(plan)
    elif (target, layout) != ("hugectr", "quarters"):  # which HugeCTR has, and searches leave out
        with refused("export-table-unsupported", where="plan", names=["'a'"]):
            target_named(target).check(plan)


def test_constrained_leaves_tasks_unchanged_without_a_target_and_for_torchrec_and_json():
    assert constrained([TASK], None) == (TASK,)
    for name in ("torchrec", "json"):
        assert target_named(name).constrained(TASK) is TASK


def test_constraining_a_task_for_a_target_keeps_the_rules_of_the_task():
    task = replace(
        TASK, constraints=Constraints((TableRule("b", sharding_types=("column_wise",)),), apart=(("a", "b"),))
    )
    for target in map(target_named, TARGETS):
        found = target.constrained(task).constraints
        assert found.rules[0] == task.constraints.rules[0]
        assert found.apart == (("a", "b"),)


@pytest.mark.parametrize(
    ("target", "task", "code", "where", "names"),
    [
        ("sok", replace(TASK, constraints=Constraints((TableRule("a", min_shards=2),))),
         "table-shard-counts", "target=sok: constraints", ["'a'", 16, 4, 2, 1]),
        ("sok", replace(TASK, constraints=Constraints((TableRule("a", sharding_types=("data_parallel",)),))),
         "table-no-sharding-type", "target=sok: constraints", ["'a'"]),
        ("hugectr", replace(TASK, constraints=Constraints((TableRule("a", min_shards=3),))),
         "table-shard-counts", "target=hugectr: constraints", ["'a'", 16, 4, 3, 1]),
        ("sok", replace(TASK, tables=(TABLE, replace(TABLE, name="s[1]", pooled=False)),
                        constraints=Constraints((TableRule("s*", sharding_types=("column_wise",)),))),
         "table-no-sharding-type", "target=sok: constraints", ["'s[1]'"]),
        ("hugectr", replace(TASK, tables=(replace(TABLE, name="half", bytes_per_element=2),)),
         "target-element-bytes", "", ["'half'", 2, "bytes_per_element=4"]),
    ],
)  # fmt: skip
def test_constraining_a_task_that_the_target_cannot_serve_is_refused(target, task, code, where, names):
    with refused(code, where=where, names=names):
        constrained([task], target)


def test_sok_and_hugectr_targets_constrain_sequence_tables_to_row_wise():
    tables = (TABLE, replace(TABLE, name="s[1]", pooled=False))
    for name in ("sok", "hugectr"):
        found = target_named(name).constrained(replace(TASK, tables=tables)).constraints
        assert found.limits(tables[1], 4).forms == {Form.ROW_WISE}
        assert Form.COLUMN_WISE in found.limits(tables[0], 4).forms


def test_search_for_sok_warns_of_gpus_without_tables():
    simulator = ns.Simulator(linear_models(2))
    with pytest.warns(ns.NeuroShardWarning) as caught:
        ns.search(toy_task(1, num_devices=2), simulator, "dim_greedy", target="sok")
    (empty,) = (one for one in caught[0].message.messages if one.code == "sok-device-empty")
    check(empty, "sok-device-empty", names=["device 1"])


@pytest.mark.parametrize(("domain", "hosts"), [(None, None), (4, 2), (8, None)])
def test_torchrec_export_remarks_on_the_pod_size_that_rows_on_some_hosts_need(domain, hosts):
    topology = Topology(8, 1 << 50, devices_per_host=2, devices_per_domain=domain)
    task = Task((table("a", 16), table("b", 16)), topology, 256)
    plan = laid_out(task, range(topology.domain_size), range(8))
    remarks = [one for one in target_named("torchrec").export(plan).remarks if one.code == "export-pod-size"]
    assert len(remarks) == (hosts is not None)
    for remark in remarks:
        check(remark, "export-pod-size", names=["'a'"])
        assert f"TORCHREC_RESOLVED_POD_SIZE={hosts} " in remark.remedy


@pytest.mark.parametrize("target", ["torchrec", "sok", "hugectr", "json"])
def test_padded_tables_are_named_by_every_export(target):
    tables = tuple(table(name, 100, 12, unpadded_dim=odd) for name, odd in (("a", 10), ("b", None)))
    plan = whole(Task(tables, Topology(2, 1 << 20), 64))
    (padded,) = (one for one in target_named(target).export(plan).remarks if one.code == "tables-padded")
    check(padded, "tables-padded", names=["(a 10 -> 12)", "embedding_dim"])
