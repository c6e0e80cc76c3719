"""The command `neuroshard export`, and `target=` of `neuroshard search`."""

import ast
import json
from pathlib import Path

import pytest

import neuroshard as ns
from neuroshard.plans.plan import Plan
from neuroshard.testing import toy_task
from tests.kit.commands import done, run_command
from tests.kit.plans import COPIES, laid_out, whole


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = toy_task(4, num_devices=2)
    whole(task).save("plan.json")
    laid_out(task, *[COPIES] * 4).save("copies.json")
    full = toy_task(4, num_devices=2, memory_bytes=1000)
    whole(full).save("full.json")
    Path("train.py").write_text("mine")
    Path("tables.csv").write_text("name,rows,dim,pooling_factor\na,100,16,2\nb,50,8,1\nc,70,32,3\n")
    return tmp_path


@pytest.mark.parametrize("target", ["sok", "hugectr"])
def test_a_snippet_and_json_beside_it(here, capsys, target):
    out = done(capsys, "export", "plan=plan.json", f"to={target}", "out=found/tables.py")
    assert "4 tables on 2 devices" in out
    assert "found/tables.py, found/tables.json" in out
    ast.parse(Path("found/tables.py").read_text())
    assert json.loads(Path("found/tables.json").read_text())["format"] == f"neuroshard-{target}-1"
    assert {path.name for path in Path("found").iterdir()} == {"tables.py", "tables.json"}


def test_torchrec_in_its_module(here, capsys):
    done(capsys, "export", "plan=plan.json", "to=torchrec", "out=trec.json", "module=sparse.ebc")
    content = json.loads(Path("trec.json").read_text())
    assert list(content) == ["format", "modules"]
    assert list(content["modules"]) == ["sparse.ebc"]


def test_torchrec_without_a_module_is_said(here, capsys):
    code, out, err = run_command(capsys, "export", "plan=plan.json", "to=torchrec", "out=trec.json")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 2
    assert "no module=...: the file doesn't say where in the model the tables are; export with module=PATH" in out
    (remark,) = json.loads(Path("trec.json").read_text())["remarks"]
    assert remark in out


def test_export_to_torchrec_remarks_on_data_parallel_tables(here, capsys):
    out = done(capsys, "export", "plan=copies.json", "to=torchrec", "out=trec.json", "module=ebc")
    (remark,) = json.loads(Path("trec.json").read_text())["remarks"]
    assert remark.startswith("4 table(s) are data_parallel in TorchRec (toy0, toy1, toy2, toy3)")
    assert out.splitlines()[1:] == [remark]
    assert "data_parallel" not in done(capsys, "export", "plan=copies.json", "to=hugectr", "out=hctr.py")


def _search(*more, batch_size=256):
    tables = ["tables=user_file", "tables.path=tables.csv"]
    return ["search", "model=roofline:h100", *tables, f"batch_size={batch_size}", "topology.num_devices=2", *more]


def test_search_for_torchrec_remarks_on_data_parallel_tables(here, capsys):
    columns = "{tables: '[bc]', sharding_types: [column_wise]}"
    rules = f"constraints.rules=[{{tables: a, sharding_types: [data_parallel]}}, {columns}]"
    for target, count in (("torchrec", 1), ("null", 0)):
        out = done(capsys, *_search(rules, f"target={target}", f"out={target}", batch_size=4))
        said = " ".join(out.split())
        assert said.count("1 table(s) are data_parallel in TorchRec (a)") == count
    plan = Plan.load("torchrec/plans/task-0000.json")
    model = ns.CostModels.load("roofline:h100")
    with pytest.warns(UserWarning, match=r"1 table\(s\) are data_parallel in TorchRec \(a\)"):
        ns.search(plan.task, ns.Simulator(model), target="torchrec")
    with pytest.warns(UserWarning, match="data_parallel_optimizer"):
        ns.export_plan(plan, "torchrec", "ebc")


@pytest.mark.parametrize("own", ["import mine\n", '"""Embedding tables for HugeCTR on 2 GPUs, mine."""\n', ""])
def test_a_script_that_took_the_place_of_an_export_stays(here, capsys, own):
    export = ["export", "plan=plan.json", "to=sok", "out=tables.py"]
    done(capsys, *export)
    done(capsys, *export)
    Path("tables.py").write_text(own)
    code, _, err = run_command(capsys, *export)
    assert (code, Path("tables.py").read_text()) == (2, own)
    assert "tables.py is no earlier export; give another out=FILE.py" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan=plan.json", "to=soc", "out=x.py"], "unknown target 'soc'; did you mean 'sok'?"),
        (["plan=plan.json", "to=sok", "out=x.json"], "out=x.json must end in .py"),
        (["plan=plan.json", "to=json", "out=x"], "out=x must end in .json"),
        (
            ["plan=plan.json", "to=sok", "out=plan.py"],
            "plan.json is the plan that is exported; give another out=FILE.py",
        ),
        (["plan=plan.json", "to=json", "out=plan.json"], "plan.json is the plan that is exported"),
        (["plan=plan.json", "to=sok", "out=folder.py"], "folder.py is a directory"),
        (["plan=plan.json", "to=sok", "out=train.py"], "train.py is no earlier export; give another out=FILE.py"),
        (["plan=plan.json", "to=json", "out=copies.json"], "copies.json is no earlier export; give another"),
        (["plan=plan.json", "to=json", "out=/proc/1/x.json"], "/proc/1 can't be written to; give another out="),
        (["plan=full.json", "to=json", "out=x.json"], "full.json: doesn't fit its task: device 0 needs"),
        (["plan=plan.json", "to=sok", "out=x.py", "module=a"], "module='a' goes with torchrec only"),
        (
            ["plan=copies.json", "to=sok", "out=x.py"],
            "table 'toy0' is data_parallel, and SOK has table_wise and row_wise",
        ),
        (["plan=nowhere.json", "to=sok", "out=x.py"], "no plan at nowhere.json"),
        (["to=sok", "out=x.py"], "neuroshard export needs plan=...: a plan file"),
    ],
)
def test_mistakes_are_a_line_and_write_nothing(here, capsys, arguments, message):
    Path("folder.py").mkdir()
    before = {path.name: path.read_bytes() for path in here.iterdir() if path.is_file()}
    code, _, err = run_command(capsys, "export", *arguments)
    assert code == 2
    assert err.startswith("neuroshard: error: ")
    assert err.count("\n") == 1
    assert message in err
    assert {path.name: path.read_bytes() for path in here.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(("target", "other"), [("sok", "hugectr"), ("hugectr", "sok")])
def test_what_is_searched_for_a_target_can_be_exported_and_goes_on_for_it_only(here, capsys, target, other):
    done(capsys, *_search(f"target={target}", "out=run"))
    plan = "run/plans/task-0000.json"
    assert Plan.load(plan).violations == ()
    done(capsys, "export", f"plan={plan}", f"to={target}", "out=tables.py")
    done(capsys, *_search(f"target={target}", "out=run"))
    code, _, err = run_command(capsys, *_search(f"target={other}", "out=run"))
    assert (code, err.count("\n")) == (2, 1)
