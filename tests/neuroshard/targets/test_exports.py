"""Plans in other systems' words, read back by what these systems do with them."""

import ast
import json
import sys
from collections import Counter
from dataclasses import replace
from math import ceil
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import neuroshard as ns
from neuroshard.layouts import in_columns, in_copies, in_rows
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.tables import Table
from neuroshard.tasks.task import Task, Topology
from neuroshard.testing import ONCE
from neuroshard.words.placement import Home, Placement, Shard, Tier

GOLDEN = Path(__file__).parent / "golden"
GIB = 1 << 30


def _table(name, rows=1000, dim=16, **more):
    return Table(name, rows, dim, 2.0, ONCE, **more)


def _task(tables, num_devices=4, host_size=2):
    return Task(tuple(tables), Topology(num_devices, 1 << 50, 0, host_size, 1 << 50), 256)


def _at(placements, home):
    return [replace(placed, home=home) for placed in placements]


NAMES = ("user", "item page", "clicks", "country", "history")


def _golden_plan(target):
    """A plan that shows all that a target has words for."""
    task = _task([_table(name, 1000 * (n + 1)) for n, name in enumerate(NAMES[:4])] + [_table("history", 1 << 27, 32)])
    whole, rows = in_columns(task, [(0, 16, 3), (1, 16, 1)]), in_rows(task, 2, range(4))
    if target == "sok":
        cached = _at(in_rows(task, 4, range(4)), Home(Tier.CACHED, 0.5))
        return Plan(task, (*whole, *rows, *_at(in_columns(task, [(3, 16, 2)]), Home(Tier.HOST)), *cached))
    on_hosts = in_rows(task, 4, [0, 1], (0, 16)) + in_rows(task, 4, [2, 3], (16, 32))
    halves = in_columns(task, [(1, 8, 1), (1, 8, 3)])
    return Plan(task, (*whole[:1], *halves, *rows, *in_copies(task, 3), *on_hosts))


@pytest.mark.parametrize(
    ("target", "suffix"), [("sok", ".py"), ("hugectr", ".py"), ("torchrec", ".json"), ("json", ".json")]
)
def test_files_are_as_they_were(target, suffix, tmp_path):
    exported = ns.export_plan(_golden_plan(target), target)
    paths = exported.save(tmp_path / f"{target}{suffix}")
    assert [path.suffix for path in paths] == ([".py", ".json"] if suffix == ".py" else [".json"])
    for path in paths:
        assert path.read_text() == (GOLDEN / f"{path.name}.txt").read_text(), path.name


# What SOK does: https://nvidia-merlin.github.io/HugeCTR/sparse_operation_kit.


def _sok_placements(task, content):
    """Of a file's content."""
    placed, everywhere = [], range(content["num_gpus"])
    for index, variable in enumerate(content["variables"]):
        table, mode = task.tables[index], variable["mode"]
        assert (variable["table"], variable["rows"], variable["dimension"]) == (table.name, table.rows, table.dim)
        gpu = int(mode.removeprefix("localized:")) if mode != "distributed" else None
        its = in_rows(task, index, everywhere) if gpu is None else in_columns(task, [(index, table.dim, gpu)])
        placed += [(placement, variable["variable"]) for placement in its]
    return placed


def _sok_calls(snippet, rank, size):
    """What the snippet makes on one GPU, by table: the names and values of its arguments."""
    tensorflow = SimpleNamespace(float16="float16", float32="float32", int64="int64")
    sok = SimpleNamespace(Variable=lambda **given: given | {"kind": "static"}, DynamicVariable=lambda **given: given)
    hvd = SimpleNamespace(rank=lambda: rank, size=lambda: size)
    modules = {"tensorflow": tensorflow, "sparse_operation_kit": sok, "horovod.tensorflow": hvd}
    return _run(snippet, modules | {"horovod": SimpleNamespace(tensorflow=hvd)})["make_tables"]("initializer")


