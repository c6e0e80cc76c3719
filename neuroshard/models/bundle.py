"""Bundles: directories that store cost models on disk, with the description in `bundle.json` and the weights in another
file.

A bundle is one unit. The file of weights is named by the hash of its content; `bundle.json` names it and is written
last: replacing it replaces the whole bundle at once, whenever a run ends and whatever else is in the directory.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import safetensors.numpy
from msgspec import Meta
from safetensors import SafetensorError

from neuroshard.cost.cost import BACKWARD, FORWARD, INPUT
from neuroshard.models.comm_models import COMM_KINDS, ExchangeModels
from neuroshard.models.kernels import COMPUTE_KINDS, KernelModels
from neuroshard.models.parts import Framework
from neuroshard.models.roofline import RooflineComm
from neuroshard.models.stored import Described, Stored, Tensors, tensors_of
from neuroshard.models.trust import Margins, Ranges, fields_of
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.files import check_directory, read_bytes, read_json, write_atomically, write_json
from neuroshard.plumbing.schema import BatchSize, Count, Devices, NonNegative, Seed, Share, decode, parse, shown
from neuroshard.words.fingerprint import Fingerprint

if TYPE_CHECKING:
    from neuroshard.models.cost_models import CostModels

_FAMILY = "neuroshard-bundle-"
_FORMAT = f"{_FAMILY}4"
_NAME = "bundle.json"
_LEFT_BEHIND = re.compile(
    r"weights-[0-9a-f]{64}\.safetensors|\.(weights-[0-9a-f]{64}\.safetensors|bundle\.json)\.\d+\.tmp"
)
_AGAIN = "Make the bundle again with `neuroshard pretrain`"
_RESTORE = "Restore the file, or make the bundle again with `neuroshard pretrain`"
_COMPUTE_KINDS = COMPUTE_KINDS | {KernelModels.kind: KernelModels}
_COMM_KINDS = COMM_KINDS | {ExchangeModels.kind: ExchangeModels, RooflineComm.kind: RooflineComm}
_KINDS: dict[str, dict[str, Any]] = {
    "compute": _COMPUTE_KINDS, "forward": _COMM_KINDS, "backward": _COMM_KINDS, INPUT: _COMM_KINDS,
    "framework": {Framework.kind: Framework},
}  # fmt: skip


@dataclass(frozen=True)
class Accuracy:
    """Prediction errors of a cost model on measured samples: mean squared error, MAPE and Kendall's tau.

    Attributes:
        samples: number of samples.
        mse: mean squared error, ms squared.
        mape: mean absolute error relative to the measurement.
        kendall_tau: agreement of the two orders, -1 to 1.
        decile_mape: (10,) MAPE of each tenth of the measurements, cheapest first.
    """

    samples: Count
    mse: NonNegative
    mape: NonNegative
    kendall_tau: Annotated[float, Meta(ge=-1, le=1)]
    decile_mape: tuple[NonNegative, ...]


@dataclass(frozen=True)
class ModelTest:
    """Test result of a cost model: the errors on tables that never occurred in training, and the noise floor. The noise
    floor is the difference between two measurements of the same sample.

    The noise floor compares two passes over the same samples: no model can predict either pass better.

    `coverage` is the share of the measurements inside the model's 90% intervals.
    """

    test: Accuracy
    noise_mean: NonNegative
    noise_p50: NonNegative
    noise_p90: NonNegative
    coverage: Share


@dataclass(frozen=True)
class ModelTests:
    """Test results of the cost models in a bundle. `compute` is the test of kernel calls of column-wise tables, and
    `forward` and `backward` are the tests of all-to-alls. `others` has the tests of all other parts of a step, by name
    of the part.

    `forward` and `backward` are None if exchanges were not measured: a datasheet predicts them.
    """

    compute: ModelTest
    forward: ModelTest | None = None
    backward: ModelTest | None = None
    others: dict[str, ModelTest] = field(default_factory=dict)

    @classmethod
    def of(cls, tests: dict[str, ModelTest]) -> "ModelTests":
        """Return a `ModelTests` with the given test results.
        The keys of the dict `tests` are the names of the parts of a step, such as "forward".
        """
        return cls(**fields_of(tests))


@dataclass(frozen=True)
class DataSummary:
    """Summary of the data that cost models were fitted to: the name of the data directory, the seed of the run that
    measured the data, the numbers of samples in each split, the batch sizes, and the numbers of devices.

    `other_samples` are of other kernel calls and collectives than pooled column-wise tables and all-to-alls, by the
    names of their parts.
    """

    directory: str
    seed: Seed
    compute_samples: dict[str, Count]
    comm_samples: dict[str, Count]
    batch_sizes: tuple[BatchSize, ...]
    num_devices: tuple[Devices, ...]
    other_samples: dict[str, dict[str, Count]] = field(default_factory=dict)


@dataclass(frozen=True)
class Card:
    """Model card of a bundle: the hardware, versions,
    data and settings that the models come from, and the test results.

    Attributes:
        hardware: the machine that was measured; None if that is unknown.
        versions: versions of Python and the packages on that machine.
        data: the data that the models were fitted to; None if that is unknown.
        training: settings of the networks and of the training, for people.
        metrics: metrics of each model, on tables never seen in training, with the noise floor; None if unknown.
        moved_gb_per_s: quartiles, over kernel calls of column-wise tables, of the rate at which they move the bytes
            that they must move; None if unknown. Divided by the rate of a memory copy, this is the share of the
            bandwidth that the calls reach.
    """

    hardware: Fingerprint | None = None
    versions: dict[str, str] = field(default_factory=dict)
    data: DataSummary | None = None
    training: dict[str, Any] = field(default_factory=dict)
    metrics: ModelTests | None = None
    moved_gb_per_s: tuple[NonNegative, NonNegative, NonNegative] | None = None


@dataclass(frozen=True)
class _Models:
    compute: Described
    forward: Described
    backward: Described
    input: Described | None = None
    framework: Described | None = None


@dataclass(frozen=True)
class _Content:
    """The content of `bundle.json`: the model card, which people read, followed by the settings from which programs
    rebuild the models.

    `weights` is the SHA-256 of the file of weights.
    """

    format: Literal["neuroshard-bundle-4"]
    card: Card
    models: _Models
    weights: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    batch_size: BatchSize | None
    ranges: Ranges | None
    margins: Margins | None


def check_place(path: Path) -> None:
    """Raise UserError if a bundle cannot be written to the directory `path`, because the directory is not writable or
    already has a `bundle.json` of an unknown format.
    """
    if os.path.lexists(path) and not path.is_dir():
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


def save_bundle(path: Path, models: "CostModels", card: Card) -> None:
    """Write cost models and their model card as a bundle to the directory `path`.
    An old bundle in this directory stays complete until the new bundle is complete.

    Only files of bundles are written or removed. Only one process at a time may write a bundle (`files.exclusive`).

    Raises:
        OSError: the disk is full or not writable; the old bundle is still there.
        UserError: the models have parts, or models of kinds, that bundles cannot store.
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
    for name, model in stored.items():
        check_kind(model, _KINDS[name])
    weights = safetensors.numpy.save(tensors_of(stored))
    digest = hashlib.sha256(weights).hexdigest()
    described = _Models(**{name: Described.of(model) for name, model in stored.items()})
    content = _Content("neuroshard-bundle-4", card, described, digest, models.batch_size, models.ranges, models.margins)
    write_atomically(_weights_file(path, digest), weights)
    write_json(path / _NAME, asdict(content))
    for file in path.iterdir():
        if _LEFT_BEHIND.fullmatch(file.name) and file != _weights_file(path, digest):
            file.unlink()


