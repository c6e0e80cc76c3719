"""Sets of cost models, and bundles of them on disk: `bundle.json`, which describes the models, and their weights.

A bundle is one unit. The file of weights is named by the hash of its content; `bundle.json` names it and is written
last: replacing it replaces the whole bundle at once, whenever a run ends and whatever else is in the directory.
"""

import hashlib
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import safetensors.numpy
from msgspec import Meta
from safetensors import SafetensorError

from neuroshard.cost.cost import BACKWARD, COMPUTE, FORWARD, INPUT, PARTS
from neuroshard.models.comm_models import COMM_KINDS, ExchangeModels
from neuroshard.models.interface import CommModel, ComputeModel, PartModel, SumModel
from neuroshard.models.kernels import COMPUTE_KINDS, KernelModels
from neuroshard.models.origin import Origin, margins_with
from neuroshard.models.parts import Framework, FrameworkPart, InputExchange
from neuroshard.models.roofline import RooflineComm
from neuroshard.models.stored import Described, Stored, Tensors, tensors_of
from neuroshard.models.trust import Card, Margin, Margins, Ranges
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import check_directory, read_bytes, read_json, write_atomically, write_json
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import BatchSize, decode, parse
from neuroshard.tasks.task import Task
from neuroshard.words.collective import Precision, name_of
from neuroshard.words.form import CALLS, IN_COLUMNS, Call, Forms
from neuroshard.words.placement import Tier

_FAMILY = "neuroshard-bundle-"
_FORMAT = f"{_FAMILY}4"
_NAME = "bundle.json"
_LEFT_BEHIND = re.compile(
    r"weights-[0-9a-f]{64}\.safetensors|\.(weights-[0-9a-f]{64}\.safetensors|bundle\.json)\.\d+\.tmp"
)
_AGAIN = "Make the bundle again with `neuroshard pretrain`"
_RESTORE = "Restore the file, or make the bundle again with `neuroshard pretrain`"
_OTHER_MODELS = "choose cost models that know these costs, such as model=roofline:h100"
_COMPUTE_KINDS = COMPUTE_KINDS | {KernelModels.kind: KernelModels}
_COMM_KINDS = COMM_KINDS | {ExchangeModels.kind: ExchangeModels, RooflineComm.kind: RooflineComm}
_KINDS: dict[str, dict[str, Any]] = {
    "compute": _COMPUTE_KINDS, "forward": _COMM_KINDS, "backward": _COMM_KINDS, INPUT: _COMM_KINDS,
    "framework": {Framework.kind: Framework},
}  # fmt: skip


