"""Bundles: a directory with one safetensors file per model, `bundle.json` and a `card.json` for people."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from neuroshard.errors import UserError, unknown_name
from neuroshard.files import read_json, write_atomically, write_json
from neuroshard.models.additive import AdditiveCompute
from neuroshard.models.cost_models import CostModels
from neuroshard.models.ensemble import ComputeEnsemble
from neuroshard.models.mlp import Tensors
from neuroshard.models.neural import NeuralComm, NeuralCompute
from neuroshard.models.set_comm import SetComm
from neuroshard.models.trust import Margin, Margins, Range, Ranges

_FORMAT = "neuroshard-bundle-2"
_NAMES = ("compute", "forward", "backward")


class Storable(Protocol):
    """A model that a bundle can hold."""

    @property
    def kind(self) -> str:
        """Its class's name in bundles."""
        ...

    def settings(self) -> dict[str, Any]:
        """What isn't a tensor, for JSON."""
        ...

    def tensors(self) -> Tensors:
        """Everything else."""
        ...

    @classmethod
    def restored(cls, settings: dict[str, Any], tensors: Tensors) -> Self:
        """The model that gave the settings and tensors; ValueError if they can't be one's."""
        ...


_COMPUTE_KINDS: dict[str, Any] = {kind.kind: kind for kind in (NeuralCompute, AdditiveCompute, ComputeEnsemble)}
_COMM_KINDS: dict[str, Any] = {kind.kind: kind for kind in (NeuralComm, SetComm)}


@dataclass(frozen=True)
class Card:
    """Where a bundle comes from and how good it is.

    Attributes:
        hardware, versions: of the machine that was measured.
        data: the data directory, its seed and number of samples.
        training: settings of the networks and of the training.
        metrics: of each model, on tables never seen in training, with the noise floor beside them.
    """

    hardware: dict[str, Any]
    versions: dict[str, str]
    data: dict[str, Any]
    training: dict[str, Any]
    metrics: dict[str, Any]


def save_bundle(path: Path, models: CostModels, card: Card) -> None:
    """Write the models and their card; `bundle.json` comes last, so a bundle that has it is whole."""
    described = {}
    for name in _NAMES:
        model: Storable = getattr(models, name)
        write_atomically(path / f"{name}.safetensors", partial(save_file, model.tensors()))
        described[name] = {"kind": model.kind, "settings": model.settings()}
    write_json(path / "card.json", asdict(card))
    content = {
        "format": _FORMAT,
        "models": described,
        "batch_size": models.batch_size,
        "ranges": None if models.ranges is None else asdict(models.ranges),
        "margins": None if models.margins is None else asdict(models.margins),
    }
    write_json(path / "bundle.json", content)


def load_bundle(path: Path) -> tuple[CostModels, Card]:
    """The models and card that `save_bundle` wrote.

    Raises:
        UserError: a file is missing or truncated, or the models were made for other features.
    """
    content = read_json(path / "bundle.json", "model bundle")
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise UserError(f"{path} is not a model bundle of format {_FORMAT!r}; make one with neuroshard pretrain")
    try:
        described, ranges, margins = content["models"], content["ranges"], content["margins"]
        kinds = (_COMPUTE_KINDS, _COMM_KINDS, _COMM_KINDS)
        compute, forward, backward = (
            _load_model(path, name, described[name], known) for name, known in zip(_NAMES, kinds, strict=True)
        )
        models = CostModels(
            compute,
            forward,
            backward,
            content["batch_size"],
            None if ranges is None else Ranges(**{name: Range(**fields) for name, fields in ranges.items()}),
            None if margins is None else Margins(**{name: Margin(**fields) for name, fields in margins.items()}),
        )
        card = Card(**read_json(path / "card.json", "model card"))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"model bundle {path} is malformed: {error}; make it again with neuroshard pretrain") from None
    if models.forward.num_devices != models.backward.num_devices:
        raise UserError(f"model bundle {path} is malformed: its two directions are for different numbers of devices")
    return models, card


def _load_model(path: Path, name: str, described: Any, kinds: dict[str, Any]) -> Any:
    file = path / f"{name}.safetensors"
    if described["kind"] not in kinds:
        raise unknown_name(f"kind of {name} model in {path}", described["kind"], kinds)
    try:
        return kinds[described["kind"]].restored(described["settings"], dict(load_file(file)))
    except FileNotFoundError:
        raise UserError(f"model bundle {path} lacks {file.name}; make it again with neuroshard pretrain") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} is truncated or corrupt ({error}); make the bundle again") from None
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    except ValueError as error:
        raise UserError(f"{file} is malformed: {error}; make the bundle again with neuroshard pretrain") from None
