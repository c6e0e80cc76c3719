"""The `neuroshard` command: each subcommand except `models` is a Hydra application.
The application builds the object in the `run` node of the subcommand's config, and runs this object.
"""

import logging
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    in_own_part,
    report_of,
)
from neuroshard.plumbing.configs import FOLDER, quoted
from neuroshard.plumbing.errors import UserError, raised_by, unknown_name
from neuroshard.plumbing.messages import Message, number_of

_INTERRUPTED = 130
_HYDRA = ("hydra", "hydra_plugins", "omegaconf")
_ESCAPED = re.compile(r"\\(.)")  # special characters in the settings of a job, as Hydra escapes them
_SWEEP = ("-m", "--multirun", "hydra.mode=MULTIRUN")
_COMPLETION = ("-sc", "--shell-completion")
_AS_JSON = "format=json"
_FORMATS = (_AS_JSON, "format=text")
_FULL_ERROR = "HYDRA_FULL_ERROR"
_ASKED = "NEUROSHARD_FULL_ERROR"  # set for this process and the processes of jobs if the user set HYDRA_FULL_ERROR=1


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line with the given arguments; None means the arguments of the process.

    A user's mistake prints one line on standard error and exits with code 2. A defect prints one line and exits with
    code 70.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows "?" for unknown letters
    try:
        _dispatch(words)
    except KeyboardInterrupt:
        print("neuroshard: interrupted; finished work is kept", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except Ended:
        raise
    except BaseException as error:
        end_without_reader(error)  # as in `neuroshard ... | head`
        if _shows_traces():
            raise
        complain(report_of(error))
        sys.exit(exit_code(error))


def _dispatch(words: list[str]) -> None:
    """Run the command that the first argument names; raise UserError if there is no such command."""
    if not words or words[0] in HELP_FLAGS:
        print(usage(), end="")
    elif words[0] in ("--version", "-V"):
        print(f"neuroshard {__version__}")
    elif words[0] in _COMPLETION:
        _complete(words)
    elif words[0] == "models" and any(text in HELP_FLAGS for text in words[1:]):
        print(f"neuroshard models: {MODELS}\n\nusage: neuroshard models [NAME] [format=json]")
    elif words[0] == "models":
        from neuroshard.app.listing import show_models  # slow to import: not for --help
        from neuroshard.plumbing.progress import plain_console

        names = [text for text in words[1:] if text not in _FORMATS]
        show_models(names, plain_console(), as_json=_AS_JSON in words)
    elif words[0] in COMMANDS:
        _hand_to_hydra(words[0], for_hydra(words[0], words[1:]))
    else:
        raise unknown_name("command", words[0], ALL)


def _complete(words: list[str]) -> None:
    """Print completions for the shell: the names of commands, or Hydra's completions of a command's settings."""
    name, command, *rest = [*os.environ.get("COMP_LINE", "").split(" "), "", ""]
    if words[1:2] != ["query=bash"]:
        command = COMMANDS[0]  # the script that Hydra installs is the same for every command
    elif not any(rest):
        print(" ".join(candidate for candidate in ALL if candidate.startswith(command)))
    os.environ["COMP_LINE"] = " ".join([name, *rest]).rstrip()
    if command in COMMANDS:
        _hand_to_hydra(command, words)


def _shows_traces() -> bool:
    """Return True if the user has set HYDRA_FULL_ERROR=1, which asks for the tracebacks of errors."""
    return _ASKED in os.environ


def _hand_to_hydra(command: str, arguments: list[str]) -> None:
    """Run a command once or, in a sweep, run all jobs of the sweep and print a table of their results at the end.

    Raises:
        UserError: the current directory does not exist.
        Ended: a job of the sweep failed; the errors are printed already.
    """
    _check_current_directory()
    if not any(text in _SWEEP for text in arguments):
        _start(command, arguments)
        return
    from neuroshard.app.sweep import SweepFacts, compared, jobs_in, sweep_folder  # slow to import: not for --help
    from neuroshard.plumbing.output import print_facts, stdout_to_stderr
    from neuroshard.plumbing.progress import plain_console

    as_json = _AS_JSON in arguments
    with sweep_folder(arguments) as folder:
        try:
            with stdout_to_stderr() if as_json else nullcontext():
                _start(command, [*arguments, f"hydra.sweep.dir={quoted(str(folder))}"])
        finally:  # if a launcher fails, the jobs that have ended are shown nevertheless
            if jobs := jobs_in(folder):
                plain_console(stderr=as_json).print(compared(jobs))
    if as_json:
        print_facts(SweepFacts(tuple(jobs)))
    if failed := [job for job in jobs if job.failure is not None]:
        complain(
            Message(
                "sweep-jobs-failed",
                f"{len(failed)} of {number_of(len(jobs), 'job')} of the sweep failed",
                remedy="Correct the errors above, then run the failed jobs again",
            )
        )
        raise Ended(EXIT_BUG if any(job.failure == DEFECT for job in failed) else EXIT_USER_ERROR)


def _check_current_directory() -> None:
    """Raise UserError if the current directory was deleted; paths of plans and results would then have no meaning."""
    try:
        Path.cwd()
    except FileNotFoundError:
        there = " ".join(filter(None, ("the current directory", os.environ.get("PWD"))))
        remedy = "Change to an existing directory with cd, and run the command again"
        raise UserError("current-directory-missing", f"{there} does not exist", remedy=remedy) from None


def _start(command: str, arguments: list[str]) -> None:
    """Run a command as a Hydra application.

    Raises:
        UserError: Hydra refuses a setting.
        Ended: the command failed, and its error is printed already.
    """
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    logging.raiseExceptions = False  # no tracebacks if the reader of --info has closed the pipe
    if os.environ.get(_FULL_ERROR) == "1":
        os.environ.setdefault(_ASKED, "1")
    os.environ[_FULL_ERROR] = "1"  # Hydra raises exceptions instead of printing them
    sys.argv = ["neuroshard", *arguments]
    try:
        hydra.main(version_base="1.3", config_path=str(FOLDER), config_name=command)(_run)()
    except (HydraException, OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
        # Hydra refuses some of its own settings by built-in exceptions, which may also be defects of this package.
        if not isinstance(error, (HydraException, OmegaConfBaseException)) and not raised_by(error, *_HYDRA):
            raise
        from neuroshard.app.refusals import refusal_of

        raise refusal_of(error, command, arguments) from error
    except SystemExit as stop:  # Hydra exits after flags such as --help; `_run` handles the exits of jobs
        if stop.code:
            raise Ended(stop.code) from None
    finally:
        if not _shows_traces():
            del os.environ[_FULL_ERROR]


def _run(config: Any) -> None:
    """Build the object in the `run` node of a config, run this object and print the result.
    Hydra calls this function once for each job.

    An error ends the program with one line. In a sweep, an error prints one line and the sweep continues with its other
    jobs, whose results are not printed. Errors are handled here because Hydra would print tracebacks.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    from neuroshard.app.sweep import Job
    from neuroshard.plumbing.output import JSON, print_facts, stdout_to_stderr
    from neuroshard.plumbing.progress import plain_console
    from neuroshard.plumbing.registry import check_complete, instantiate_config, packages_in

    here = HydraConfig.get()
    written: Any = OmegaConf.to_container(here.overrides.task, resolve=False)
    settings = tuple(_ESCAPED.sub(r"\1", text) for text in written)
    job = Job(here.job.num, settings) if here.mode == RunMode.MULTIRUN else None
    try:
        check_complete(config)
        built = instantiate_config(config.run)
        if job is not None:
            job.claim(Path(here.sweep.dir), config.get("out"))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from now on Ctrl-C raises, so work can be saved
        as_json = getattr(built, "format", None) == JSON
        with stdout_to_stderr() if as_json else nullcontext():
            result: Any = built.run()
        if result is not None and job is None:
            result.show(plain_console(stderr=as_json))
            if as_json:
                print_facts(result.facts)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        end_without_reader(error)
        if _shows_traces():
            raise
        error = in_own_part(error, packages_in(config))
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
