"""The commands that there are, and what `neuroshard --help` says of them."""

COMMANDS = {
    "collect": "measure table combinations and exchanges on real hardware",
    "pretrain": "fit the cost models to measurements",
    "calibrate": "correct a datasheet by traces of training steps: calibrate TRACE.json ... model=roofline:h100",
    "refine": "fit cost models further to what their own plans ask of this machine",
    "search": "find sharding plans for tasks",
    "evaluate": "run plans on real hardware and compare with the prediction: evaluate PLAN.json RUN_DIR ...",
    "explain": "say why a plan costs what it does, or how two plans differ: explain PLAN.json [OTHER.json]",
    "export": "write a plan for SOK, HugeCTR, TorchRec or as plain JSON: export PLAN.json to=sok out=TABLES.py",
    "report": "gather runs into one page with tables and figures: report RUN_DIR ...",
    "compile": "compile the search's inner loops now, so that the first search needn't",
    "train-policy": "train the policy of a reinforcement-learning searcher",
}
LISTINGS = {  # which have no settings
    "models": ("[NAME]", "list the installed cost models; with a name, print its card"),
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


def usage() -> str:
    """The text of `neuroshard --help`."""
    said = COMMANDS | {name: what for name, (_, what) in LISTINGS.items()}
    return _USAGE.format(commands="\n".join(f"  {name:<12} {what}" for name, what in said.items()))


def listing_usage(command: str) -> str:
    """The text of `neuroshard COMMAND --help` for one without settings."""
    takes, what = LISTINGS[command]
    return f"neuroshard {command}: {what}\n\nusage: neuroshard {command} {takes}".rstrip() + "\n"
