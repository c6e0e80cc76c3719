"""TorchRec's dry run with NeuroShardPlanner: plans of a model for several kinds of machines, without the machines.

`python -m neuroshard.torchrec.dry_run` takes the arguments of `python -m torchrec.distributed.planner.dry_run.cli`, and
`--models`. TorchRec has the dry run since 1.9.
"""

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from typing import Any

import torch.distributed as dist
from torch import nn
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType, StorageReservation
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import PipelineType, ShardingPlan

from neuroshard.models import CostModels
from neuroshard.plumbing.errors import InfeasibleError, MissingPackageError, UserError
from neuroshard.plumbing.messages import Message
from neuroshard.torchrec.planner import NeuroShardPlanner
from neuroshard.torchrec.planner_report import Sharders
from neuroshard.torchrec.prefetching import pipeline_named
from neuroshard.torchrec.releases import HAS_DRY_RUN, TORCHREC

if not HAS_DRY_RUN:
    error = MissingPackageError("dry-run-missing", f"{TORCHREC} has no dry run", remedy="Install torchrec 1.9 or later")
    raise SystemExit(str(error)) if __name__ == "__main__" else error

from torchrec.distributed.planner.dry_run import cli
from torchrec.distributed.planner.dry_run.api import DryRunOrchestrator
from torchrec.distributed.planner.executor import DefaultPlannerExecutor
from torchrec.distributed.planner.provider import DefaultPlannerProvider
from torchrec.distributed.planner.types import PlannerConfig, PlannerSessionContext, PlannerVariant

# Fields of PlannerConfig that affect this planner or the reservation; other fields set up TorchRec's own search.
_READ = frozenset(
    {"planner_variant", "manifold_path", "debug", "timeout_seconds", "pipeline_type", "dense_tensor_estimate"}
    | {"storage_reservation_policy", "storage_reservation_percentage", "parameter_multiplier"}
    | {"model_base_bytes", "home_sku"}
)
_log = logging.getLogger(__name__)


class NeuroShardProvider(DefaultPlannerProvider):
    """Supplies NeuroShardPlanner to TorchRec's PlannerExecutor, in place of TorchRec's own planner.

    Topology and reservation come from TorchRec's provider.

    Args:
        models: cost models, or their name or path; or a mapping of such values by kind of machine (SKU). None takes
            the planner's default.
        settings: other arguments of NeuroShardPlanner, such as `dense_ms`.
    """

    def __init__(
        self, models: CostModels | str | Mapping[str, CostModels | str] | None = None, **settings: Any
    ) -> None:
        self._models = models
        self._settings = settings

    def build_planner(
        self,
        sku: str,
        *,
        topology: TorchRecTopology,
        storage_reservation: StorageReservation,
        ctx: PlannerSessionContext,
    ) -> NeuroShardPlanner:
        """Build and return the NeuroShardPlanner for one kind of machine, which `sku` names.

        Raises:
            NotImplementedError: the request names a variant of the planner other than TorchRec's.
            UserError: `models` lacks the kind of machine.
        """
        request = ctx.request
        config = request.planner_config
        if config.planner_variant not in (PlannerVariant.UNSET, PlannerVariant.OSS):
            super().build_planner(sku, topology=topology, storage_reservation=storage_reservation, ctx=ctx)
        if unread := _unread(config):
            _log.warning(
                Message(
                    "dry-run-settings-unused",
                    f"planner_config sets {', '.join(unread)}",
                    limit="these fields set up TorchRec's own search and have no effect on NeuroShardPlanner",
                    remedy="Remove these fields, or pass arguments of NeuroShardPlanner to NeuroShardProvider(...)",
                )
            )
        given: dict[str, Any] = {
            "topology": topology,
            "batch_size": request.batch_size,
            "models": self._models_of(sku),
            "constraints": request.constraints,
            "storage_reservation": storage_reservation,
            "stats": ctx.stats,
            "debug": config.debug,
            "timeout_seconds": config.timeout_seconds,
            "pipeline": pipeline_named(PipelineType(config.pipeline_type)) if config.pipeline_type else None,
        }
        return _Planner(**given | self._settings)

    def _models_of(self, sku: str) -> CostModels | str | None:
        """Return the cost models for a kind of machine.
        Raise UserError if `models` has no cost models for this kind of machine.
        """
        if not isinstance(self._models, Mapping):
            return self._models
        if sku not in self._models:
            raise UserError(
                "dry-run-models-missing",
                f"models= has no cost models for {sku!r}",
                limit=f"models= has cost models for {', '.join(map(repr, sorted(self._models)))}",
                remedy=f"Add cost models for {sku!r} to models=",
            )
        return self._models[sku]


class _Planner(NeuroShardPlanner):
    """NeuroShardPlanner that raises TorchRec's PlannerError in place of a UserError.
    TorchRec's executor reports a PlannerError and goes on, but any other error ends the job.
    """

    def plan(self, module: nn.Module, sharders: Sharders | None = None) -> ShardingPlan:
        """Return the plan of `module` that NeuroShardPlanner finds; raise PlannerError, not UserError."""
        with _as_planner_errors():
            return super().plan(module, sharders)

    def collective_plan(
        self, module: nn.Module, sharders: Sharders | None = None, pg: dist.ProcessGroup | None = None
    ) -> ShardingPlan:
        """Return on all ranks the plan that NeuroShardPlanner finds on rank 0; raise PlannerError, not UserError."""
        with _as_planner_errors():
            return super().collective_plan(module, sharders, pg)


@contextmanager
def _as_planner_errors() -> Iterator[None]:
    """Raise TorchRec's PlannerError in place of a UserError that is raised inside the `with` block."""
    try:
        yield
    except UserError as error:
        lacks_memory = isinstance(error, InfeasibleError)
        kind = PlannerErrorType.INSUFFICIENT_STORAGE if lacks_memory else PlannerErrorType.OTHER
        raise PlannerError(str(error), kind) from error


def _unread(config: PlannerConfig) -> list[str]:
    """Return the names of the fields in TorchRec's PlannerConfig that NeuroShardPlanner ignores although they are set.
    A field counts as set if its value differs from the default of the field.
    """
    defaults = {field.name: field.default for field in fields(PlannerConfig) if field.default is not MISSING}
    return sorted(name for name, value in defaults.items() if name not in _READ and getattr(config, name) != value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run TorchRec's dry run with NeuroShardPlanner; return 0 if every kind of machine has a plan, else 1."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--models", default=None)
    given, others = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    provider = NeuroShardProvider(_parsed_models(given.models))
    return int(cli.main(list(others), orchestrator=DryRunOrchestrator(DefaultPlannerExecutor(provider))))


def _parsed_models(text: str | None) -> str | dict[str, str] | None:
    """Parse the text `NAME` or `SKU=NAME,SKU=NAME`, in which NAME names cost models and SKU names a kind of machine.
    Return the name, or a mapping from SKU to name.
    """
    if text is None or "=" not in text:
        return text
    return dict(pair.split("=", 1) for pair in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
