"""Plans that outlive a job: a file with a plan and what it was made for."""

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrec.distributed.types import ShardingPlan

from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import read_json, write_json
from neuroshard.plumbing.schema import of_format, parse
from neuroshard.torchrec.sharding_file import ReadModules, modules_json, sharding_plan_of

_KIND = "neuroshard-kept-plan-"
_FORMAT = f"{_KIND}2"
_BEGINNING = re.compile(rf'\s*\{{\s*"format"\s*:\s*"{_KIND}'.encode())  # of every file that was kept, damaged or not
_READ_BYTES = 256  # of a file, to know by its beginning what it is: it may be a checkpoint of any size
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeptPlan:
    """A plan for a whole model.

    Attributes:
        made_for: digests of what it was made for, by what they are of.
        plan: of the tables that are planned here; None where there are none.
        sharding_plan: of the whole model.
    """

    made_for: Mapping[str, str]
    plan: Plan | None
    sharding_plan: ShardingPlan

    def save(self, path: Path) -> None:
        """Write it as JSON, with a digest over all that it says.

        Raises:
            UserError: there is a file that isn't a kept plan.
        """
        check_replaceable(path)
        content = {
            "made_for": dict(self.made_for),
            "plan": None if self.plan is None else self.plan.to_json(),
            "modules": modules_json(self.sharding_plan),
        }
        write_json(path, {"format": _FORMAT, "digest": _digest(content)} | content)

    def keep_in(self, path: Path) -> None:
        """Write it where that can be done; a job that runs needs no file, so a warning says where it can't."""
        try:
            self.save(path)
        except (OSError, UserError) as error:
            _log.warning("the plan can't be kept in %s: %s", path, error)

    @classmethod
    def load(cls, path: Path) -> "KeptPlan":
        """What `save` wrote.

        Raises:
            UserError: the file is missing or malformed, or says something else than what was written.
        """
        where = f"kept plan {path}"
        content = of_format(read_json(path, "kept plan"), _FORMAT, where)
        if content.pop("digest", None) != _digest(content):
            raise UserError(f"{where} was changed or damaged after it was written: its digest doesn't fit")
        read = parse(content, _KeptFile, where)
        plan = None if read.plan is None else Plan.from_json(read.plan, where)
        return cls(read.made_for, plan, sharding_plan_of(read.modules, where))

    def differences(self, made_for: Mapping[str, str]) -> tuple[str, ...]:
        """What it was made for otherwise."""
        names = dict.fromkeys([*self.made_for, *made_for])
        return tuple(name for name in names if self.made_for.get(name) != made_for.get(name))


@dataclass(frozen=True)
class _KeptFile:
    made_for: dict[str, str]
    plan: dict[str, Any] | None
    modules: ReadModules


def check_replaceable(path: Path) -> None:
    """Check that a plan can be kept in a file without anything else being lost: there is none, or an earlier kept plan.

    Raises:
        UserError: it is something else.
    """
    if os.access(path, os.F_OK) and not _is_kept(path):
        raise UserError(f"keep={path} is something else than a kept plan and isn't overwritten; give another keep=FILE")


def _is_kept(path: Path) -> bool:
    """Whether a file begins as kept plans do; one that nobody may read, or that is a directory or pipe, doesn't."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _BEGINNING.match(file.read(_READ_BYTES)) is not None
    except OSError:
        return False


def load_any_plan(path: Path) -> Plan:
    """Our plan in a kept plan's file, or in one that `Plan.save` wrote.

    Raises:
        UserError: the file is neither, or holds no table that was planned here.
    """
    content = read_json(path, "plan")
    if not isinstance(content, dict) or not str(content.get("format")).startswith(_KIND):
        return Plan.from_json(content, str(path))
    plan = KeptPlan.load(path).plan
    if plan is None:
        raise UserError(f"{path} holds no table that was planned here")
    return plan


def kept_in(path: Path) -> KeptPlan | None:
    """The plan in the file; None where there is no file, or, with a warning, where it can't be believed.

    A job that restarts must neither die of a damaged file at every restart, nor run with a plan that nobody made.

    Raises:
        UserError: there is a file that isn't a kept plan.
    """
    check_replaceable(path)
    if not os.access(path, os.F_OK):
        return None
    try:
        return KeptPlan.load(path)
    except UserError as error:
        _log.warning("%s; searching anew", error)
        return None


def _digest(content: Mapping[str, object]) -> str:
    """SHA-256 of JSON values, however they are set and ordered in a file."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