def _run(snippet, modules):
    """The names that a snippet defines, where some modules are others."""
    before = {name: sys.modules.get(name) for name in modules}
    names = {}
    try:
        for name, stand_in in modules.items():
            sys.modules[name] = ModuleType(name)
            vars(sys.modules[name]).update(vars(stand_in))
        exec(compile(ast.parse(snippet), "snippet", "exec"), names)
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return names


@st.composite
def _sok_plans(draw):
    size = draw(st.sampled_from([1, 2, 4]))
    tables = [
        _table(f"t{n}", draw(st.sampled_from([7, 1000, 1 << 30])), draw(st.sampled_from([8, 24, 64])))
        for n in range(draw(st.integers(size, 6)))
    ]
    task = _task(tables, size, draw(st.sampled_from([1, size])))
    placements = []
    for index, table in enumerate(tables):
        gpu = index if index < size else draw(st.integers(0, size - 1))
        whole = index < size or size == 1 or draw(st.booleans())
        its = in_columns(task, [(index, table.dim, gpu)]) if whole else in_rows(task, index, range(size))
        homes = [Home(), Home(Tier.HOST), *([Home(Tier.CACHED, 0.25)] if table.rows > 1000 else [])]
        placements += _at(its, draw(st.sampled_from(homes)))
    return Plan(task, tuple(placements))


@given(_sok_plans())
def test_sok_reads_what_was_planned(plan):
    exported = ns.export_plan(plan, "sok")
    read = _sok_placements(plan.task, json.loads(json.dumps(exported.content)))
    assert {placed for placed, _ in read} == {replace(placed, home=Home()) for placed in plan.placements}
    for placed, kind in read:
        home = next(its.home for its in plan.placements if its.shard == placed.shard)
        assert (home.tier is Tier.DEVICE) == (kind == "static")


@given(_sok_plans())
def test_the_snippet_for_sok_says_the_same_on_every_gpu(plan):
    exported, size = ns.export_plan(plan, "sok"), plan.task.topology.num_devices
    for rank in range(size):
        calls = _sok_calls(exported.snippet, rank, size)
        assert list(calls) == [table.name for table in plan.task.tables]
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


def test_a_snippet_for_sok_wants_as_many_processes():
    with pytest.raises(RuntimeError, match="for 4 processes, there are 2"):
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
def test_capacities_are_powers_of_two_and_caches_whole_gib(rows, share, devices, capacity, in_gpu):
    task = _task([_table("a", rows, 32), *(_table(f"b{n}") for n in range(4))])
    its = in_rows(task, 0, range(4)) if devices == 4 else in_columns(task, [(0, 32, 0)])
    rest = in_columns(task, [(n + 1, 16, n) for n in range(4)])
    exported = ns.export_plan(Plan(task, (*_at(its, Home(Tier.CACHED, share)), *rest)), "sok")
    variable = exported.content["variables"][0]
    assert (variable["capacity"], variable["max_hbm_for_vectors"]) == (capacity, in_gpu)
    assert variable["capacity"] >= 2 * ceil(rows / devices)


# What HugeCTR does: HugeCTR/embeddings/embedding_collection.cpp.


def _hugectr_placements(task, content):
    """Of a file's content."""
    placed, index = [], {table["name"]: n for n, table in enumerate(content["tables"])}
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
                placed += in_copies(task, index[name])
                continue
            in_each, width = len(gpus) // parts, dim // parts
            for part in range(parts):
                its, first = gpus[part * in_each : (part + 1) * in_each], part * width
                if in_each > 1:
                    placed += in_rows(task, index[name], its, (first, first + width))
                else:
                    placed.append(Placement(Shard(index[name], first, width, 0, task.tables[index[name]].rows), its[0]))
    assert set(counted.values()) == {1}
    assert set(counted) == set(index)
    return placed


