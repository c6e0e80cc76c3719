"""Every config can be composed, and its objects can be built."""

import re
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object
from omegaconf import OmegaConf

from neuroshard import CostModels, Simulator, UserError
from neuroshard.app.commands import COMMANDS
from neuroshard.plumbing.configs import choices
from neuroshard.plumbing.registry import instantiate_config
from neuroshard.plumbing.settings_files import texts_of
from neuroshard.stages.search.methods.heuristics import Greedy
from tests.kit.hydra_configs import compose_config, with_hydra
from tests.kit.messages import check

CONF = Path(__file__).resolve().parents[2] / "conf"
NEEDED = {
    "tables": {"dlrm": ["tables.path=SET"], "user_file": ["tables.path=TABLES"]},
    "constraints": {"file": ["constraints.path=RULES"]},
    "searcher": {"replan": ["searcher.start=plan.json"], "with_other_models": ["searcher.models.model=cpu"]},
    "tasks": {"file": ["tasks.path=TASKS"], "paper": ["tables.num_tables=60"]},
}
GROUPS = {
    "collect": ["tables", "hardware"],
    "pretrain": ["compute_model", "comm_model"],
    "search": ["tables", "tasks", "searcher", "memory", "constraints", "verify", "hardware"],
    "evaluate": ["hardware", "measure"],
    "train-policy": ["learner"],
}
MANDATORY = {
    "evaluate": ["plans=plan.json"],
    "explain": ["plans=plan.json"],
    "export": ["plan=plan.json", "to=sok", "out=tables.py"],
    "report": ["runs=runs"],
}
FEWER = {"tables.num_tables": 60, "tasks.draw.max_tables": 60, "tasks.draw.count": 21}  # drawn when a command is built
OF_ALL = {"experiment", "roofline", "settings", "hydra"}
LISTED = re.compile(r"\S+(?: \| \S+)+(?=:)")
CASES = [(c, g, name) for c, groups in GROUPS.items() for g in groups for name in choices(g)]


pytestmark = pytest.mark.xdist_group("configs")  # what one test composed serves others


def _compose(command, choices, settings=()):
    """Return the config of a command; configs read the settings of Hydra, set to the defaults."""
    HydraConfig.instance().set_config(with_hydra(command, ()))
    config = compose_config(command, choices)
    for setting in settings:
        key, _, value = setting.partition("=")
        OmegaConf.update(config, key, yaml.safe_load(value))
    return config


def _chosen(command, given, files):
    """Return the config of a command with a choice of a group, and with the settings that must be given."""
    needed = [text for group, name in given.items() for text in NEEDED.get(group, {}).get(name, [])]
    needed = [f"{key}={files.get(value, value)}" for key, value in (text.split("=") for text in needed)]
    choices = [f"{group}={name}" for group, name in given.items()]
    return _with_fewer(_compose(command, choices, [*needed, *MANDATORY.get(command, [])]))


def _with_fewer(config):
    for key, few in FEWER.items():
        if OmegaConf.select(config, key):
            OmegaConf.update(config, key, few)
    return config


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    import torch

    from neuroshard.tasks.draw import save_tasks
    from neuroshard.testing import toy_task

    tmp_path = tmp_path_factory.mktemp("files")
    save_tasks(tmp_path / "tasks.json", [toy_task()])
    (tmp_path / "tables.csv").write_text("name,rows,dim,pooling_factor\na,10,4,1\nb,20,8,2\nc,30,16,3\n")
    lengths = torch.ones(3, 4, dtype=torch.int64)
    torch.save((torch.arange(12), torch.arange(13), lengths), tmp_path / "set.pt")
    (tmp_path / "rules.yaml").write_text("rules:\n- {tables: like0_*, max_shards: 1}\n")
    return {
        "RULES": tmp_path / "rules.yaml",
        "SET": tmp_path / "set.pt",
        "TABLES": tmp_path / "tables.csv",
        "TASKS": tmp_path / "tasks.json",
    }


@pytest.mark.parametrize(("command", "group", "name"), CASES)
def test_each_choice_of_each_config_group_builds_a_run(command, group, name, files):
    assert hasattr(instantiate_config(_chosen(command, {group: name}, files).run), "run")


