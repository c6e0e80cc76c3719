"""The `neuroshard` command: each subcommand is one Hydra config, whose `run` node says what to build and run."""

import os
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console

from neuroshard.completion import bash_script
from neuroshard.errors import UserError, unknown_name

COMMANDS = {
    "collect": "measure table combinations and exchanges on real hardware",
    "pretrain": "fit the cost models to measurements",
    "search": "find sharding plans for tasks",
    "evaluate": "run plans on real hardware and compare with the prediction",
    "explain": "say why a plan costs what it does, or how two plans differ: explain PLAN.json [OTHER.json]",
    "report": "gather runs into one page with tables and figures: report RUN_DIR ...",
    "train-policy": "train the policy of a reinforcement-learning searcher",
}
_ALL = (*COMMANDS, "models", "completion")
_POSITIONAL = {"report": "runs", "explain": "plans"}  # what paths without a key are
_EXIT_USER_ERROR = 2
_SWEEP_FLAGS = ("-m", "--multirun")

_USAGE = """\
neuroshard shards the embedding tables of recommendation models across devices.

usage: neuroshard COMMAND [key=value ...] [-m] [--help]

commands:
{commands}
  models       list the installed cost models; with a name, print its card
  completion   print a bash completion script: eval "$(neuroshard completion)"

key=value overrides a setting; `neuroshard COMMAND --help` lists them, with the choices of every group.
-m sweeps: `neuroshard search -m tasks=paper searcher=random,neuroshard` runs one job for each combination.
"""


class Result(Protocol):
    """What a command's run gives."""

    def show(self, console: Console) -> None:
        """Print it for people."""
        ...


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _dispatch(given)
    except (UserError, OSError) as error:
        _exit_with(error)
    except KeyboardInterrupt:
        print("neuroshard: interrupted; what was finished is kept", file=sys.stderr)
        sys.exit(130)


def _exit_with(error: UserError | OSError) -> None:
    """One line on standard error; a full disk, or a directory that can't be written, is the user's to mend too."""
    hint = "" if isinstance(error, UserError) else "; what was finished is kept, start it again when this is mended"
    print(f"neuroshard: error: {' '.join(str(error).split())}{hint}", file=sys.stderr)
    sys.exit(_EXIT_USER_ERROR)


def usage() -> str:
    """The text of `neuroshard --help`."""
    return _USAGE.format(commands="\n".join(f"  {name:<12} {what}" for name, what in COMMANDS.items()))


def _dispatch(given: list[str]) -> None:
    if not given or given[0] in ("-h", "--help"):
        print(usage(), end="")
    elif given[0] == "completion":
        print(bash_script(_ALL), end="")
    elif given[0] == "models":
        from neuroshard.listing import show_models  # slow to import: not for --help

        show_models(given[1:], Console())
    elif given[0] in COMMANDS:
        _run_command(given[0], _with_paths(given[0], given[1:]))
    else:
        raise unknown_name("command", given[0], _ALL)


def _with_paths(command: str, arguments: list[str]) -> list[str]:
    """Arguments in which bare paths, where a command takes some, have become an override."""
    if command not in _POSITIONAL:
        return arguments
    paths = [argument for argument in arguments if "=" not in argument and not argument.startswith("-")]
    others = [argument for argument in arguments if argument not in paths]
    quoted = ",".join("'" + path.replace("'", "\\'") + "'" for path in paths)
    return [*others, f"{_POSITIONAL[command]}=[{quoted}]"] if paths else others


def _run_command(command: str, arguments: list[str]) -> None:
    import hydra  # slow to import: not for --help

    from neuroshard.overrides import check_overrides

    if "COMP_LINE" not in os.environ:
        check_overrides(command, arguments)
    # Hydra's parser wants flags before the overrides; people write them anywhere.
    sweep = [argument for argument in arguments if argument in _SWEEP_FLAGS]
    sys.argv = ["neuroshard", *sweep, *(argument for argument in arguments if argument not in sweep)]
    hydra.main(version_base="1.3", config_path="pkg://neuroshard.conf", config_name=command)(_run)()


def _run(config: Any) -> None:
    """Build what the config describes, run it, print its result; Hydra calls it, once for each job."""
    from neuroshard.registry import instantiate_config

    try:
        result: Result | None = instantiate_config(config.run).run()
    except (UserError, OSError) as error:
        _exit_with(error)  # inside Hydra's job an exception would become a traceback
    if result is not None:
        result.show(Console())
