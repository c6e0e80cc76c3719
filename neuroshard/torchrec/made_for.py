"""Everything that a plan depends on, as digests: what a kept plan is compared by."""

from collections.abc import Sequence

from neuroshard.torchrec.asked import Asked, device_memory
from neuroshard.torchrec.finder import Finder
from neuroshard.torchrec.kept import digests
from neuroshard.torchrec.model import Model
from neuroshard.torchrec.planner_report import Callback
from neuroshard.torchrec.sharding_file import modules_json


def made_for(model: Model, asked: Asked, finder: Finder, callbacks: Sequence[Callback]) -> dict[str, str]:
    """A digest of each thing that a plan would be made for; the memory is what all of a model's parameters share."""
    task = asked.task(model.tables, model.left) if model.tables else None
    models = finder.simulator.models
    delegated = zip(model.division.delegated, model.division.reasons, strict=True)
    return digests(
        {
            "tables": task and [table.to_json() for table in task.tables],
            "modules": [parameter.qualified_name for parameter in model.division.planned],
            "devices": (model.left.compute_device, model.left.local_world_size, device_memory(model.left)),
            "batch size": model.batch_size,
            "memory use": task and task.memory,
            "constraints": (task and task.constraints, model.constraints),
            "search": (finder.searcher, finder.searcher.reads()),
            "models": (models.name, models.digest) if models.name else models,
            "other parameters": [
                (parameter.qualified_name, why, str(parameter.weights.dtype), list(parameter.weights.shape))
                for parameter, why in delegated
            ],
            "given plan": modules_json(model.given),
            "callbacks": [getattr(callback, "__qualname__", type(callback).__qualname__) for callback in callbacks],
        }
    )