@dataclass(frozen=True)
class ModelSet:
    """Cost models of computation, forward and backward communication.

    Attributes:
        batch_size: the only global batch size that the models know; None if they know any.
        ranges: ranges of the training data; None if they are unknown.
        margins: margins of predictions; None if they are unknown.
        input: model of the input dist, the exchange of indices and lengths, by itself (`Traffic.alone`); None if that
            is unknown.
        framework: framework overhead of TorchRec in a step, which counts in models of `in_torchrec`; None if that is
            unknown.
        more: other parts of a step; bundles don't hold them.
        forward_precision, backward_precision: data types of embeddings and of gradients in exchanges; a property of
            steps, which bundles don't hold and which stays if a model is replaced.
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
    origin: Origin | None = field(default=None, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        kept = frozenset(PARTS)
        if self.origin is not None:
            kept = self.origin.kept - self.origin.replaced(self)
            for name, value in self.origin.corrected(self).items():
                object.__setattr__(self, name, value)
        object.__setattr__(self, "origin", Origin.of(self, kept))

    def with_compute(self, model: ComputeModel, margins: Margin | None = None) -> Self:
        """Return the models with another model of kernels.

        Facts about the replaced model are dropped: its margins, ranges and provenance, and so the name and digest of
        the whole set.

        Args:
            model: the new model, of all kernel calls.
            margins: margin of its predictions; None if that is unknown. The search then assumes a margin.
        """
        return self._with(COMPUTE, model, margins)

    def with_forward(self, model: CommModel, margins: Margin | None = None) -> Self:
        """Return the models with another model of the forward exchanges (embeddings), as `with_compute` does."""
        return self._with(FORWARD, model, margins)

    def with_backward(self, model: CommModel, margins: Margin | None = None) -> Self:
        """Return the models with another model of the backward exchanges (gradients), as `with_compute` does."""
        return self._with(BACKWARD, model, margins)

    def with_input(self, model: CommModel, margins: Margin | None = None) -> Self:
        """Return the models with another model of the input dist, as `with_compute` does."""
        return self._with(INPUT, model, margins)

    def _with(self, name: str, model: ComputeModel | CommModel, margin: Margin | None) -> Self:
        changed: dict[str, Any] = {name: model}
        models = replace(self, **changed)
        if margin is None:
            return models
        known = models.margins or Margins(None, None, None)
        return replace(models, margins=margins_with(known, name, margin))

    def wrapped(self, **models: Any) -> Self:
        """Return the models with some of them wrapped, by name: margins and provenance stay valid."""
        kept = frozenset(PARTS) if self.origin is None else self.origin.kept
        return replace(self, origin=Origin({}, {}, kept), **models)

    @property
    def parts(self) -> tuple[PartModel, ...]:
        """The parts of a step other than compute and communication."""
        return (*([] if self.input is None else [InputExchange(self.input)]), *self.more)

    @property
    def of_whole_steps(self) -> bool:
        """True if costs count the framework overhead of TorchRec, in addition to kernels and exchanges."""
        return any(isinstance(part, FrameworkPart) for part in self.more)

    def in_torchrec(self) -> Self:
        """Return models that count the framework overhead of TorchRec, with kernels as fast as they are in a step.

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
        return self.wrapped(compute=compute, framework=None, more=(*self.more, *self.framework.parts))

    @property
    def num_devices(self) -> int | None:
        """Number of devices that the communication models serve; None for any."""
        return self.forward.num_devices

    @property
    def forms(self) -> Forms:
        """The families of sharding types (`Form`) whose costs all three models know."""
        return self.compute.forms & self.forward.forms & self.backward.forms

    def check_plan(self, plan: Plan) -> None:
        """Raise UserError unless the models know costs of the sharding types and tiers of `plan`."""
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
        """Raise UserError unless the models know the exchanges of a plan's tables whose rows are on one host."""
        for which in dict.fromkeys(which for layout in plan.layouts for which in layout.host_exchanges):
            known = self.forward.collectives & self.backward.collectives
            if which not in known and plan.traffic.given(which).any():
                raise UserError(
                    "models-lack-collective",
                    f"these cost models do not know the costs of the collective {name_of(which)!r}",
                    limit="the plan's table_row_wise tables need this collective",
                    remedy=f"Do one of these: add {name_of(which)} to comm.collectives, then collect and pretrain "
                    "again; make the tables row_wise; or choose cost models that know this collective, such as "
                    "model=roofline:h100",
                )

    def _check_call(self, call: Call, what: str) -> None:
        """Raise UserError unless the models know a kernel call of sequence tables or of tables in host memory."""
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
        """Raise UserError unless the models can cost plans of `task`."""
        if self.num_devices not in (None, task.topology.num_devices):
            raise UserError(
                "models-devices-differ",
                f"the cost models are for {number_of(self.num_devices or 0, 'device')}",
                limit=f"the task has {number_of(task.topology.num_devices, 'device')}",
                remedy=f"Collect data with comm.num_devices=[{task.topology.num_devices}] and pretrain cost models on "
                "the data",
            )
        first_tables: dict[tuple[bool, Tier], str] = {}  # of each call: tasks are checked with every plan
        for table, home in zip(task.tables, task.tier_assignments, strict=True):
            first_tables.setdefault((table.pooled, home.tier), table.name)
        for (pooled, tier), name in first_tables.items():
            self._check_call(replace(IN_COLUMNS, pooled=pooled, tier=tier), f"sequence tables such as {name!r}")
        if self.batch_size not in (None, task.batch_size):
            raise UserError(
                "models-batch-size-differs",
                f"the cost models are for batch size {self.batch_size}",
                limit=f"the task has batch size {task.batch_size}",
                remedy=f"Set batch_size={self.batch_size}, or collect data with batch_size={task.batch_size} and "
                "pretrain cost models on the data",
            )