def check_kind(model: object, kinds: Mapping[str, type]) -> None:
    """Raise UserError if the class of a model is not among the classes in `kinds`, which bundles can store."""
    if type(model) not in kinds.values():
        raise UserError(
            "bundle-kind-unknown",
            f"a bundle cannot store a model of the class {type(model).__name__}",
            limit=f"bundles store only models of the classes {', '.join(kind.__name__ for kind in kinds.values())}",
            remedy="Let the fitter return a model of one of these classes; or use the model in Python, by "
            "CostModels.with_compute, with_forward or with_backward",
        )


def read_bundle(path: Path) -> tuple[dict[str, Any], Card, str]:
    """Return the models, the model card and the SHA-256 of a bundle that `save_bundle` wrote.
    All three belong to the same bundle, even if another process replaces the bundle meanwhile.

    Returns:
        The fields of `CostModels` by name, the card, and the SHA-256 of `bundle.json`.

    Raises:
        UserError: a file is missing, was changed, or has invalid content; or the models were made for other features.
    """
    content, weights, digest = _read(path)
    tensors = _tensors(path, weights, content.weights)
    described = ((name, getattr(content.models, name)) for name in _KINDS)
    loaded = {name: _restored(path, name, one, tensors) for name, one in described if one is not None}
    if surplus := sorted(name for name in tensors if name.partition(".")[0] not in loaded):
        raise UserError(
            "bundle-tensor-unknown",
            f"tensor {shown(surplus[0])} is not part of a model",
            where=f"model bundle {path}",
            limit=f"{_NAME} describes the models {', '.join(loaded)}",
            remedy=_AGAIN,
        )
    directions = loaded[FORWARD], loaded[BACKWARD]
    if directions[0].num_devices != directions[1].num_devices:
        forward, backward = (one.num_devices or "any number of" for one in directions)
        raise UserError(
            "bundle-directions-differ",
            f"the model of forward exchanges is for {forward} devices, but the model of backward exchanges is for "
            f"{backward} devices",
            where=f"model bundle {path}",
            limit="both must be for the same number of devices",
            remedy=_AGAIN,
        )
    others = {"batch_size": content.batch_size, "ranges": content.ranges, "margins": content.margins}
    return loaded | others, content.card, digest


def _read(path: Path) -> tuple[_Content, bytes, str]:
    """Return the content of `bundle.json`, the weights in the file that `bundle.json` names,
    and the SHA-256 of `bundle.json`.

    All three are of one bundle, even if another process replaces the bundle meanwhile.
    """
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
