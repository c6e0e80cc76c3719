"""The commands, and the text of `neuroshard --help`."""

from neuroshard.plumbing.configs import headline

COMMANDS = (
    *("collect", "pretrain", "search", "evaluate"),
    *("explain", "export", "report", "compile", "train-policy"),
)
HELP_FLAGS = ("-h", "--help")
MODELS = "list the installed cost models; with NAME, print the card of that model; format=json prints JSON"
ALL = (*COMMANDS, "models")

_USAGE = """\
neuroshard shards the embedding tables of recommendation models across devices.

usage: neuroshard COMMAND [setting=value ...] [-m] [--help]

commands:
{commands}

setting=value changes a setting; `neuroshard COMMAND --help` lists the settings that people change first.
-m sweeps: `neuroshard search -m tasks=paper searcher=random,neuroshard` runs one job for each combination.
Each command is a Hydra application: --cfg job, --info, --config-dir and launchers work as in Hydra's documentation.
Completion in bash: eval "$(neuroshard -sc install=bash)"
"""


def purpose_of(command: str) -> str:
    """Return the purpose of a command: the first line of the command's config."""
    return headline(f"{command}.yaml").partition(": ")[2]


def usage() -> str:
    """Return the text of `neuroshard --help`."""
    purposes = {name: purpose_of(name) for name in COMMANDS} | {"models": MODELS}
    return _USAGE.format(commands="\n".join(f"  {name:<12} {purpose}" for name, purpose in purposes.items()))
