"""The cost models of one type of hardware, and functions that load cost models by name or from the directory of a
bundle.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from neuroshard.bundles import ROOFLINE, known_names, shipped_path
from neuroshard.cost.cost import BACKWARD, COMPUTE, FORWARD, INPUT, PARTS
from neuroshard.models.bundle import Card, read_bundle
from neuroshard.models.interface import CommModel, ComputeModel, PartModel, SumModel
from neuroshard.models.kernels import KernelModels
from neuroshard.models.parts import Framework, FrameworkPart, HostWait, InputExchange
from neuroshard.models.trust import Margin, Margins, Origin, Ranges, margins_with
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError, unknown_name
from neuroshard.plumbing.messages import Message, number_of
from neuroshard.plumbing.registry import build, described
from neuroshard.tasks.task import Task
from neuroshard.words.collective import Precision, name_of
from neuroshard.words.fingerprint import Fingerprint
from neuroshard.words.form import CALLS, COLUMN_WISE_CALL, Call, Forms
from neuroshard.words.model_choice import LINKS, TORCHREC, ModelChoice, check_plain, settings_text
from neuroshard.words.placement import Tier

_MEASURED = "h100"  # installed models of GPUs, and the datasheet of each GPU
_TORCHREC = "TorchRec"
_OTHER_MODELS = "choose cost models that know these costs, such as model=roofline:h100"

if TYPE_CHECKING:
    from neuroshard.models.links import Change

Samples = TypeVar("Samples")
Samples_contra = TypeVar("Samples_contra", contravariant=True)


class Learner(Protocol[Samples_contra]):
    """Interface of objects that fit cost models to measurements.
    The type variable is the type of the measurements that the object accepts.
    """

    def check(self, start: "CostModels") -> None:
        """Raise UserError if this learner cannot fine-tune the models in `start`."""

    def learned(self, samples: Samples_contra, start: "CostModels | None" = None) -> "CostModels":
        """Fit cost models to the measurements in `samples`, from scratch or starting from the models in `start`.
        Return the fitted models with their error margins.
        """


@dataclass(frozen=True)
class CostModels:
    """The cost models of one type of hardware: models of kernels, of forward and backward exchanges, and of other parts
    of a training step, with error margins and provenance.

    Raise UserError if two parts of a step have the same name.

    Attributes:
        batch_size: the only global batch size that the models know; None if they know every batch size.
        ranges: ranges of the training data; None if they are unknown.
        margins: margins of predictions; None if they are unknown.
        input: model of the input dist, the exchange of indices and lengths (`Traffic.alone`); None if it is unknown.
        framework: framework overhead of TorchRec in a step, which counts in models of `in_torchrec`; None if that is
            unknown.
        more: other parts of a step, which bundles do not store.
        forward_precision, backward_precision: data types of embeddings and of gradients in exchanges; a property of
            steps, which bundles do not store and which stays if a model is replaced.
        choice: the name or the absolute path of the bundle that `load` loaded, and the settings that decide which costs
            count; None for models made in Python.
        hardware: the machine that was measured; None for analytic models, and if the machine is unknown.
        versions: versions of the packages that the models were measured with.
        digest: digest of the bundle or the config that the models were loaded from; None for other models.
        sheet: name of the datasheet whose GPU the models predict for, such as "h100"; None for models of measurements.
        origin: the models that margins, ranges and provenance belong to; set by the class itself. If
            `dataclasses.replace` replaces a model, the facts about the replaced model are dropped.
    """

    compute: ComputeModel
    forward: CommModel
    backward: CommModel
    batch_size: int | None
    ranges: Ranges | None = None
    margins: Margins | None = None
    input: CommModel | None = None
    framework: Framework | None = None
    more: tuple[PartModel, ...] = ()
    forward_precision: Precision = Precision.FP32
    backward_precision: Precision = Precision.FP32
    choice: ModelChoice | None = None
    hardware: Fingerprint | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    digest: str | None = None
    sheet: str | None = None
    origin: Origin | None = field(default=None, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        names = [COMPUTE, FORWARD, BACKWARD, *(part.name for part in self.parts)]
        if taken := next((name for name in names if names.count(name) > 1), None):
            raise UserError(
                "part-name-taken",
                f"two parts of a step have the name {taken!r}",
                limit="each part of a cost needs a name of its own",
                remedy="Give your part another name",
            )
        kept = frozenset(PARTS)
        if self.origin is not None:
            kept = self.origin.kept - self.origin.replaced(self)
            for name, value in self.origin.corrected(self).items():
                object.__setattr__(self, name, value)
        object.__setattr__(self, "origin", Origin.of(self, kept))

    def with_compute(self, model: ComputeModel, margins: Margin | None = None) -> "CostModels":
        """Return a copy of these cost models in which `model` predicts the kernel times.
        `margins` is the error margin of the predictions of `model`; None if the margin is unknown.

        Facts about the replaced model are dropped: its margins, ranges and provenance, and so the name and digest of
        the whole set.

        Args:
            model: the new model, of all kernel calls.
            margins: margin of its predictions; None if that is unknown. The search then assumes a margin.
        """
        return self._with(COMPUTE, model, margins)

    def with_forward(self, model: CommModel, margins: Margin | None = None) -> "CostModels":
        """Return a copy of these cost models in which `model` predicts the forward exchanges (of embeddings).
        `margins` is the error margin of the predictions of `model`; None if the margin is unknown.

        Facts about the replaced model are dropped, as in `with_compute`.
        """
        return self._with(FORWARD, model, margins)

    def with_backward(self, model: CommModel, margins: Margin | None = None) -> "CostModels":
        """Return a copy of these cost models in which `model` predicts the backward exchanges (of gradients).
        `margins` is the error margin of the predictions of `model`; None if the margin is unknown.

        Facts about the replaced model are dropped, as in `with_compute`.
        """
        return self._with(BACKWARD, model, margins)

    def with_input(self, model: CommModel, margins: Margin | None = None) -> "CostModels":
        """Return a copy of these cost models in which `model` predicts the input dist.
        `margins` is the error margin of the predictions of `model`; None if the margin is unknown.

        Facts about the replaced model are dropped, as in `with_compute`.
        """
        return self._with(INPUT, model, margins)

    def _with(self, name: str, model: ComputeModel | CommModel, margin: Margin | None) -> "CostModels":
        changed: dict[str, Any] = {name: model}
        models = replace(self, **changed)
        if margin is None:
            return models
        known = models.margins or Margins(None, None, None)
        return replace(models, margins=margins_with(known, name, margin))

    def update(self, samples: Samples, learner: Learner[Samples]) -> "CostModels":
        """Return new cost models that `learner` fits to the samples, starting from these cost models.

        Args:
            samples: the measurements, of the machine that the new models are for.
            learner: fits the models, such as `Fit` of `pretrain`.

        Raises:
            UserError: the learner cannot fine-tune these models.
        """
        learner.check(self)
        return learner.learned(samples, self)

    def wrapped(self, **models: Any) -> "CostModels":
        """Return a copy of these cost models with some fields replaced. The copy keeps the error margins and the
        provenance. For example, `wrapped(compute=wrapper)` replaces the model of kernel times.

        Each new model should be a wrapper around the old model, that is, compute predictions from the predictions of
        the old model. A wrapper is expected not to change the accuracy of a model.
        """
        kept = frozenset(PARTS) if self.origin is None else self.origin.kept
        return replace(self, origin=Origin({}, {}, kept), **models)

    @property
    def parts(self) -> tuple[PartModel, ...]:
        """The models of all parts of a step other than kernels and the exchanges of embeddings and gradients, such as
        the input dist.
        """
        return (*([] if self.input is None else [InputExchange(self.input)]), *self.more)

    @property
    def of_whole_steps(self) -> bool:
        """True if predicted costs include the framework overhead of TorchRec, in addition to kernels and exchanges."""
        return any(isinstance(part, FrameworkPart) for part in self.more)

    def in_torchrec(self) -> "CostModels":
        """Return a copy of these cost models for training steps in TorchRec, with framework overhead in all costs.
        Kernel times are multiplied by a factor, because the same kernel takes a different time in a training step than
        alone.

        The choice of the models says so.

        Raises:
            UserError: the models do not know the framework overhead.
        """
        if self.framework is None or not isinstance(self.compute, SumModel):
            raise UserError(
                "models-lack-framework",
                "these cost models do not know the framework overhead of TorchRec",
                remedy="Do one of these: leave out framework=torchrec; choose the installed cost models cpu or h100; "
                "or collect data with this overhead (`neuroshard collect num_local_samples=400`) and pretrain cost "
                "models on the data",
            )
        compute = replace(KernelModels.of(self.compute), factor=self.framework.factor)
        models = self.wrapped(compute=compute, framework=None, more=(*self.more, *self.framework.parts))
        return models._chosen(framework=TORCHREC)

    @property
    def num_devices(self) -> int | None:
        """The number of devices for which exchange times can be predicted; None if exchange times can be predicted for
        any number of devices.
        """
        return self.forward.num_devices

    @property
    def forms(self) -> Forms:
        """The families of sharding types (`Form`, such as row-wise) whose kernel times, forward exchanges and backward
        exchanges can all be predicted.
        """
        return self.compute.forms & self.forward.forms & self.backward.forms

    def check_plan(self, plan: Plan) -> None:
        """Raise UserError if `plan` has a sharding type, a memory tier or sequence tables whose costs the models cannot
        predict.
        """
        for call in (CALLS[number] for number in np.unique(plan.device_loads.loads.call)):
            self._check_call(call, f"{call.form.value} sequence tables")
        plan.check_layouts(
            lambda layout: layout.form in self.forms,
            f"these cost models know only the costs of {', '.join(sorted(self.forms))} tables",
            "Give the table another sharding type, or choose cost models that know this sharding type, such as "
            "model=roofline:h100",
        )
        self._check_exchanges(plan)

    def _check_exchanges(self, plan: Plan) -> None:
        """Raise UserError if the plan has table_row_wise tables that need a collective whose time the models cannot
        predict.
        """
        for which in dict.fromkeys(which for layout in plan.layouts for which in layout.host_exchanges):
            known = self.forward.collectives & self.backward.collectives
            if which not in known and plan.traffic.sent_bytes(which).any():
                raise UserError(
                    "models-lack-collective",
                    f"these cost models do not know the costs of the collective {name_of(which)!r}",
                    limit="the plan's table_row_wise tables need this collective",
                    remedy=f"Do one of these: add {name_of(which)} to comm.collectives, then collect and pretrain "
                    "again; make the tables row_wise; or choose cost models that know this collective, such as "
                    "model=roofline:h100",
                )

    def _check_call(self, call: Call, what: str) -> None:
        """Raise UserError if the models cannot predict the time of kernel calls of the type `call`.
        Calls of pooled tables in device memory are always accepted. Only calls of sequence tables, and calls of tables
        in host memory, are checked. `what` is the text that stands for the sequence tables in the error message.
        """
        if call in self.compute.calls:
            return
        if call.tier is not Tier.DEVICE:
            raise UserError(
                "models-lack-tier",
                f"these cost models do not know the costs of tables in tier {call.tier.value!r}",
                remedy=f"Keep the tables in device memory, or {_OTHER_MODELS}",
            )
        if not call.pooled:
            raise UserError(
                "models-lack-sequence-tables",
                f"these cost models do not know the costs of {what}",
                remedy="Collect data with compute.pooled=[true,false] and pretrain cost models on the data, or "
                f"{_OTHER_MODELS}",
            )

    def check(self, task: Task) -> None:
        """Raise UserError if the models cannot predict the costs of plans of `task`."""
        if self.num_devices not in (None, task.topology.num_devices):
            raise UserError(
                "models-devices-differ",
                f"the cost models are for {number_of(self.num_devices or 0, 'device')}",
                limit=f"the task has {number_of(task.topology.num_devices, 'device')}",
                remedy=f"Collect data with comm.num_devices=[{task.topology.num_devices}] and pretrain cost models on "
                "the data",
            )
        first_tables: dict[tuple[bool, Tier], str] = {}  # of each call: tasks are checked with every plan
        for table, assignment in zip(task.tables, task.tier_assignments, strict=True):
            first_tables.setdefault((table.pooled, assignment.tier), table.name)
        for (pooled, tier), name in first_tables.items():
            self._check_call(replace(COLUMN_WISE_CALL, pooled=pooled, tier=tier), f"sequence tables such as {name!r}")
        if self.batch_size not in (None, task.batch_size):
            raise UserError(
                "models-batch-size-differs",
                f"the cost models are for batch size {self.batch_size}",
                limit=f"the task has batch size {task.batch_size}",
                remedy=f"Set batch_size={self.batch_size} (the samples of all devices together; NeuroShardPlanner "
                f"takes the samples of one device), or collect data with batch_size={task.batch_size} and pretrain "
                "cost models on the data",
            )

    @property
    def name(self) -> str | None:
        """The name or bundle path with which these models can be loaded; None for models made in Python."""
        return None if self.choice is None else self.choice.name

    @property
    def label(self) -> str:
        """The models' name and settings, for people: "h100, framework=torchrec, dense_ms=8"."""
        return "models without a name" if self.choice is None else str(self.choice)

    def in_torchrec_if_known(self) -> "CostModels":
        """Return models that include the framework overhead of TorchRec (`in_torchrec`), if the overhead is known and
        the user did not choose a `framework`. Otherwise, return the models unchanged.
        """
        unset = self.choice is None or self.choice.framework is None
        return self.in_torchrec() if unset and self.framework is not None else self

    def _chosen(self, **settings: Any) -> "CostModels":
        """Return a copy of the models in which `choice` has the given settings, for example `_chosen(dense_ms=8.0)`.
        `choice` records the name and the settings with which the models were loaded; predictions do not depend on
        `choice`. Models made in Python have no `choice`, and are returned unchanged.
        """
        return self if self.choice is None else replace(self, choice=replace(self.choice, **settings))

    def _in_steps(self) -> "CostModels":
        """Return a copy of the models with the framework overhead of TorchRec added, if the models are computed from a
        datasheet and do not have this overhead yet. Otherwise, return the models unchanged.
        The added overhead was measured on an H100, and is scaled by memory bandwidth.

        The hosts of other GPUs are assumed to be equally fast; work on devices is scaled with their memory bandwidth.
        """
        if self.framework is not None:
            return self
        from neuroshard.models.roofline import datasheet_of  # most models are no datasheets

        if (sheet := datasheet_of(self.compute)) is None:
            return self
        framework = CostModels.load(_MEASURED).framework
        measured = datasheet_of(CostModels.load(f"{ROOFLINE}{_MEASURED}").compute)
        assert framework is not None and measured is not None
        return self.wrapped(framework=framework.scaled(measured.memory_gb_per_s / sheet.memory_gb_per_s))

    @property
    def dense_is_unknown(self) -> bool:
        """True if predicted costs depend on the time of the dense network, and this time (`dense_ms`) is not set."""
        return any(isinstance(part, HostWait) and part.dense_ms is None for part in self.more)

    def with_dense_ms(self, dense_ms: float) -> "CostModels":
        """Return a copy of the models for training steps whose dense network takes `dense_ms` ms on a device.
        The longer the dense network takes, the less time devices spend waiting until their hosts launch work.

        Costs still leave out the time of the dense network itself. The choice of the models has the new dense_ms.

        Raises:
            UserError: the models do not count the time in which hosts launch steps, or have a dense network already.
            ValueError: `dense_ms` is negative or not finite.
        """
        if not 0 <= dense_ms < float("inf"):
            raise ValueError(f"dense_ms is {dense_ms}; the time of a dense network is finite, and 0 ms or more")
        if not self.dense_is_unknown:
            given = settings_text({"dense_ms": float(dense_ms)})
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
        """Return a warning, as a tuple with one message, if predicted costs do not include the overhead of `framework`.
        Return an empty tuple if predicted costs include framework overhead.
        """
        if self.of_whole_steps:
            return ()
        knowing = "Load models that know this overhead (cpu, h100 or roofline:NAME, with framework=torchrec), or use"
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
        """Load cost models by name, such as "h100", or from the directory of a bundle.

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
            UserError: the bundle is missing, truncated, or made for other features; the datasheet does not exist; or a
                setting is unknown, or does not fit the models.
        """
        if unknown := next((one for one in links if one not in LINKS), None):
            raise TypeError(f"load() got an unexpected keyword argument {unknown!r}")
        return cls.of(ModelChoice(str(name), framework, dense_ms, exchange_dtype, optimizer, **links))

    @classmethod
    def of(cls, choice: ModelChoice, usual_framework: str | None = None) -> "CostModels":
        """Load the cost models that `choice` names, and apply the settings in `choice`, such as the optimizer.
        If `choice` does not name a framework, the costs include the overhead of `usual_framework`, provided that the
        models know this overhead.

        Precisions apply first, because the time of a conversion is taken from models of fp32; the dense network is set
        last.

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
        return models if choice.dense_ms is None else models.with_dense_ms(choice.dense_ms)

    def _linked(self, choice: ModelChoice) -> "CostModels":
        """Return a copy of the models with exchange times for the links in `choice`, such as network=roce (a RoCE
        network).
        Only analytic exchange models, which are computed from a datasheet, can predict times for other links. If
        `choice` has no links, return the models unchanged.

        Raises:
            UserError: the models have no analytic exchange times, or the links do not exist on their GPU.
        """
        if not choice.links:
            return self
        from neuroshard.models.links import chosen_links  # most models are without

        linked = self.with_links(chosen_links(choice))
        if linked is self:
            raise UserError(
                "models-ignore-links",
                f"the cost models {choice.name!r} cannot take {settings_text(choice.links)}",
                limit="these cost models have exchange times that were measured on other links",
                remedy=f"Leave out {', '.join(choice.links)}, or choose analytic cost models ({ROOFLINE}NAME)",
            )
        return linked._chosen(**choice.links)

    def with_links(self, change: "Change") -> "CostModels":
        """Return a copy of the models with exchange times for other links between devices, such as another network.
        `change` is a function that takes an analytic exchange model and returns the model for the other links. Analytic
        models are computed from a datasheet; all other exchange models remain unchanged.

        If neither embeddings nor gradients have an analytic exchange model, the models are returned unchanged.
        """
        from neuroshard.models.links import with_links

        forward, backward = (with_links(model, change) for model in (self.forward, self.backward))
        if forward is self.forward and backward is self.backward:
            return self
        index_dist = None if self.input is None else with_links(self.input, change)
        return self.wrapped(forward=forward, backward=backward, input=index_dist)

    def _exchanging(self, dtype: str | None) -> "CostModels":
        """Return a copy of the models for exchanges of embeddings and gradients in the data type `dtype`, such as
        "fp16"; the unchanged models if `dtype` is None.
        """
        if dtype is None:
            return self
        from neuroshard.models.precision import conversions, precisions_named  # most models are without

        forward, backward = precisions_named(dtype)
        more = (*self.more, *conversions(self.compute, self.framework, forward, backward))
        models = self.wrapped(forward_precision=forward, backward_precision=backward, more=more)
        return models._chosen(exchange_dtype=dtype)

    @classmethod
    def _named(cls, name: str, optimizer: str | None) -> "CostModels":
        shipped = shipped_path(name)
        if shipped is None and not os.path.lexists(name):
            check_plain(name)
        if name.startswith(ROOFLINE):
            sheet = name.removeprefix(ROOFLINE)
            models: CostModels = build("roofline", sheet, **({} if optimizer is None else {"optimizer": optimizer}))
            config = json.dumps(described("roofline", sheet), sort_keys=True)
            digest = hashlib.sha256(config.encode()).hexdigest()
            return replace(models, choice=ModelChoice(name, optimizer=optimizer), sheet=sheet, digest=digest)
        if shipped is None and not os.path.lexists(name) and Path(name).name == name:
            if f"{ROOFLINE}{name}" in known_names():
                raise UserError(
                    "model-name-lacks-roofline",
                    f"unknown cost models {name!r}",
                    remedy=f"Did you mean '{ROOFLINE}{name}'?",
                )
            raise unknown_name("cost models or directory", name, known_names())
        bundle = shipped or Path(name)
        loaded, card, digest = read_bundle(bundle)
        if optimizer is not None:
            raise UserError(
                "models-ignore-optimizer",
                f"the cost models {name!r} cannot take optimizer={optimizer}",
                limit="these cost models are fitted to kernels that were measured with one optimizer",
                remedy=f"Leave out optimizer, or choose analytic cost models ({ROOFLINE}NAME)",
            )
        choice = ModelChoice(name if shipped is not None else str(bundle.absolute()))
        return cls(**loaded, choice=choice, hardware=card.hardware, versions=card.versions, digest=digest)


def load_bundle(path: Path) -> tuple[CostModels, Card]:
    """Load the cost models and the model card from a bundle that `save_bundle` wrote.

    Raises:
        UserError: a file is missing, was changed, or has invalid content; or the models were made for other features.
    """
    loaded, card, _ = read_bundle(path)
    return CostModels(**loaded), card
