"""The cost models of one hardware, by name or place."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuroshard.bundles import ROOFLINE, known_names, shipped_path
from neuroshard.models.bundle import ModelSet, load_with_digest
from neuroshard.models.parts import HostWait
from neuroshard.plumbing.errors import UserError, unknown_name
from neuroshard.plumbing.messages import Message
from neuroshard.plumbing.registry import build
from neuroshard.words.fingerprint import Fingerprint
from neuroshard.words.model_choice import LINKS, TORCHREC, ModelChoice, check_plain, told

_MEASURED = "h100"  # the installed models of a GPU, and its datasheet
_TORCHREC = "TorchRec"

if TYPE_CHECKING:
    from neuroshard.models.links import Change


@dataclass(frozen=True)
class CostModels(ModelSet):
    """Cost models of computation, forward and backward communication, and where they come from.

    Attributes:
        choice: the name or the bundle's absolute path that `load` finds the models by, and the settings that say what
            they count; None for models made in Python.
        hardware: the machine that was measured; None for analytic models, and if the machine is unknown.
        versions: versions of the packages that the models were measured with.
        digest: digest of the bundle that the models were loaded from; None for other models.
        sheet: name of the datasheet whose GPU the models predict for, such as "h100"; None for models of measurements.
    """

    choice: ModelChoice | None = None
    hardware: Fingerprint | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    digest: str | None = None
    sheet: str | None = None

    @property
    def name(self) -> str | None:
        """The name or path that `load` finds the models by; None for models made in Python."""
        return None if self.choice is None else self.choice.name

    @property
    def label(self) -> str:
        """The models' name and settings, for people: "h100, framework=torchrec, dense_ms=8"."""
        return "models without a name" if self.choice is None else str(self.choice)

    def in_torchrec(self) -> "CostModels":
        """Return models that count the overhead of TorchRec, as `ModelSet.in_torchrec`; their choice says so."""
        return super().in_torchrec()._chosen(framework=TORCHREC)

    def in_torchrec_if_known(self) -> "CostModels":
        """Return `in_torchrec` of models that know the framework overhead, unless they were loaded to leave it out."""
        unset = self.choice is None or self.choice.framework is None
        return self.in_torchrec() if unset and self.framework is not None else self

    def _chosen(self, **settings: Any) -> "CostModels":
        """Return the models with other settings in their choice, if they have one."""
        return self if self.choice is None else replace(self, choice=replace(self.choice, **settings))

    def _in_steps(self) -> "CostModels":
        """Return a datasheet's models with the framework overhead of installed GPU models; other models unchanged.

        The hosts of other GPUs are assumed to be equally fast; work on devices is scaled with their memory bandwidth.
        """
        if self.framework is not None:
            return self
        from neuroshard.models.roofline import RooflineCompute  # most models are no datasheets

        if not isinstance(self.compute, RooflineCompute):
            return self
        framework, its = CostModels.load(_MEASURED).framework, CostModels.load(f"{ROOFLINE}{_MEASURED}").compute
        assert framework is not None and isinstance(its, RooflineCompute)
        return self.wrapped(framework=framework.scaled(its.memory_gb_per_s / self.compute.memory_gb_per_s))

    @property
    def dense_is_unknown(self) -> bool:
        """True if costs depend on the time of the dense network, and this time is unknown."""
        return any(isinstance(part, HostWait) and part.dense_ms is None for part in self.more)

    def beside_dense(self, dense_ms: float) -> "CostModels":
        """Return models of steps with a dense network of `dense_ms` ms, in which devices wait less for their hosts.

        Costs still leave out the time of the dense network itself. The choice of the models has the new dense_ms.

        Raises:
            UserError: the models do not count the time in which hosts launch steps, or have a dense network already.
            ValueError: `dense_ms` is negative or not finite.
        """
        if not 0 <= dense_ms < float("inf"):
            raise ValueError(f"dense_ms is {dense_ms}; the time of a dense network is finite, and 0 ms or more")
        if not self.dense_is_unknown:
            given = told({"dense_ms": float(dense_ms)})
            if any(isinstance(part, HostWait) for part in self.more):
                limit = "these cost models already have a dense_ms"
                remedy = "Leave out dense_ms, or load the cost models again with the new dense_ms"
            else:
                limit = (
                    "dense_ms shortens only the time in which devices wait for their hosts, and these cost models do "
                    "not count this time"
                )
                remedy = (
                    "Leave out dense_ms, or choose cost models of a GPU (such as h100 or roofline:h200) with "
                    "framework=torchrec"
                )
            raise UserError(
                "models-ignore-dense-ms",
                f"the cost models {self.label!r} cannot take {given}",
                limit=limit,
                remedy=remedy,
            )
        more = tuple(replace(part, dense_ms=dense_ms) if isinstance(part, HostWait) else part for part in self.more)
        return self.wrapped(more=more)._chosen(dense_ms=float(dense_ms))

    def left_out(self, framework: str) -> tuple[Message, ...]:
        """Return a warning that costs leave out the overhead of a framework; empty if they are of whole steps."""
        if self.of_whole_steps:
            return ()
        knowing = "Load cost models that know this overhead (h100 or roofline:NAME, with framework=torchrec), or use"
        return (
            Message(
                "costs-lack-framework",
                "predicted costs count only kernels and exchanges",
                limit=f"the overhead of {framework} is left out, so a real step takes longer",
                remedy=f"{knowing if framework == _TORCHREC else 'Use'} predicted costs only to compare plans",
            ),
        )

    @classmethod
    def load(
        cls,
        name: str | Path,
        *,
        framework: str | None = None,
        dense_ms: float | None = None,
        exchange_dtype: str | None = None,
        optimizer: str | None = None,
        **links: Any,
    ) -> "CostModels":
        """Load models by name or place.

        Args:
            name: name of a shipped bundle, such as "cpu"; "roofline:NAME" for an analytic (roofline) model, which is
                arithmetic on a datasheet and published measurements; or the directory of a bundle.
            framework: "torchrec" counts the framework overhead that TorchRec adds to a step (for "roofline:NAME" the
                overhead on an H100, scaled); "none" leaves the overhead out. None leaves it out, too, but
                `ns.search(target="torchrec")` then counts it.
            dense_ms: ms of the dense network per step on a GPU, with framework="torchrec"; None if that is unknown.
            exchange_dtype: data type of embeddings and gradients in exchanges, such as "fp16", or "fp16/bf16" for
                forward and backward; None for fp32.
            optimizer: optimizer whose states the kernels of "roofline:NAME" read and write: "sgd", "rowwise_adagrad" or
                "adam"; None for "sgd".
            links: the links between devices, for analytic exchange times: network ("infiniband", "roce", "efa",
                "slingshot", "tcp"), network_gb_per_s, network_busbw_gb_per_s, host_busbw_gb_per_s and nvlink_bridges
                (`ModelSettings`).

        Raises:
            UserError: the bundle is missing, truncated, or made for other features; there is no such datasheet; or a
                setting is unknown, or does not go with the models.
        """
        if unknown := next((one for one in links if one not in LINKS), None):
            raise TypeError(f"load() got an unexpected keyword argument {unknown!r}")
        return cls.of(ModelChoice(str(name), framework, dense_ms, exchange_dtype, optimizer, **links))

    @classmethod
    def of(cls, choice: ModelChoice, usual_framework: str | None = None) -> "CostModels":
        """Load chosen models.

        Precisions apply first, since models know in fp32 what conversion takes; the dense network is the last.

        Args:
            choice: the name of the models, and settings.
            usual_framework: the framework whose overhead counts if the choice names none and the models know it.

        Raises:
            UserError: as `load`.
        """
        models = cls._named(choice.name, choice.optimizer)._linked(choice)._exchanging(choice.exchange_dtype)
        if choice.framework == TORCHREC:
            models = models._in_steps().in_torchrec()
        elif choice.framework is not None:
            models = models._chosen(framework=choice.framework)
        elif usual_framework == TORCHREC:
            models = models.in_torchrec_if_known()
        return models if choice.dense_ms is None else models.beside_dense(choice.dense_ms)

    def _linked(self, choice: ModelChoice) -> "CostModels":
        """Return the models whose analytic exchange times are those of the links in a choice.

        Raises:
            UserError: the models have no analytic exchange times, or the links cannot be theirs.
        """
        if not choice.links:
            return self
        from neuroshard.models.links import chosen_links  # most models are without

        linked = self.with_links(chosen_links(choice))
        if linked is self:
            raise UserError(
                "models-ignore-links",
                f"the cost models {choice.name!r} cannot take {told(choice.links)}",
                limit="these cost models have exchange times that were measured on other links",
                remedy=f"Leave out {', '.join(choice.links)}, or choose analytic cost models ({ROOFLINE}NAME)",
            )
        return linked._chosen(**choice.links)

    def with_links(self, change: "Change") -> "CostModels":
        """Return models whose analytic exchange times are changed; the models themselves if they have none."""
        from neuroshard.models.links import with_links

        forward, backward = (with_links(model, change) for model in (self.forward, self.backward))
        if forward is self.forward and backward is self.backward:
            return self
        index_dist = None if self.input is None else with_links(self.input, change)
        return self.wrapped(forward=forward, backward=backward, input=index_dist)

    def _exchanging(self, dtype: str | None) -> "CostModels":
        """Return the models whose exchanges have another data type; None leaves it as it is."""
        if dtype is None:
            return self
        from neuroshard.models.precision import narrowed  # and datasheets: most models are without

        return narrowed(self, dtype)._chosen(exchange_dtype=dtype)

    @classmethod
    def _named(cls, name: str, optimizer: str | None) -> "CostModels":
        shipped = shipped_path(name)
        if shipped is None and not os.path.lexists(name):
            check_plain(name)
        if name.startswith(ROOFLINE):
            sheet = name.removeprefix(ROOFLINE)
            models: CostModels = build("roofline", sheet, **({} if optimizer is None else {"optimizer": optimizer}))
            return replace(models, choice=ModelChoice(name, optimizer=optimizer), sheet=sheet)
        if shipped is None and not os.path.lexists(name) and Path(name).name == name:
            if f"{ROOFLINE}{name}" in known_names():
                raise UserError(
                    "model-name-lacks-roofline",
                    f"unknown cost models {name!r}",
                    remedy=f"Did you mean '{ROOFLINE}{name}'?",
                )
            raise unknown_name("cost models or directory", name, known_names())
        bundle = shipped or Path(name)
        loaded, card, digest = load_with_digest(bundle)
        if optimizer is not None:
            raise UserError(
                "models-ignore-optimizer",
                f"the cost models {name!r} cannot take optimizer={optimizer}",
                limit="these cost models are fitted to kernels that were measured with one optimizer",
                remedy=f"Leave out optimizer, or choose analytic cost models ({ROOFLINE}NAME)",
            )
        choice = ModelChoice(name if shipped is not None else str(bundle.absolute()))
        return cls(**vars(loaded), choice=choice, hardware=card.hardware, versions=card.versions, digest=digest)