def _listed(node, place):
    """(key, values) of every setting below a node whose text begins with the values that it may have: "a | b: ..."."""
    made = get_object(node["_target_"]) if "_target_" in node else None
    for key, text in (texts_of(made) if made else {}).items():
        if key in node and (found := LISTED.match(text)):
            yield f"{place}{key}", found[0].split(" | ")
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _listed(value, f"{place}{key}.")


def _check_listed(config, key, values):
    def built(value):
        changed = deepcopy(config)  # building resolves what it reads
        OmegaConf.update(changed, key, value)
        return instantiate_config(changed.run)

    for value in values:
        assert hasattr(built(yaml.safe_load(value)), "run")
    with pytest.raises(UserError) as raised:
        built("zzz").run()  # `export` looks its target up when it runs
    message = raised.value.message
    numbers, literal = all(value.isdigit() for value in values), message.limit.startswith("the allowed values are ")
    check(message, "value-outside-limits" if numbers or literal else "unknown-name", names=["'zzz'"])
    if not numbers:
        assert set(re.split("[:,] | are ", message.limit)[1:]) >= {*values} - {"null"}


@pytest.mark.parametrize(("command", "group", "name"), CASES)
def test_listed_values_of_choices_are_accepted_and_no_others(command, group, name, files):
    used = {"verify": "kernels"} if (command, group) == ("search", "hardware") else {}
    config = _chosen(command, {group: name, **used}, files)
    for key, values in _listed(OmegaConf.to_container(config[group], resolve=False), f"{group}."):
        _check_listed(config, key, values)


@pytest.mark.parametrize("command", COMMANDS)
def test_listed_values_of_commands_are_accepted_and_no_others(command, monkeypatch):
    monkeypatch.setattr("neuroshard.targets.target.Plan", None)
    config = _with_fewer(_compose(command, [], MANDATORY.get(command, [])))
    run = OmegaConf.to_container(config.run, resolve=False)
    found = list(_listed({key: run[key] for key in run if not isinstance(run[key], dict)}, ""))
    assert found or command not in ("search", "evaluate", "explain", "export")
    for key, values in found:
        _check_listed(config, key, values)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in GROUPS])
def test_commands_without_config_groups_build_a_run(command):
    assert hasattr(instantiate_config(_compose(command, [], MANDATORY.get(command, [])).run), "run")


@pytest.mark.parametrize("name", choices("experiment"))
def test_every_experiment_config_builds_a_runnable_command(name):
    command = name.split("_")[0]
    assert command in COMMANDS
    assert hasattr(instantiate_config(_with_fewer(_compose(command, [f"experiment={name}"])).run), "run")


def test_config_groups_on_disk_are_all_tested():
    groups = {path.name for path in CONF.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert groups == {group for groups in GROUPS.values() for group in groups} | OF_ALL


def test_config_folder_has_one_file_for_each_command():
    assert {path.stem for path in CONF.glob("*.yaml")} == set(COMMANDS)


def test_slurm_launcher_override_selects_the_partition():
    """Without a cluster, only the composed settings can be tested."""
    overrides = ["experiment=search_beam", "hydra/launcher=submitit_slurm", "hydra.launcher.partition=cpu"]
    launcher = with_hydra("search", tuple(overrides)).hydra.launcher
    assert launcher._target_.endswith("SlurmLauncher")
    assert launcher.partition == "cpu"


def test_default_search_is_in_the_training_range_of_the_installed_models():
    """The task of the default search, in any sensible plan; drawn tasks are drawn from all tables."""
    search = instantiate_config(_compose("search", []).run)
    (task,) = search.tasks
    simulator = Simulator(CostModels.load(search.model))
    assert search.model == "cpu"
    assert simulator.models.ranges.warnings(task) == ()
    outside = simulator.warnings(Greedy("dim").find(task, simulator).plan)
    assert "values-outside-training-range" not in [message.code for message in outside]
    for overrides, tables in (([], 856), (["tables.num_tables=99"], 99), (["tables=dlrm_like_60"], 60)):
        assert _compose("search", ["tasks=paper", *overrides]).tables.num_tables == tables