@dataclass(frozen=True)
class _Models:
    compute: Described
    forward: Described
    backward: Described
    input: Described | None = None
    framework: Described | None = None


@dataclass(frozen=True)
class _Content:
    """`bundle.json`; the card stands before what only programs read. `weights` is the SHA-256 of the weights' file."""

    format: Literal["neuroshard-bundle-4"]
    card: Card
    models: _Models
    weights: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    batch_size: BatchSize | None
    ranges: Ranges | None
    margins: Margins | None


def check_place(path: Path) -> None:
    """Raise UserError if a bundle can't be written to the directory `path`: nothing can, or something else is there."""
    if path.exists() and not path.is_dir():
        raise UserError(
            "bundle-place-is-file",
            f"'{path}' is a file",
            limit="out must be a directory, to which the model bundle is written",
            remedy="Set out=DIRECTORY to another directory",
        )
    check_directory(path)
    if not (path / _NAME).exists():
        return
    try:
        _check_format(read_json(path / _NAME, "model bundle"), path)
    except UserError as error:
        raise error.changed(
            remedy=f"Set out=DIRECTORY to another directory, or remove the file '{path / _NAME}'. Nothing was "
            "overwritten"
        ) from None


def save_bundle(path: Path, models: ModelSet, card: Card) -> None:
    """Write the models and their card: the bundle that was there, if one was, is whole until the new one is.

    Nothing but what bundles consist of is touched. One at a time may write there (`files.exclusive`).

    Raises:
        OSError: the disk is full, or it can't be written to; the old bundle is still there.
        UserError: the models have parts that bundles don't hold.
    """
    if models.more:
        names = ", ".join(repr(part.name) for part in models.more)
        raise UserError(
            "bundle-models-have-more",
            f"the field `more` of the cost models has parts of a step ({names})",
            limit="a model bundle cannot store the parts in `more`",
            remedy="Save the models without these parts: `dataclasses.replace(models, more=())`",
        )
    held: dict[str, Any] = {name: getattr(models, name) for name in _KINDS}
    stored: dict[str, Stored] = {name: model for name, model in held.items() if model is not None}
    weights = safetensors.numpy.save(tensors_of(stored))
    digest = hashlib.sha256(weights).hexdigest()
    described = _Models(**{name: Described.of(model) for name, model in stored.items()})
    content = _Content("neuroshard-bundle-4", card, described, digest, models.batch_size, models.ranges, models.margins)
    write_atomically(_weights_file(path, digest), weights)
    write_json(path / _NAME, asdict(content))
    for file in path.iterdir():
        if _LEFT_BEHIND.fullmatch(file.name) and file != _weights_file(path, digest):
            file.unlink()


def load_bundle(path: Path) -> tuple[ModelSet, Card]:
    """Load the models and card that `save_bundle` wrote.

    Raises:
        UserError: a file is missing, was changed, or holds what no sound bundle does; or the models were made for other
            features.
    """
    return load_with_digest(path)[:2]


