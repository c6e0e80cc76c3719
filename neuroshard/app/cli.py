"""The `neuroshard` command: each subcommand is one Hydra config, whose `run` node says what to build and run."""

import os
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuroshard import __version__
from neuroshard.app.arguments import HELP_FLAGS, as_overrides, quoted, split_flags
from neuroshard.app.commands import ALL, COMMANDS, LISTINGS, listing_usage, purpose_of, usage
from neuroshard.app.completion import bash_script, completions
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
from neuroshard.app.overrides import check_overrides, check_settings
from neuroshard.app.settings import command_help
from neuroshard.plumbing.errors import UserError, raised_by, unknown_name
from neuroshard.plumbing.messages import Message, number_of

if TYPE_CHECKING:
    from neuroshard.plumbing.progress import Result

_INTERRUPTED = 130
_HYDRA = ("hydra", "hydra_plugins", "omegaconf")
_ESCAPED = re.compile(r"\\(.)")  # what Hydra writes for special characters of a job's settings
# Hydra writes nothing of its own where people work: commands say where their files go.
_QUIET = ("hydra.output_subdir=null", "hydra.run.dir=.", "hydra/job_logging=none", "hydra/hydra_logging=none")


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
        complain(report_of(error))
        sys.exit(exit_code(error))


def _dispatch(words: list[str]) -> None:
    if not words or words[0] in HELP_FLAGS:
        print(usage(), end="")
    elif words[0] in ("--version", "-V"):
        print(f"neuroshard {__version__}")
    elif words[0] in LISTINGS and any(text in HELP_FLAGS for text in words[1:]):
        print(listing_usage(words[0]), end="")
    elif words[0] == "completion":
        print(bash_script(ALL), end="")
    elif words[0] == "complete":  # what the completion script asks: WORD COMMAND [WORDS BEFORE ...]
        print("\n".join(completions(words[1], words[2], words[3:])))
    elif words[0] == "models":
        from neuroshard.app.listing import show_models  # slow to import: not for --help
        from neuroshard.plumbing.progress import plain_console

        show_models(words[1:], plain_console())
    elif words[0] in COMMANDS:
        _run_command(words[0], words[1:])
    else:
        raise unknown_name("command", words[0], ALL)


def _run_command(command: str, arguments: list[str]) -> None:
    flags, texts = split_flags(command, arguments)
    overrides = as_overrides(command, texts)
    if any(flag in HELP_FLAGS for flag in flags):
        check_settings(command, overrides)
        print(command_help(command, purpose_of(command), overrides), end="")
        return
    from neuroshard.app.makers import check_built, check_made  # slow to import: not for --help

    check_overrides(command, overrides, sweeping=bool(flags))
    check_made(command, overrides, sweeping=bool(flags))
    if flags:
        check_built(command, overrides)
    _hand_to_hydra(command, [*flags[:1], *(override.text for override in overrides)])


def _hand_to_hydra(command: str, arguments: list[str]) -> None:
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from neuroshard.app.sweep import compared, jobs_in, sweep_folder
    from neuroshard.plumbing.progress import plain_console
    from neuroshard.plumbing.registry import store_configs

    store_configs(command)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come here instead of being printed there
    with sweep_folder(arguments) as folder:
        sys.argv = ["neuroshard", *arguments, *_QUIET, f"hydra.sweep.dir={quoted(str(folder))}"]
        try:
            hydra.main(version_base="1.3", config_name=command)(_run)()
        except (HydraException, OmegaConfBaseException) as error:
            raise _refused(error) from error
        except (ValueError, TypeError, AttributeError) as error:
            if not raised_by(error, *_HYDRA):  # Hydra refuses some of its own settings by exceptions of Python's
                raise
            raise _refused(error) from error
        jobs = jobs_in(folder)
    if table := compared(jobs):
        plain_console().print(table)
    if failed := [job for job in jobs if job.failure is not None]:
        complain(
            Message(
                "sweep-jobs-failed",
                f"{len(failed)} of {number_of(len(jobs), 'job')} of the sweep failed",
                remedy="Correct the errors above, then run the failed jobs again",
            )
        )
        raise Ended(EXIT_BUG if any(job.failure == DEFECT for job in failed) else EXIT_USER_ERROR)


def _refused(error: Exception) -> UserError:
    """Make the UserError of an error by which Hydra or OmegaConf refuses the settings."""
    remedy = "Correct the setting that the message of Hydra names"
    return UserError("hydra-refused", "Hydra refuses the settings", limit=str(error), remedy=remedy)


def _run(config: Any) -> None:
    """Build what the config describes, run it, print its result; Hydra calls it, once for each job.

    What fails ends the program with one line; a sweep goes on with its other jobs. (Hydra would print what is raised.)
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    from neuroshard.app.sweep import Job
    from neuroshard.plumbing.progress import plain_console
    from neuroshard.plumbing.registry import instantiate_config

    here = HydraConfig.get()
    written: Any = OmegaConf.to_container(here.overrides.task, resolve=False)
    settings = tuple(_ESCAPED.sub(r"\1", text) for text in written)
    job = Job(here.job.num, settings) if here.mode == RunMode.MULTIRUN else None
    try:
        built = instantiate_config(config.run)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on there is something to keep
        result: Result | None = built.run()
        if result is not None:
            result.show(plain_console())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        end_without_reader(error)
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
