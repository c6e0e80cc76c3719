"""Digests of all inputs that a plan depends on.
The planner saves these digests with a plan, so that a later job can check whether the plan was made for the same
inputs.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from neuroshard.torchrec.bandwidths import named_bandwidths
from neuroshard.torchrec.delegated import untrained_bytes
from neuroshard.torchrec.finder import Finder
from neuroshard.torchrec.kept import DEVICES
from neuroshard.torchrec.kernels import PREFETCH
from neuroshard.torchrec.model import Model
from neuroshard.torchrec.planner_report import Callback
from neuroshard.torchrec.planning_request import optimizer_of
from neuroshard.torchrec.sharding_file import modules_json


def input_digests(model: Model, finder: Finder, callbacks: Sequence[Callback]) -> dict[str, str]:
    """Return a digest of each input that a plan depends on, by the name of the input.
    Memory has no digest, because it only has to be similar, not equal.
    """
    request, left, division = model.request, model.left, model.division
    task = request.task(model.tables, model.left) if model.tables else None
    models, groups = finder.simulator.models, request.groups
    beside = untrained_bytes((*division.delegated, *division.fixed))
    others = *zip(division.delegated, division.reasons, strict=True), *((fixed, "given") for fixed in division.fixed)
    return digests(
        {
            "tables": task and [table.to_json() for table in task.tables],
            "modules": [parameter.qualified_name for parameter in division.planned],
            DEVICES: (left.compute_device, left.local_world_size, left.intra_group_size, left.world_size),
            **({"bandwidths": named} if (named := named_bandwidths(left)) else {}),
            **({} if groups.num_groups == 1 and not groups.chosen else {"groups": groups.described}),
            "batch size": request.batch_size,
            "memory use": task and task.memory,
            "constraints": (task and task.constraints, request.constraints),
            "search": (finder.searcher, finder.searcher.reads()),
            **({} if finder.verifier is None else {"verify": finder.verifier}),
            "models": (models.choice.normalized, models.digest) if models.choice else models,
            "other parameters": [
                (other.qualified_name, why, str(other.weights.dtype), list(other.weights.shape), optimizer_of(other))
                for other, why in others
            ],
            **({"bytes beside tables": beside} if beside else {}),
            **({"pipeline": request.pipeline} if request.pipeline == PREFETCH or (request.pipeline and others) else {}),
            "given plan": modules_json(request.fixed),
            "callbacks": [getattr(callback, "__qualname__", type(callback).__qualname__) for callback in callbacks],
        }
    )


def digests(inputs: Mapping[str, object]) -> dict[str, str]:
    """Return the SHA-256 digest of each value in `inputs`, by the name of the value."""
    texts = {name: json.dumps(_described(value), sort_keys=True) for name, value in inputs.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _described(value: Any) -> Any:
    """Return a JSON-ready description of a value.
    The same value has the same description in every process, so that jobs can compare digests of the description.

    Objects of unknown types are described by their class.
    """
    plain = value.value if isinstance(value, Enum) else value
    if plain is None or isinstance(plain, (bool, int, float, str)):
        return plain
    if isinstance(plain, Mapping):
        return {str(key): _described(each) for key, each in plain.items()}
    if isinstance(plain, (list, tuple)):
        return [_described(each) for each in plain]
    # The package alone, so that moving a class within it changes no digest.
    package = type(plain).__module__.partition(".")[0]
    return {"kind": f"{package}.{type(plain).__qualname__}"} | _inside(plain)


def _inside(value: Any) -> dict[str, Any]:
    """Return a dictionary of JSON-ready values that describes an array, a path or a dataclass; {} for other types.
    The dictionary of an array has the shape and a digest of the elements. The dictionary of a path has the text of the
    path. The dictionary of a dataclass has the fields that count when two objects are compared.
    """
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "digest": hashlib.sha256(value.tobytes()).hexdigest()}
    if isinstance(value, Path):
        return {"path": str(value)}
    if is_dataclass(value):
        return {field.name: _described(getattr(value, field.name)) for field in fields(value) if field.compare}
    return {}
