"""Differences between the supported releases of TorchRec, 1.8 and 1.9."""

from importlib.metadata import version

from torchrec.distributed.planner import types as planner_types
from torchrec.distributed.types import ShardingType

_RELEASE = tuple(int(number) for number in version("torchrec").split(".")[:2])
_IS_1_9 = _RELEASE >= (1, 9)

TORCHREC = f"TorchRec {_RELEASE[0]}.{_RELEASE[1]}"
"""The installed release, for messages about its behaviour."""

FAILS_WITH_VARIABLE_BATCHES = frozenset[str](() if _IS_1_9 else (ShardingType.GRID_SHARD.value,))
"""The sharding types that fail on all devices if the features of a batch have different numbers of samples."""

HAS_DRY_RUN = _IS_1_9
"""True if TorchRec has a dry run."""

COMPUTE_DEVICES = ("cpu", "cuda", "mtia", "tpu") if _IS_1_9 else ("cpu", "cuda", "mtia")
"""The types of devices for which TorchRec has topologies."""

CONTEXT_ERRORS: tuple[type[Exception], ...] = (planner_types.PlannerContextFingerprintError,) if _IS_1_9 else ()
"""The exceptions that TorchRec raises if it cannot compute the context hash of a plan."""

OTHER_CONTEXT = "another job" if _IS_1_9 else "another job, or under another PYTHONHASHSEED"
"""Words for the job of a plan with another context hash, for messages."""


def stashing(is_stashed: bool) -> dict[str, bool]:
    """Return {"stash_weights": is_stashed}, a keyword argument for TorchRec's ShardingOption.
    If weights of a table are stashed, TorchRec copies these weights to host memory while the dense network runs. Return
    {} if the installed release of TorchRec has no such argument.
    """
    return {"stash_weights": is_stashed} if _IS_1_9 else {}
