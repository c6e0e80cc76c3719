"""The `neuroshard` command: each subcommand is a Hydra application, whose `run` node says what to build and run."""

import logging
import os
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuroshard import __version__
from neuroshard.app.arguments import for_hydra
from neuroshard.app.commands import ALL, COMMANDS, HELP_FLAGS, MODELS, usage
from neuroshard.app.failures import (
    DEFECT,
    EXIT_BUG,
    EXIT_USER_ERROR,
    Ended,
    complain,
    end_without_reader,
    exit_code,
    failure_of,
    report_of,
)
from neuroshard.plumbing.configs import FOLDER, quoted
from neuroshard.plumbing.errors import raised_by, unknown_name
from neuroshard.plumbing.messages import Message, number_of

if TYPE_CHECKING:
    from neuroshard.plumbing.progress import Result

_INTERRUPTED = 130
_HYDRA = ("hydra", "hydra_plugins", "omegaconf")
_ESCAPED = re.compile(r"\\(.)")  # what Hydra writes for special characters of a job's settings
_SWEEP = ("-m", "--multirun", "hydra.mode=MULTIRUN")
_COMPLETION = ("-sc", "--shell-completion")
_FULL_ERROR = "HYDRA_FULL_ERROR"
_ASKED = "NEUROSHARD_FULL_ERROR"  # says to the processes of jobs that the user set Hydra's variable


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a user's mistake is one line on standard error and code 2, a defect one line and 70."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that isn't UTF-8 shows what it can
    try:
        _dispatch(words)
    except KeyboardInterrupt:
        print("neuroshard: interrupted; finished work is kept", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except Ended:
        raise
    except BaseException as error:
        end_without_reader(error)  # `neuroshard ... | head` has seen enough
        if _shows_traces():
            raise
        complain(report_of(error))
        sys.exit(exit_code(error))


def _dispatch(words: list[str]) -> None:
    if not words or words[0] in HELP_FLAGS:
        print(usage(), end="")
    elif words[0] in ("--version", "-V"):
        print(f"neuroshard {__version__}")
    elif words[0] in _COMPLETION:
        _complete(words)
    elif words[0] == "models" and any(text in HELP_FLAGS for text in words[1:]):
        print(f"neuroshard models: {MODELS}\n\nusage: neuroshard models [NAME]")
    elif words[0] == "models":
        from neuroshard.app.listing import show_models  # slow to import: not for --help
        from neuroshard.plumbing.progress import plain_console

        show_models(words[1:], plain_console())
    elif words[0] in COMMANDS:
        _hand_to_hydra(words[0], for_hydra(words[0], words[1:]))
    else:
        raise unknown_name("command", words[0], ALL)


def _complete(words: list[str]) -> None:
    """Answer a shell: the commands, or Hydra's completion of a command's settings."""
    name, command, *rest = [*os.environ.get("COMP_LINE", "").split(" "), "", ""]
    if words[1:2] != ["query=bash"]:
        command = COMMANDS[0]  # the script that Hydra installs is the same for every command
    elif not any(rest):
        print(" ".join(one for one in ALL if one.startswith(command)))
    os.environ["COMP_LINE"] = " ".join([name, *rest]).rstrip()
    if command in COMMANDS:
        _hand_to_hydra(command, words)


def _shows_traces() -> bool:
    """Return True if the user asks for the traces of errors, by Hydra's variable."""
    return _ASKED in os.environ


def _hand_to_hydra(command: str, arguments: list[str]) -> None:
    if not any(text in _SWEEP for text in arguments):
        _start(command, arguments)
        return
    from neuroshard.app.sweep import compared, jobs_in, sweep_folder  # slow to import: not for --help
    from neuroshard.plumbing.progress import plain_console

    with sweep_folder(arguments) as folder:
        _start(command, [*arguments, f"hydra.sweep.dir={quoted(str(folder))}"])
        jobs = jobs_in(folder)
    if jobs:
        plain_console().print(compared(jobs))
    if failed := [job for job in jobs if job.failure is not None]:
        complain(
            Message(
                "sweep-jobs-failed",
                f"{len(failed)} of {number_of(len(jobs), 'job')} of the sweep failed",
                remedy="Correct the errors above, then run the failed jobs again",
            )
        )
        raise Ended(EXIT_BUG if any(job.failure == DEFECT for job in failed) else EXIT_USER_ERROR)


def _start(command: str, arguments: list[str]) -> None:
    """Run a command as a Hydra application; what Hydra refuses becomes a UserError."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    logging.raiseExceptions = False  # the reader of --info may have seen enough
    if os.environ.get(_FULL_ERROR) == "1":
        os.environ.setdefault(_ASKED, "1")
    os.environ[_FULL_ERROR] = "1"  # exceptions come here instead of being printed there
    sys.argv = ["neuroshard", *arguments]
    try:
        hydra.main(version_base="1.3", config_path=str(FOLDER), config_name=command)(_run)()
    except (HydraException, OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
        # Hydra refuses some of its own settings by exceptions of Python's, which may also be defects of ours.
        if not isinstance(error, (HydraException, OmegaConfBaseException)) and not raised_by(error, *_HYDRA):
            raise
        from neuroshard.app.refusals import refusal_of

        raise refusal_of(error, command, arguments) from error
    except SystemExit as stop:  # Hydra's, after --help and the like; a job's own never come here
        if stop.code:
            raise Ended(stop.code) from None
    finally:
        if not _shows_traces():
            del os.environ[_FULL_ERROR]


def _run(config: Any) -> None:
    """Build what the config describes, run it, print its result; Hydra calls it, once for each job.

    What fails ends the program with one line; a sweep goes on with its other jobs, which print nothing else. (Hydra
    would print what is raised.)
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    from neuroshard.app.sweep import Job
    from neuroshard.plumbing.progress import plain_console
    from neuroshard.plumbing.registry import check_complete, instantiate_config

    here = HydraConfig.get()
    written: Any = OmegaConf.to_container(here.overrides.task, resolve=False)
    settings = tuple(_ESCAPED.sub(r"\1", text) for text in written)
    job = Job(here.job.num, settings) if here.mode == RunMode.MULTIRUN else None
    try:
        check_complete(config)
        built = instantiate_config(config.run)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on there is something to keep
        result: Result | None = built.run()
        if result is not None and job is None:
            result.show(plain_console())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        end_without_reader(error)
        if _shows_traces():
            raise
        if job is None:
            complain(report_of(error))
            raise Ended(exit_code(error)) from None
        message = report_of(error)
        place = f"job {job.number} ({','.join(job.settings)})"
        complain(replace(message, where=f"{place}: {message.where}" if message.where else place))
        job = replace(job, failure=failure_of(error))
    else:
        job = job and replace(job, outcome=getattr(result, "outcome", None))
    if job is not None:
        job.keep(Path(here.sweep.dir))
