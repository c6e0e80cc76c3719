"""What isn't there yet is said with the command that makes it, before any work."""

import re
import shlex
from pathlib import Path

import pytest

from neuroshard.app.arguments import as_overrides
from neuroshard.app.makers import check_made
from neuroshard.plumbing.configs import choices
from neuroshard.plumbing.errors import UserError
from tests.kit.messages import refused


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _named_by(command, *texts, sweeping=False):
    """The command line, or setting, that an error names."""
    with pytest.raises(UserError) as raised:
        _check(command, *texts, sweeping=sweeping)
    return re.split(r"it is made by: |; add |; run ", str(raised.value))[1]


def _check(command, *texts, sweeping=False):
    check_made(command, as_overrides(command, texts), sweeping)


@pytest.mark.parametrize(
    ("command", "texts", "missing", "maker"),
    [
        ("pretrain", [], "data=data/cpu", "neuroshard collect hardware=cpu"),
        ("pretrain", ["data=data/cuda"], "data=data/cuda", "neuroshard collect hardware=cuda"),
        ("pretrain", ["experiment=pretrain_adapt"], "data=data/adapt", "neuroshard collect experiment=collect_adapt"),
        ("pretrain", ["init=models/adapted", "data=x"], "init=models/adapted", "pretrain experiment=pretrain_adapt"),
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
    with refused("input-not-made"):
        _check(command, *texts)


def test_every_job_of_a_sweep_is_looked_at_before_the_first():
    made = "neuroshard pretrain experiment=pretrain_single_tables"
    with refused("input-not-made"):
        _check("search", "experiment=search_ablation", sweeping=True)
    _check("search", "experiment=search_ablation", "searcher=random,without_grid", sweeping=True)
    with refused("input-not-made"):
        _check("search", "experiment=search_samples", "samples=400", sweeping=True)
    with refused("input-not-made"):
        _check("search", "model=cpu,models/adapted", sweeping=True)


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
        with refused("input-in-repository"):
            _check(name.split("_")[0], f"experiment={name}")
        return
    with refused("input-not-made"):
        _check(name.split("_")[0], f"experiment={name}")


def _arguments(line):
    return shlex.split(line)[2:]


@pytest.mark.parametrize("experiment", ["search_ablation", "search_samples"])
def test_outside_a_checkout_the_command_that_is_named_runs(experiment):
    """What it reads is where the package comes from."""
    line = _named_by("search", f"experiment={experiment}", sweeping=True)
    assert line.startswith("neuroshard pretrain ")
    _check("pretrain", *(text for text in _arguments(line) if text != "-m"), sweeping="-m" in _arguments(line))
    read = dict(text.partition("=")[::2] for text in _arguments(line))
    assert Path(read["data"], "manifest.json").is_file()


@pytest.mark.parametrize("name", ["pretrain_single_tables", "pretrain_samples", "pretrain_cpu", "pretrain_h100"])
def test_outside_a_checkout_measurements_are_named_where_they_are(name):
    (added,) = shlex.split(_named_by("pretrain", f"experiment={name}"))
    _check("pretrain", f"experiment={name}", added)
    assert all(Path(one).is_dir() for one in added.removeprefix("data=").strip("[]").split(","))


@pytest.mark.parametrize(("name", "made"), [("pretrain_single_tables", "data/cpu"), ("pretrain_h100", "data/cuda")])
def test_an_installed_package_has_no_measurements_and_names_the_command_that_makes_some(name, made, monkeypatch):
    monkeypatch.setattr("neuroshard.app.makers.repository", Path.cwd)
    first, then = _named_by("pretrain", f"experiment={name}").split(", then add ")
    _check("collect", *_arguments(first))
    Path(made).mkdir(parents=True)
    _check("pretrain", f"experiment={name}", then)


def test_a_chain_of_commands_is_named_from_its_first(monkeypatch):
    monkeypatch.setattr("neuroshard.app.makers.repository", Path.cwd)
    first, then = _named_by("search", "experiment=search_ablation", sweeping=True).split(", then ")
    assert first == "neuroshard collect experiment=collect_cpu"
    Path("data/cpu").mkdir(parents=True)
    assert _named_by("search", "experiment=search_ablation", sweeping=True) == then
    _check("pretrain", *_arguments(then))