@st.composite
def _hugectr_plans(draw):
    hosts, host_size = draw(st.sampled_from([(1, 1), (1, 4), (2, 2), (2, 4), (4, 2)]))
    size = hosts * host_size
    tables = [_table(f"t{n}", dim=draw(st.sampled_from([8, 24, 64]))) for n in range(draw(st.integers(1, 6)))]
    task = _task(tables, size, host_size)
    return Plan(task, tuple(placed for index in range(len(tables)) for placed in draw(_hugectr_table(task, index))))


@st.composite
def _hugectr_table(draw, task, index):
    table, topology = task.tables[index], task.topology
    size, dim = topology.num_devices, table.dim
    parts = [parts for parts in range(1, size + 1) if dim % (4 * parts) == 0]
    kind = draw(st.sampled_from(["columns", "copies", "rows", "hosts"] if size > 1 else ["columns"]))
    if kind == "copies":
        return in_copies(task, index)
    if kind == "rows":
        return in_rows(task, index, range(size))
    if kind == "hosts" and 1 < topology.host_size < size:
        count = draw(st.sampled_from([count for count in parts if count <= len(topology.hosts)]))
        homes = sorted(draw(st.permutations(range(len(topology.hosts))))[:count])
        width = dim // count
        ranges = [(n * width, (n + 1) * width) for n in range(count)]
        pairs = zip(homes, ranges, strict=True)
        return [placed for home, its in pairs for placed in in_rows(task, index, topology.hosts[home], its)]
    count = draw(st.sampled_from(parts))
    return in_columns(task, [(index, dim // count, gpu) for gpu in draw(st.permutations(range(size)))[:count]])


@given(_hugectr_plans())
def test_hugectr_reads_what_was_planned(plan):
    exported = ns.export_plan(plan, "hugectr")
    content = json.loads(json.dumps(exported.content))
    assert sorted(_hugectr_placements(plan.task, content)) == sorted(plan.placements)


@given(_hugectr_plans())
def test_the_snippet_for_hugectr_says_the_same(plan):
    exported, given_to = ns.export_plan(plan, "hugectr"), {}
    hugectr = SimpleNamespace(EmbeddingTableConfig=lambda **given: given)
    names = _run(exported.snippet, {"hugectr": hugectr})
    names["shard"](SimpleNamespace(shard=lambda **given: given_to.update(given)))
    as_json = json.loads(json.dumps(given_to))
    assert as_json == {name: exported.content[name] for name in ("shard_matrix", "shard_strategy")}
    assert list(names["make_tables"]().values()) == exported.content["tables"]
    assert all(isinstance(entry, (str, tuple)) for _, group in given_to["shard_strategy"] for entry in group)


def test_sequence_tables_of_hugectr_are_in_groups_of_their_width():
    tables = [_table("a"), *(_table(name, dim=dim, pooled=False) for name, dim in (("b", 8), ("c", 16), ("d", 8)))]
    task = _task(tables)
    plan = Plan(task, tuple(placed for index in range(4) for placed in in_rows(task, index, range(4))))
    strategy = ns.export_plan(plan, "hugectr").content["shard_strategy"]
    assert strategy == [["mp", ["a"]], ["mp", ["b", "d"]], ["mp", ["c"]]]


@settings(max_examples=20)
@given(plan=_hugectr_plans())
def test_torchrec_reads_what_was_planned(tmp_path_factory, plan):
    from neuroshard.torchrec import from_sharding_plan, load_sharding_plan

    path = tmp_path_factory.mktemp("torchrec") / "plan.json"
    ns.export_plan(plan, "torchrec", module="model.ebc").save(path)
    read = load_sharding_plan(path)
    assert list(read.plan) == ["model.ebc"]
    assert sorted(from_sharding_plan(plan.task, read).placements) == sorted(plan.placements)


@given(st.one_of(_sok_plans(), _hugectr_plans()))
def test_plain_placements_are_those_of_the_plan(plan):
    content = json.loads(json.dumps(ns.export_plan(plan, "json").content))
    index = {table["name"]: n for n, table in enumerate(content["tables"])}
    read = [
        Placement(
            Shard(index[its["table"]], its["first_column"], its["columns"], its["first_row"], its["rows"]),
            its["device"],
            Home(Tier(its["tier"]), its["cached"]),
        )
        for its in content["placements"]
    ]
    assert sorted(read) == sorted(plan.placements)
    assert [table["form"] for table in content["tables"]] == [form.value for form in plan.forms]


def _plan(table, *placements, others=4):
    """Of a table "t", and one on every GPU besides."""
    task = _task([table, *(_table(f"other{n}") for n in range(others))])
    rest = in_columns(task, [(n + 1, 16, n) for n in range(others)])
    return Plan(task, (*(its for make in placements for its in make(task)), *rest))


def _halves(task):
    return in_columns(task, [(0, 8, 0), (0, 8, 1)])


def _on_a_host(task):
    return in_rows(task, 0, [2, 3])


def _whole(home):
    return lambda task: _at(in_columns(task, [(0, 16, 0)]), home)


@pytest.mark.parametrize(
    ("target", "plan", "message"),
    [
        ("sok", _plan(_table("t"), lambda task: in_copies(task, 0)),
         "table 't' lies in copies, and SOK has columns and rows only; find another with search target=sok"),
        ("sok", _plan(_table("t"), _halves), "'t' is cut in columns, and SOK leaves columns together; find another"),
        ("sok", _plan(_table("t"), _on_a_host), "'t' lies in rows on 2 devices, and SOK has rows on all 4; find"),
        ("sok", _plan(_table("t", pooled=False), _whole(Home())),
         "'t' lies in columns, and SOK has rows of sequence tables only"),
        ("sok", _plan(_table("t"), _whole(Home()), others=3), "device 3 holds no table, and SOK wants one on every"),
        ("sok", _plan(_table("t", 1 << 26), _whole(Home(Tier.CACHED, 0.2))),
         "'t' has a cache of 819 MiB on a device, and SOK counts whole GiB"),
        ("sok", _plan(_table("t", bytes_per_element=2), _whole(Home(Tier.HOST))),
         "'t' has 2 bytes per element in host memory, and SOK stores 4 there"),
        ("hugectr", _plan(_table("t"), lambda task: in_columns(task, [(0, 4, 0), (0, 12, 1)])),
         "'t' lies in shards of 4 and 12 columns, and those of HugeCTR are all as wide; find another with"),
        ("hugectr", _plan(_table("t"), _whole(Home(Tier.HOST))), "'t' lies in tier host, and HugeCTR has device only"),
        ("hugectr", _plan(_table("t", bytes_per_element=2), _whole(Home())),
         "'t' has 2 bytes per element, and HugeCTR stores 4; plan it with bytes_per_element=4"),
    ],
)  # fmt: skip
def test_what_a_target_has_no_words_for_is_refused(target, plan, message):
    with pytest.raises(UserError) as refused:
        ns.export_plan(plan, target)
    assert message in str(refused.value)


def test_tables_on_some_gpus_only_suffice_where_another_is_on_all():
    plan = _plan(_table("t"), lambda task: in_rows(task, 0, range(4)), others=1)
    assert ns.export_plan(plan, "sok").content["variables"][0]["mode"] == "distributed"


def test_there_is_no_such_target():
    with pytest.raises(UserError, match="unknown target 'hugetcr'; did you mean 'hugectr'"):
        ns.export_plan(_golden_plan("json"), "hugetcr")
    with pytest.raises(UserError, match=r"module='x' goes with torchrec only"):
        ns.export_plan(_golden_plan("json"), "hugectr", module="x")


def test_names_that_tensorflow_would_not_take_are_left_to_sok():
    calls = _sok_calls(ns.export_plan(_golden_plan("sok"), "sok").snippet, 0, 4)
    assert [calls[name].get("name") for name in NAMES] == ["user", None, "clicks", "country", "history"]
