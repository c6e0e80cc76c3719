"""The cost models of one hardware, by name or place."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from neuroshard.bundles import ROOFLINE, known_names, shipped_path
from neuroshard.models.bundle import ModelSet, load_with_digest
from neuroshard.models.parts import HostWait
from neuroshard.plumbing.errors import UserError, unknown_name
from neuroshard.plumbing.registry import build
from neuroshard.words.collective import Precision
from neuroshard.words.fingerprint import Fingerprint

IN_TORCHREC = "+torchrec"  # behind a name: what TorchRec adds to a step counts
_MEASURED = "h100"  # the installed models of a GPU, and its datasheet
_DENSE = re.compile(r"dense(\d+(?:\.\d+)?)ms")  # behind that: beside a dense network that takes so long
_WHOLE = re.compile(
    r"(.+?)(\+torchrec(?:\+dense[^+/]*)?)"
)  # models of whole steps: those of kernels, and what makes them so


@dataclass(frozen=True)
class CostModels(ModelSet):
    """Cost models of computation, forward and backward communication, and where they come from.

    Attributes:
        name: what `load` finds them by: a name, or a bundle's absolute path; None for models made in Python.
        hardware: what was measured; None for arithmetic, and where nobody wrote it down.
        versions: of the packages that it was measured with.
        digest: of the bundle that they were loaded from; None for others.
        sheet: name of the datasheet whose GPU the models predict for, such as "h100"; None for models of measurements.
    """

    name: str | None = None
    hardware: Fingerprint | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    digest: str | None = None
    sheet: str | None = None

    def in_torchrec(self) -> "CostModels":
        """Return the models with what TorchRec adds to a step, as `ModelSet.in_torchrec`; their name says so."""
        counted = super().in_torchrec()
        return counted if self.name is None else replace(counted, name=f"{self.name}{IN_TORCHREC}")

    def _in_steps(self) -> "CostModels":
        """Give a datasheet what TorchRec adds to a step with the installed models of a GPU; other models are as before.

        Hosts of other GPUs are taken for as fast as that one's, and what devices do for as fast as their memory is.
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
        """Whether costs depend on how long the dense network computes, and nobody said how long."""
        return any(isinstance(part, HostWait) and part.dense_ms is None for part in self.more)

    def beside_dense(self, dense_ms: float) -> "CostModels":
        """Return models of steps whose devices also do a dense network's work, and so wait less for their hosts.

        Costs are still what steps take besides that work; the name says so.

        Raises:
            UserError: what hosts take to launch steps doesn't count in these models, or they have a dense network.
            ValueError: it is no finite number from 0 on.
        """
        if not 0 <= dense_ms < float("inf"):
            raise ValueError(f"a dense network of {dense_ms} ms")
        said = f"dense{np.format_float_positional(dense_ms, trim='-')}ms"
        if not self.dense_is_unknown:
            raise UserError(
                f"{said}: these cost models don't count what a host takes to launch a step, which dense work hides, or "
                "have a dense network already; take models that do count it, with one, such as "
                f"model=h100+torchrec+{said}"
            )
        more = tuple(replace(part, dense_ms=dense_ms) if isinstance(part, HostWait) else part for part in self.more)
        return self.wrapped(more=more, name=None if self.name is None else f"{self.name}+{said}")

    def left_out(self, framework: str) -> tuple[str, ...]:
        """List, in a line, what steps in a framework take that these costs leave out; nothing of whole steps."""
        if self.of_whole_steps:
            return ()
        return (f"predicted costs are of kernels and exchanges alone: what {framework} adds to a step isn't known",)

    @classmethod
    def load(cls, path: str | Path) -> "CostModels":
        """Load models by name or place.

        "roofline:NAME" is arithmetic on a datasheet and published measurements, "roofline:NAME+adam" with the states of
        an optimizer (sgd, rowwise_adagrad, adam); the name of a shipped bundle, such as "cpu", is that;
        "NAME+fp16" are the same models where exchanges have fewer bits, "NAME+fp16/bf16" where gradients have others;
        "NAME+torchrec" where what TorchRec adds to a step counts (of a datasheet as on an H100),
        "NAME+torchrec+dense8ms" beside a dense network that takes a GPU 8 ms;
        anything else is a bundle's directory.

        Raises:
            UserError: the bundle is missing, truncated, or made for other features; or there is no such datasheet.
        """
        base, _, how = str(path).rpartition("+")
        varied = cls._varied(base, how) if base else None
        return cls._named(path) if varied is None else varied

    @classmethod
    def _varied(cls, base: str, how: str) -> "CostModels | None":
        """Load models by name or place, and vary them; None if that isn't a way to."""
        if f"+{how}" == IN_TORCHREC:
            return cls.load(base)._in_steps().in_torchrec()
        if dense := _DENSE.fullmatch(how):
            return cls.load(base).beside_dense(float(dense[1]))
        if how.partition("/")[0] not in tuple(Precision):
            return None
        from neuroshard.models.precision import narrowed  # and datasheets: most models are without

        if whole := _WHOLE.fullmatch(base):  # what that adds is known of models in fp32 first, and counted last
            return cls.load(f"{whole[1]}+{how}{whole[2]}")
        narrow = narrowed(cls.load(base), how)
        return replace(narrow, name=f"{narrow.name}+{how}")

    @classmethod
    def _named(cls, path: str | Path) -> "CostModels":
        if str(path).startswith(ROOFLINE):
            sheet, _, optimizer = str(path).removeprefix(ROOFLINE).partition("+")
            models: CostModels = build("roofline", sheet, **({"optimizer": optimizer} if optimizer else {}))
            return replace(models, name=str(path), sheet=sheet)
        shipped = shipped_path(str(path))
        if shipped is None and not os.path.lexists(path) and Path(path).name == str(path):
            if f"{ROOFLINE}{path}" in known_names():
                raise UserError(f"unknown model {str(path)!r}; did you mean '{ROOFLINE}{path}'?")
            raise unknown_name("model (and no directory is called so)", str(path), known_names())
        bundle = shipped or Path(path)
        name = str(path) if shipped is not None else str(bundle.absolute())
        loaded, card, digest = load_with_digest(bundle)
        return cls(**vars(loaded), name=name, hardware=card.hardware, versions=card.versions, digest=digest)
