"""Plans that are saved for later jobs: a file contains a plan, and the digests of all inputs that the plan was made
for.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchrec.distributed.types import ShardingPlan

from neuroshard.plans.kept_files import KIND, file_of, read_kept
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import has_format, write_json
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.schema import parse
from neuroshard.torchrec.sharding_file import ReadModules, modules_json, sharding_plan_of

DEVICES = "devices"  # names the digest of all properties of the devices except their memory
_ALIKE = 0.05  # relative difference of memory that counts as similar: drivers and other jobs take a few hundred MiB
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeptPlan:
    """A plan of a whole model as it is saved in a file, with digests of the inputs that the plan was made for.

    Attributes:
        made_for: digests of the inputs that the plan was made for, by the name of the input.
        plan: NeuroShard's plan of the tables that are planned here; None if there are no such tables.
        sharding_plan: the plan of the whole model.
        device_memory: (D,) bytes on each device after the reservation.
        host_memory: (H,) bytes of each host for tables that do not fit on the devices.
    """

    made_for: Mapping[str, str]
    plan: Plan | None
    sharding_plan: ShardingPlan
    device_memory: tuple[int, ...]
    host_memory: tuple[int, ...]

    def save(self, path: Path) -> None:
        """Write the plan as JSON, with a digest over the content of the file.

        Raises:
            UserError: the path has a file that is not a kept plan.
        """
        check_replaceable(path)
        content = {
            "made_for": dict(self.made_for),
            "device_memory": list(self.device_memory),
            "host_memory": list(self.host_memory),
            "plan": None if self.plan is None else self.plan.to_json(),
            "modules": modules_json(self.sharding_plan),
        }
        write_json(path, file_of(content))

    def keep_in(self, path: Path) -> None:
        """Write the plan to a file.
        If writing fails, only log a warning, because the running job does not need the file.
        """
        try:
            self.save(path)
        except (OSError, UserError) as error:
            _log.warning(
                Message(
                    "kept-plan-not-saved",
                    f"the plan is not saved in the file {str(path)!r}",
                    limit=str(error.changed(remedy="") if isinstance(error, UserError) else error),
                    remedy="Set keep= to another file in a directory that this process can write to",
                )
            )

    @classmethod
    def load(cls, path: Path) -> "KeptPlan":
        """Read a plan that `save` wrote.

        Raises:
            UserError: the file is missing, malformed, or changed since it was written.
        """
        where = f"kept plan {path}"
        read = parse(read_kept(path), _KeptFile, where)
        plan = None if read.plan is None else Plan.from_json(read.plan, where)
        hosts = _host_memory_of(plan) if read.host_memory is None else read.host_memory
        return cls(read.made_for, plan, sharding_plan_of(read.modules, where), read.device_memory, hosts)

    def differences(
        self, made_for: Mapping[str, str], device_memory: Sequence[int], host_memory: Sequence[int]
    ) -> tuple[str, ...]:
        """Return the names of the inputs that differ between this job and the job that saved the plan.
        `made_for` has the name and the digest of each input of this job. Memory has no digest. The result has the name
        "devices" if the saved plan does not fit in the memory of this job, or if the memory has changed by more than
        5%.
        """
        names = dict.fromkeys([*self.made_for, *made_for])
        differing = dict.fromkeys(name for name in names if self.made_for.get(name) != made_for.get(name))
        return tuple(differing if self._serves(device_memory, host_memory) else differing | {DEVICES: None})

    def _serves(self, device_memory: Sequence[int], host_memory: Sequence[int]) -> bool:
        """Return True if the memory of this job is similar to the memory of the job that saved the plan, and the plan
        fits. Similar means that the memory of each device and of each host differs by at most 5%. The plan must fit in
        the memory of this job.

        Free memory differs between machines and from day to day, and a job that restarts must find its plan.
        """
        more, more_on_hosts = _more(device_memory, self.device_memory), _more(host_memory, self.host_memory)
        if more is None or more_on_hosts is None:
            return False
        return min(*more, *more_on_hosts) >= 0 or (self.plan is not None and _fits(self.plan, more, more_on_hosts))


@dataclass(frozen=True)
class _KeptFile:
    """The names and types of the fields in the JSON file of a kept plan (a plan that is saved for later jobs)."""

    made_for: dict[str, str]
    plan: dict[str, Any] | None
    modules: ReadModules
    device_memory: tuple[int, ...]
    host_memory: tuple[int, ...] | None = None  # files of earlier versions lack it


def _host_memory_of(plan: Plan | None) -> tuple[int, ...]:
    """Return the bytes of memory that each host had for tables when the plan was made, (H,); empty if there is no plan.

    The bytes are the whole host memory only if NeuroShard planned all tables.
    """
    topology = plan and plan.task.topology
    return (topology.host_bytes,) * len(topology.hosts) if topology else ()


def _more(now: Sequence[int], then: Sequence[int]) -> list[int] | None:
    """Return how many bytes of memory each device or host has more now than then, as a list now[i] - then[i].
    `now` has the memory of each device or host of this job, and `then` has this memory when the plan was saved. Return
    None if any difference is more than 5% of then[i], or if the number of devices or hosts differs.
    """
    if len(now) != len(then):
        return None
    more = [bytes_now - before for bytes_now, before in zip(now, then, strict=True)]
    return more if all(abs(by) <= _ALIKE * before for by, before in zip(more, then, strict=True)) else None


def _fits(plan: Plan, more: Sequence[int], more_on_hosts: Sequence[int]) -> bool:
    """Return True if a plan still meets all memory limits and constraints after a change of the amount of memory.
    `more` (D,) has the bytes that are added to the memory of each device. `more_on_hosts` (H,) has the bytes that are
    added to the memory of each host. Negative numbers mean less memory.
    """
    topology = plan.task.topology
    pairs = zip(topology.device_memory, more, strict=True)
    memory = tuple(then + by for then, by in pairs)
    of_host = topology.host_bytes + min(more_on_hosts)
    if min(memory) < 1 or of_host < 0:  # the tables of TorchRec's planner do not fit
        return False
    less = replace(topology, memory_bytes=memory, reserved_bytes=0, host_memory_bytes=of_host)
    return not replace(plan, task=replace(plan.task, topology=less)).violations


def check_replaceable(path: Path) -> None:
    """Raise UserError if the path has a file that is not a kept plan (a plan that the planner saved for later jobs).
    The planner must not overwrite other files.
    """
    if os.access(path, os.F_OK) and not has_format(path, KIND):
        raise UserError(
            "kept-plan-other-file",
            f"keep={path} is not a kept plan",
            limit="the planner overwrites only kept plans",
            remedy="Set keep= to another file",
        )


def kept_in(path: Path) -> KeptPlan | None:
    """Return the kept plan in a file (a plan that an earlier job saved); None if there is no file.
    If the file was changed or damaged, log a warning and return None.

    A damaged file must not make a job fail at every restart, and a changed plan must not be used.

    Raises:
        UserError: the path has a file that is not a kept plan.
    """
    check_replaceable(path)
    if not os.access(path, os.F_OK):
        return None
    try:
        return KeptPlan.load(path)
    except UserError as error:
        _log.warning(
            Message(
                "kept-plan-unreadable",
                "the planner does not use the kept plan and searches again",
                limit=str(error.changed(remedy="")),
                remedy=f"To use the earlier plan, restore {path} from a copy and start the job again",
            )
        )
        return None
