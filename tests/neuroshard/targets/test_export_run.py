"""The command `neuroshard export`, and `target=` of `neuroshard search`."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection

import neuroshard as ns
from neuroshard.cost.cost import Prediction
from neuroshard.plans.plan import Plan, data_parallel_remarks
from neuroshard.targets.target import target_named
from neuroshard.tasks.constraints import TableRule
from neuroshard.testing import toy_task
from neuroshard.torchrec import load_sharding_plan
from neuroshard.words.model_choice import ModelChoice
from tests.kit.commands import done, run_command
from tests.kit.messages import check, refused_command, warned
from tests.kit.plans import DATA_PARALLEL, laid_out, whole
from tests.kit.processes import on_gloo
from tests.kit.torchrec_models import CPU, shaped_bags
from tests.kit.training import sharded


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = toy_task(4, num_devices=2)
    whole(task).save("plan.json")
    laid_out(task, *[DATA_PARALLEL] * 4).save("copies.json")
    full = toy_task(4, num_devices=2, memory_bytes=1000)
    whole(full).save("full.json")
    Path("train.py").write_text("mine")
    Path("tables.csv").write_text("name,rows,dim,pooling_factor\na,100,16,2\nb,50,8,1\nc,70,32,3\n")
    return tmp_path


@pytest.mark.parametrize("target", ["sok", "hugectr"])
def test_export_to_python_writes_a_snippet_and_a_json_file(here, capsys, target):
    out = done(capsys, "export", "plan=plan.json", f"to={target}", "out=found/tables.py")
    assert "4 tables on 2 devices" in out
    assert "found/tables.py, found/tables.json" in out
    ast.parse(Path("found/tables.py").read_text())
    assert json.loads(Path("found/tables.json").read_text())["format"] == f"neuroshard-{target}-1"
    assert {path.name for path in Path("found").iterdir()} == {"tables.py", "tables.json"}


def test_torchrec_export_with_module_nests_the_plan_in_it(here, capsys):
    done(capsys, "export", "plan=plan.json", "to=torchrec", "out=trec.json", "module=sparse.ebc")
    content = json.loads(Path("trec.json").read_text())
    assert list(content) == ["format", "modules"]
    assert list(content["modules"]) == ["sparse.ebc"]


def test_torchrec_export_without_a_module_warns(here, capsys):
    code, out, err = run_command(capsys, "export", "plan=plan.json", "to=torchrec", "out=trec.json")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 2
    (remark,) = target_named("torchrec").export(Plan.load("plan.json")).remarks
    check(remark, "export-without-module", names=["module=PATH"])
    assert json.loads(Path("trec.json").read_text())["remarks"] == [str(remark)]
    assert str(remark) in out


def test_export_to_torchrec_remarks_on_data_parallel_tables(here, capsys):
    out = done(capsys, "export", "plan=copies.json", "to=torchrec", "out=trec.json", "module=ebc")
    (remark,) = data_parallel_remarks(Plan.load("copies.json"))
    names = [4, "(toy0, toy1, toy2, toy3)", "data_parallel_optimizer"]
    check(remark, "plan-data-parallel-tables", names=names)
    assert "searcher.sharding_types" in remark.remedy
    plan = Plan.load("copies.json")
    forced = plan.task.with_rules([TableRule("toy0", sharding_types=["data_parallel"])])
    (other,) = data_parallel_remarks(replace(plan, task=forced))
    assert "searcher.sharding_types" not in other.remedy
    assert json.loads(Path("trec.json").read_text())["remarks"] == [str(remark)]
    assert out.splitlines()[1:] == [str(remark)]
    assert "data_parallel" not in done(capsys, "export", "plan=copies.json", "to=hugectr", "out=hctr.py")


@pytest.mark.parametrize(
    ("models", "device"),
    [(None, "cuda"), ("cpu", "cpu"), ("h100", "cuda"), ("roofline:h100", "cuda"), ("gone", "cuda")],
)
def test_exports_to_torchrec_place_tables_on_the_devices_that_the_plan_was_predicted_for(models, device):
    prediction = None if models is None else Prediction(ModelChoice(models), 1.0)
    exported = target_named("torchrec").export(whole(toy_task(4, num_devices=2)).with_prediction(prediction))
    shards = [shard for its in exported.content["modules"][""].values() for shard in its["shards"]]
    assert {shard["placement"].partition("/")[2].partition(":")[0] for shard in shards} == {device}


def _shard_on_cpu(rank, file):
    """Shard a model by the plan in a file; the shards of each rank must have the weights of its tables."""
    model = nn.ModuleDict({"ebc": shaped_bags({"a": (100, 16), "b": (50, 8), "c": (70, 32)}, device=CPU)})
    parallel = sharded(model, load_sharding_plan(file, model), [EmbeddingBagCollectionSharder()])
    assert isinstance(parallel.module["ebc"], ShardedEmbeddingBagCollection)
    assert {its.device.type for its in parallel.parameters()} <= {"cpu"}


def test_plan_of_the_command_line_for_cpus_shards_a_model_on_cpus(here, capsys):
    done(capsys, "search", "tables=tables.csv", "topology.num_devices=2", "out=found")
    export = ["export", "found/plans/task-0000.json", "to=torchrec", "out=sharding.json"]
    done(capsys, *export, "module=ebc")
    on_gloo(2, _shard_on_cpu, str(here / "sharding.json"))


def _search(*more, batch_size=256):
    tables = ["tables=user_file", "tables.path=tables.csv"]
    return ["search", "model=roofline:h100", *tables, f"batch_size={batch_size}", "topology.num_devices=2", *more]


def test_search_for_torchrec_remarks_on_data_parallel_tables(here, capsys):
    columns = "{tables: '[bc]', sharding_types: [column_wise]}"
    rules = f"constraints.rules=[{{tables: a, sharding_types: [data_parallel]}}, {columns}]"
    for target, count in (("torchrec", 1), ("null", 0)):
        out = done(capsys, *_search(rules, f"target={target}", f"out={target}_run", batch_size=4))
        plan = Plan.load(f"{target}_run/plans/task-0000.json")
        (remark,) = data_parallel_remarks(plan)
        check(remark, "plan-data-parallel-tables", names=["(a)"])
        assert " ".join(out.split()).count(remark.what) == count
    plan = Plan.load("torchrec_run/plans/task-0000.json")
    model = ns.CostModels.load("roofline:h100")
    with pytest.warns(ns.NeuroShardWarning) as caught:
        ns.search(plan.task, ns.Simulator(model), target="torchrec")
    (copied,) = (one for one in caught[0].message.messages if one.code == "plan-data-parallel-tables")
    check(copied, "plan-data-parallel-tables", names=["(a)"])
    with warned("plan-data-parallel-tables"):
        ns.export_plan(plan, "torchrec", "ebc")


@pytest.mark.parametrize("own", ["import mine\n", '"""Embedding tables for HugeCTR on 2 GPUs, mine."""\n', ""])
def test_export_overwrites_its_own_file_and_refuses_to_overwrite_another(here, capsys, own):
    export = ["export", "plan=plan.json", "to=sok", "out=tables.py"]
    done(capsys, *export)
    done(capsys, *export)
    Path("tables.py").write_text(own)
    message = refused_command(capsys, "export-out-other-file", *export, names=["tables.py"])
    assert "out=FILE.py" in message.remedy
    assert Path("tables.py").read_text() == own


@pytest.mark.parametrize(
    ("arguments", "code", "where", "names"),
    [
        ("plan=plan.json to=soc out=x.py", "unknown-name", "", ["'soc'", "'sok'"]),
        ("plan=plan.json to=sok out=x.json", "export-out-suffix", "", ["x.json", "out=FILE.py"]),
        ("plan=plan.json to=json out=x", "export-out-suffix", "", ["x", "out=FILE.json"]),
        ("plan=plan.json to=sok out=plan.py", "export-out-is-plan", "", ["plan.json", "out=FILE.py"]),
        ("plan=plan.json to=json out=plan.json", "export-out-is-plan", "", ["plan.json", "out=FILE.json"]),
        ("plan=plan.json to=sok out=folder.py", "export-out-directory", "", ["folder.py", "out=FILE.py"]),
        ("plan=plan.json to=sok out=train.py", "export-out-other-file", "", ["train.py", "out=FILE.py"]),
        ("plan=plan.json to=json out=copies.json", "export-out-other-file", "", ["copies.json", "out=FILE.json"]),
        ("plan=plan.json to=json out=/proc/1/x.json", "out-unwritable", "out=/proc/1/x.json", ["/proc/1 "]),
        ("plan=full.json to=json out=x.json", "export-plan-breaks-task", "full.json", ["device 0", "1000 bytes"]),
        ("plan=plan.json to=sok out=x.py module=a", "target-without-modules", "", ["module", "'a'", "torchrec"]),
        ("plan=copies.json to=sok out=x.py", "export-table-unsupported", "plan",
         ["'toy0'", "data_parallel", "table_wise", "row_wise"]),
        ("plan=nowhere.json to=sok out=x.py", "file-missing", "", ["nowhere.json"]),
        ("to=sok out=x.py", "config-value-missing", "", ["plan=..."]),
    ],
)  # fmt: skip
def test_wrong_export_arguments_are_refused_in_one_line_and_write_nothing(here, capsys, arguments, code, where, names):
    Path("folder.py").mkdir()
    before = {path.name: path.read_bytes() for path in here.iterdir() if path.is_file()}
    refused_command(capsys, code, "export", *arguments.split(), where=where, names=names)
    assert {path.name: path.read_bytes() for path in here.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(("target", "other"), [("sok", "hugectr"), ("hugectr", "sok")])
def test_search_for_a_target_is_exportable_and_resumes_for_the_same_target_only(here, capsys, target, other):
    done(capsys, *_search(f"target={target}", "out=run"))
    plan = "run/plans/task-0000.json"
    assert Plan.load(plan).violations == ()
    done(capsys, "export", f"plan={plan}", f"to={target}", "out=tables.py")
    done(capsys, *_search(f"target={target}", "out=run"))
    refused_command(capsys, "out-begun-otherwise", *_search(f"target={other}", "out=run"), names=["run"])
