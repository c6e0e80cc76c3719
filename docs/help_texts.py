"""The texts of `neuroshard COMMAND --help`: usage, and the settings that people need first."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from neuroshard.app.commands import purpose_of
from neuroshard.plumbing.configs import choices
from neuroshard.plumbing.settings_files import texts_of

_WIDTH = 120
_KEY_WIDTH = 36
CONF = Path(__file__).resolve().parents[1] / "conf"
# The settings that people need first, ten at most: `neuroshard COMMAND --help` shows them.
FIRST = {
    "collect": ("tables", "hardware", "out", "batch_sizes", "num_compute_samples", "num_comm_samples",
                "num_local_samples", "compute.max_tables", "comm.num_devices", "experiment"),
    "pretrain": ("data", "out", "init", "compute_model", "comm_model", "calls", "exchanges", "host_tiers",
                 "max_samples", "experiment"),
    "search": ("tables", "batch_size", "topology.num_devices", "topology.memory_bytes", "model", "searcher",
               "constraints", "target", "verify", "out"),
    "evaluate": ("plans", "hardware", "measure", "model", "max_tasks", "out", "experiment"),
    "explain": ("plans", "model", "out", "framework", "dense_ms"),
    "export": ("plan", "to", "out", "module"),
    "report": ("runs", "out"),
    "compile": (),
    "train-policy": ("searcher", "learner", "tables", "model", "topology.num_devices", "topology.memory_bytes",
                     "tasks.draw.count", "learner.rounds", "out", "experiment"),
}  # fmt: skip
_COMMENT = re.compile(r"^ *(?P<key>[\w-]+):.*?\s#\s(?P<text>.*)$")


def help_text(command: str) -> str:
    """Return the text of `neuroshard COMMAND --help`, with the settings that people need first."""
    usage_line = f"usage: neuroshard {command} [setting=value ...] [-m]"
    lines = [f"neuroshard {command}: {purpose_of(command)}", "", usage_line]
    if FIRST[command]:
        lines += ["", "settings that people change first"]
        lines += [line for key in FIRST[command] for line in _setting(command, key)]
        page = f"docs/reference/commands/{command}.md"
        lines += ["", f"`neuroshard {command} --cfg job` prints every setting; {page} explains them."]
        lines += ["`-m` sweeps: it runs a job for each combination of values, such as seed=0,1."]
    return "\n".join(lines) + "\n"


def _setting(command: str, key: str) -> Iterator[str]:
    """Yield the lines for a setting: its default and what it means, or the other choices of a group."""
    config, chosen = _composed(command)
    if key in (*groups_of(command), "experiment"):
        value = chosen.get(key) or "NAME"
        others = ", ".join(name for name in choices(key) if name != value)
        of_command = ", ".join(name for name in choices(key) if name.split("_")[0] == command)
        text = f"or {others}" if chosen.get(key) else f"none by default; or {of_command}"
    else:
        value, text = OmegaConf.to_container(config, resolve=False), _said(command, key)
        for name in key.split("."):
            value = value[name]
    line = f"  {key}={'null' if value is None else str(value).lower() if isinstance(value, bool) else value}"
    first = f"{line:<{_KEY_WIDTH}}" if len(line) < _KEY_WIDTH else " " * _KEY_WIDTH
    yield from [line] * (len(line) >= _KEY_WIDTH)
    yield from textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=" " * _KEY_WIDTH)


def groups_of(command: str) -> list[str]:
    """List the groups that a command chooses from."""
    defaults = yaml.safe_load((CONF / f"{command}.yaml").read_text(encoding="utf-8"))["defaults"]
    return [group for entry in defaults if isinstance(entry, dict) for group in entry if group != "experiment"]


def _said(command: str, key: str) -> str:
    """Return what a setting means, from the comment in the command's config or from the class that has the setting."""
    *path, name = key.split(".")
    for line in (CONF / f"{command}.yaml").read_text(encoding="utf-8").splitlines():
        if (found := _COMMENT.match(line)) and found["key"] == name:
            return found["text"]
    config, _ = _composed(command)
    for group in path or ["run"]:
        config = config[group]
    return texts_of(get_object(config["_target_"]))[name]


@cache
def _composed(command: str) -> tuple[DictConfig, Mapping[str, str | None]]:
    """Compose a command with its defaults; return its config, and the choice in each group."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose(command, return_hydra_config=True)
    return config, config.hydra.runtime.choices
