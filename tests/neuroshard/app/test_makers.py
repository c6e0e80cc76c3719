"""What isn't there yet is said with the command that makes it, before any work."""

import shlex
from pathlib import Path

import pytest

from neuroshard.app.arguments import as_overrides
from neuroshard.app.makers import check_made
from neuroshard.plumbing.configs import choices
from tests.kit.messages import refused


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _check(command, *texts, sweeping=False):
    check_made(command, as_overrides(command, texts), sweeping)


def _remedy(code, command, *texts, sweeping=False, names=()):
    """Return the command lines that the remedy of an error names, and the words behind them."""
    with refused(code, names=names) as raised:
        _check(command, *texts, sweeping=sweeping)
    _, *parts = raised.value.message.remedy.split("`")
    return parts[::2], shlex.split(raised.value.message.remedy.rpartition("`")[2])


@pytest.mark.parametrize(
    ("command", "texts", "missing", "maker"),
    [
        ("pretrain", [], "data=data/cpu", "neuroshard collect hardware=cpu"),
        ("pretrain", ["data=data/cuda"], "data=data/cuda", "neuroshard collect hardware=cuda"),
        ("pretrain", ["experiment=pretrain_adapt"], "data=data/adapt", "neuroshard collect experiment=collect_adapt"),
        ("pretrain", ["init=models/adapted", "data=x"], "init=models/adapted",
         "neuroshard pretrain experiment=pretrain_adapt"),
        ("search", ["searcher=dreamshard", "searcher.policy=policies/dreamshard"], "policy=policies/dreamshard",
         "neuroshard train-policy searcher=dreamshard"),
        ("search", ["experiment=search_demo"], "model=demo/models", "neuroshard pretrain experiment=pretrain_demo"),
        ("evaluate", ["experiment=evaluate_demo"], "plans=demo/search/random",
         "neuroshard search experiment=search_demo searcher=random"),
        ("evaluate", ["runs/main/4x128/random/plans/task-0000.json"], "plans=runs/main/4x128/random/plans/",
         "neuroshard search -m experiment=search_main"),
        ("report", ["runs=runs/sensitivity/beam_width=1"], "runs=runs/sensitivity/beam_width=1",
         "neuroshard search -m experiment=search_beam"),
        ("report", ["runs=runs/sensitivity/max_splits=1"], "runs=runs/sensitivity/max_splits=1",
         "neuroshard search -m experiment=search_splits"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_with_its_maker(command, texts, missing, maker):
    lines, _ = _remedy("input-not-made", command, *texts, names=[missing])
    assert lines == [maker]


def test_every_job_of_a_sweep_is_looked_at_before_the_first():
    code = "input-not-made"
    made = ["models/single_tables", "neuroshard pretrain experiment=pretrain_single_tables "]
    _remedy(code, "search", "experiment=search_ablation", sweeping=True, names=made)
    _check("search", "experiment=search_ablation", "searcher=random,without_grid", sweeping=True)
    made = ["models/samples-400", "neuroshard pretrain -m experiment=pretrain_samples "]
    _remedy(code, "search", "experiment=search_samples", "samples=400", sweeping=True, names=made)
    _remedy(code, "search", "model=cpu,models/adapted", sweeping=True, names=["model=models/adapted"])


def test_what_is_there_and_what_no_command_makes_is_left_to_the_command():
    Path("data/cpu").mkdir(parents=True)
    Path("models/single_tables").mkdir(parents=True)
    _check("pretrain")
    _check("search", "experiment=search_ablation", sweeping=True)
    _check("search", "model=models/mine", "tables=data/cuda/tables.csv", "out=models/shared")
    _check("pretrain", "data=data/mine")


@pytest.mark.parametrize("name", [name for name in choices("experiment") if name.startswith(("pretrain", "evaluate"))])
def test_experiments_that_need_earlier_runs_name_them(name):
    if "benchmarks/data" in Path(__file__).parents[3].joinpath(f"conf/experiment/{name}.yaml").read_text():
        with refused("input-in-repository", names=["benchmarks/data/"]):
            _check(name.split("_")[0], f"experiment={name}")
        return
    (line,), _ = _remedy("input-not-made", name.split("_")[0], f"experiment={name}")
    assert line.startswith("neuroshard ")


def _arguments(line):
    return shlex.split(line)[2:]


@pytest.mark.parametrize("experiment", ["search_ablation", "search_samples"])
def test_outside_a_checkout_the_command_that_is_named_runs(experiment):
    """What it reads is where the package comes from."""
    (line,), _ = _remedy("input-not-made", "search", f"experiment={experiment}", sweeping=True)
    assert line.startswith("neuroshard pretrain ")
    _check("pretrain", *(text for text in _arguments(line) if text != "-m"), sweeping="-m" in _arguments(line))
    read = dict(text.partition("=")[::2] for text in _arguments(line))
    assert Path(read["data"], "manifest.json").is_file()


@pytest.mark.parametrize("name", ["pretrain_single_tables", "pretrain_samples", "pretrain_cpu", "pretrain_h100"])
def test_outside_a_checkout_measurements_are_named_where_they_are(name):
    lines, (*_, added) = _remedy("input-in-repository", "pretrain", f"experiment={name}")
    assert lines == []
    _check("pretrain", f"experiment={name}", added)
    assert all(Path(one).is_dir() for one in added.removeprefix("data=").strip("[]").split(","))


@pytest.mark.parametrize(("name", "made"), [("pretrain_single_tables", "data/cpu"), ("pretrain_h100", "data/cuda")])
def test_an_installed_package_has_no_measurements_and_names_the_command_that_makes_some(name, made, monkeypatch):
    monkeypatch.setattr("neuroshard.app.makers.repository", Path.cwd)
    (line,), (*_, added) = _remedy("input-in-repository", "pretrain", f"experiment={name}")
    _check("collect", *_arguments(line))
    Path(made).mkdir(parents=True)
    _check("pretrain", f"experiment={name}", added)


def test_a_chain_of_commands_is_named_from_its_first(monkeypatch):
    monkeypatch.setattr("neuroshard.app.makers.repository", Path.cwd)
    (first, then), _ = _remedy("input-not-made", "search", "experiment=search_ablation", sweeping=True)
    assert first == "neuroshard collect experiment=collect_cpu"
    Path("data/cpu").mkdir(parents=True)
    lines, _ = _remedy("input-not-made", "search", "experiment=search_ablation", sweeping=True)
    assert lines == [then]
    _check("pretrain", *_arguments(then))
