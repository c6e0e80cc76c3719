"""The commands, and the text of `neuroshard --help`."""

from neuroshard.plumbing.configs import headline

COMMANDS = (
    *("collect", "pretrain", "search", "evaluate"),
    *("explain", "export", "report", "compile", "train-policy"),
)
LISTINGS = {  # which have no settings
    "models": ("[NAME]", "list the installed cost models; with NAME, print the card of that model"),
    "completion": ("", 'print a bash completion script: eval "$(neuroshard completion)"'),
}
ALL = (*COMMANDS, *LISTINGS)

_USAGE = """\
neuroshard shards the embedding tables of recommendation models across devices.

usage: neuroshard COMMAND [setting=value ...] [-m] [--help]

commands:
{commands}

setting=value changes a setting; `neuroshard COMMAND --help` lists them, with the choices of every group.
-m sweeps: `neuroshard search -m tasks=paper searcher=random,neuroshard` runs one job for each combination.
"""


def purpose_of(command: str) -> str:
    """Return the purpose of a command: the first line of the command's config."""
    return headline(f"{command}.yaml").partition(": ")[2]


def usage() -> str:
    """Write the text of `neuroshard --help`."""
    said = {name: purpose_of(name) for name in COMMANDS} | {name: what for name, (_, what) in LISTINGS.items()}
    return _USAGE.format(commands="\n".join(f"  {name:<12} {what}" for name, what in said.items()))


def listing_usage(command: str) -> str:
    """Write the text of `neuroshard COMMAND --help` for one without settings."""
    takes, what = LISTINGS[command]
    return f"neuroshard {command}: {what}\n\nusage: neuroshard {command} {takes}".rstrip() + "\n"