def load_with_digest(path: Path) -> tuple[ModelSet, Card, str]:
    """Load the models, their card and the SHA-256 of `bundle.json`, of one bundle even while another replaces it.

    Raises:
        UserError: as `load_bundle`.
    """
    content, weights, digest = _read(path)
    tensors = _tensors(path, weights, content.weights)
    described = ((name, getattr(content.models, name)) for name in _KINDS)
    loaded = {name: _restored(path, name, one, tensors) for name, one in described if one is not None}
    models = ModelSet(**loaded, batch_size=content.batch_size, ranges=content.ranges, margins=content.margins)
    if models.forward.num_devices != models.backward.num_devices:
        forward, backward = (one.num_devices or "any number of" for one in (models.forward, models.backward))
        raise UserError(
            "bundle-directions-differ",
            f"the model of forward exchanges is for {forward} devices, but the model of backward exchanges is for "
            f"{backward} devices",
            where=f"model bundle {path}",
            limit="both must be for the same number of devices",
            remedy=_AGAIN,
        )
    return models, content.card, digest


def _read(path: Path) -> tuple[_Content, bytes, str]:
    """Read `bundle.json`, the weights that it names, and its digest, of one bundle even while another replaces it."""
    while True:
        described = read_bytes(path / _NAME, "model bundle")
        content = decode(described, f"model bundle {path / _NAME}")
        _check_format(content, path)
        sound = parse(content, _Content, f"model bundle {path}")
        file = _weights_file(path, sound.weights)
        try:
            if file.is_file():
                return sound, file.read_bytes(), hashlib.sha256(described).hexdigest()
        except FileNotFoundError:  # replaced this moment
            pass
        except OSError as error:
            raise UserError(
                "bundle-weights-unreadable",
                f"the file '{file}' cannot be read",
                limit=str(error),
                remedy="Make the file readable, or choose other cost models",
            ) from None
        if read_bytes(path / _NAME, "model bundle") == described and not file.is_file():
            raise UserError(
                "bundle-weights-missing",
                f"there is no file '{file.name}'",
                where=f"model bundle {path}",
                limit=f"{_NAME} says that the weights are in this file",
                remedy=_RESTORE,
            )


def _weights_file(path: Path, digest: str) -> Path:
    return path / f"weights-{digest}.safetensors"


def _check_format(content: object, path: Path) -> None:
    its_format = content.get("format") if isinstance(content, dict) else None
    if its_format == _FORMAT:
        return
    if isinstance(its_format, str) and its_format.startswith(_FAMILY):
        raise UserError(
            "bundle-format-of-other-version",
            f"the directory '{path}' has a model bundle of format {its_format:.40}, which another version of "
            "neuroshard wrote",
            limit=f"this version reads only format {_FORMAT}",
            remedy=_AGAIN,
        )
    raise UserError(
        "bundle-format-unknown",
        f"the directory '{path}' is not a model bundle",
        limit=f"the {_NAME} of a model bundle has the format {_FORMAT!r}",
        remedy="Give the directory of a model bundle, or make a model bundle with `neuroshard pretrain`",
    )


def _tensors(path: Path, weights: bytes, digest: str) -> Tensors:
    if hashlib.sha256(weights).hexdigest() != digest:
        raise UserError(
            "bundle-weights-damaged",
            f"the file '{_weights_file(path, digest)}' was changed or damaged",
            limit="the SHA-256 of the file's content differs from the SHA-256 in the file's name",
            remedy=_RESTORE,
        )
    try:
        return dict(safetensors.numpy.load(weights))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            "bundle-weights-malformed",
            f"the file '{_weights_file(path, digest)}' is malformed",
            limit=str(error),
            remedy=_AGAIN,
        ) from None


def _restored(path: Path, name: str, described: Described, tensors: Tensors) -> Any:
    try:
        model = described.restored(_KINDS[name], name, tensors)
        own = {key for key in tensors if key.startswith(f"{name}.")}
        if surplus := own.difference(f"{name}.{key}" for key in model.tensors()):
            raise ValueError(f"tensor {min(surplus).removeprefix(f'{name}.')!r} is not part of the model")
        return model
    except UserError as error:
        raise error.at(f"model bundle {path}, {name} model").changed(remedy=_AGAIN) from None
    except ValueError as error:
        raise UserError(
            "bundle-model-malformed",
            f"the {name} model is malformed",
            where=f"model bundle {path}",
            limit=str(error),
            remedy=_AGAIN,
        ) from None
