"""Bundles: a directory with one safetensors file per model, `bundle.json` and a `card.json` for people."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from neuroshard.arrays import Float32Array
from neuroshard.errors import UserError
from neuroshard.features import FeatureSet
from neuroshard.files import read_json, write_atomically, write_json
from neuroshard.models.cost_models import CostModels
from neuroshard.models.mlp import Mlp, Normaliser
from neuroshard.models.neural import NeuralComm, NeuralCompute

_FORMAT = "neuroshard-bundle-1"
_Tensors = dict[str, Any]


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


@dataclass(frozen=True)
class NeuralModels(CostModels):
    """Cost models that a bundle can hold."""

    compute: NeuralCompute
    forward: NeuralComm
    backward: NeuralComm
    batch_size: int


def save_bundle(path: Path, models: NeuralModels, card: Card) -> None:
    """Write the models and their card; `bundle.json` comes last, so a bundle that has it is whole."""
    compute = models.compute
    _save_tensors(
        path / "compute.safetensors",
        _normaliser_tensors(compute.normaliser)
        | _mlp_tensors("table", compute.table_network)
        | _mlp_tensors("head", compute.head_network),
    )
    for name, model in (("forward", models.forward), ("backward", models.backward)):
        tensors = _normaliser_tensors(model.normaliser) | _mlp_tensors("network", model.network)
        _save_tensors(path / f"{name}.safetensors", tensors)
    write_json(path / "card.json", asdict(card))
    content = {
        "format": _FORMAT,
        "features": compute.features.name,
        "columns": list(compute.features.columns),
        "batch_size": models.batch_size,
        "num_devices": models.num_devices,
        "scale_ms": {
            "compute": compute.scale_ms,
            "forward": models.forward.scale_ms,
            "backward": models.backward.scale_ms,
        },
    }
    write_json(path / "bundle.json", content)


def load_bundle(path: Path) -> tuple[NeuralModels, Card]:
    """The models and card that `save_bundle` wrote.

    Raises:
        UserError: a file is missing or truncated, or the models were made for other features.
    """
    content = read_json(path / "bundle.json", "model bundle")
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise UserError(f"{path} is not a model bundle of format {_FORMAT!r}; make one with neuroshard pretrain")
    try:
        scale = {name: float(content["scale_ms"][name]) for name in ("compute", "forward", "backward")}
        features = _features(path, str(content["features"]), list(content["columns"]))
        models = NeuralModels(
            _load_compute(path / "compute.safetensors", features, scale["compute"]),
            _load_comm(path / "forward.safetensors", scale["forward"]),
            _load_comm(path / "backward.safetensors", scale["backward"]),
            int(content["batch_size"]),
        )
        card = Card(**read_json(path / "card.json", "model card"))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"model bundle {path} is malformed: {error}; make it again with neuroshard pretrain") from None
    if {models.forward.num_devices, models.backward.num_devices} != {content["num_devices"]}:
        raise UserError(f"model bundle {path} is malformed: its networks aren't for {content['num_devices']} devices")
    return models, card


def _features(path: Path, name: str, columns: list[str]) -> FeatureSet:
    features = FeatureSet(name)
    if columns != list(features.columns):
        raise UserError(
            f"model bundle {path} was made for other features ({', '.join(columns)}); "
            f"this version's {name!r} are {', '.join(features.columns)}; make it again with neuroshard pretrain"
        )
    return features


def _load_compute(path: Path, features: FeatureSet, scale_ms: float) -> NeuralCompute:
    tensors = _load_tensors(path)
    table, head = _mlp("table", tensors, path), _mlp("head", tensors, path)
    fits = table.widths[0] == len(features.columns) and table.widths[-1] == head.widths[0]
    if not fits or len(head.widths) != 3 or head.widths[-1] != 1:
        raise UserError(f"{path} is malformed: networks {table.widths} and {head.widths} don't fit the features")
    return NeuralCompute(features, _normaliser(tensors, table, path), table, head, scale_ms)


def _load_comm(path: Path, scale_ms: float) -> NeuralComm:
    tensors = _load_tensors(path)
    network = _mlp("network", tensors, path)
    if network.widths[0] != 2 * network.widths[-1]:
        raise UserError(f"{path} is malformed: network {network.widths} isn't from 2 D inputs to D costs")
    return NeuralComm(_normaliser(tensors, network, path), network, scale_ms)


def _save_tensors(path: Path, tensors: _Tensors) -> None:
    write_atomically(path, lambda temporary: save_file(tensors, temporary))


def _load_tensors(path: Path) -> _Tensors:
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise UserError(
            f"model bundle {path.parent} lacks {path.name}; make it again with neuroshard pretrain"
        ) from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is truncated or corrupt ({error}); make the bundle again") from None


def _normaliser_tensors(normaliser: Normaliser) -> _Tensors:
    return {"shift": normaliser.shift, "scale": normaliser.scale}


def _normaliser(tensors: _Tensors, network: Mlp, path: Path) -> Normaliser:
    if not tensors["shift"].shape == tensors["scale"].shape == (network.widths[0],):
        raise UserError(f"{path} is malformed: its normaliser doesn't fit its network")
    return Normaliser(tensors["shift"], tensors["scale"])


def _mlp_tensors(name: str, mlp: Mlp) -> _Tensors:
    pairs = enumerate(zip(mlp.weights, mlp.biases, strict=True))
    return {f"{name}.{i}.{part}": array for i, wb in pairs for part, array in zip(("weight", "bias"), wb, strict=True)}


def _mlp(name: str, tensors: _Tensors, path: Path) -> Mlp:
    count = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in tensors)
    weights: list[Float32Array] = [np.ascontiguousarray(tensors[f"{name}.{i}.weight"]) for i in range(count)]
    biases: list[Float32Array] = [tensors[f"{name}.{i}.bias"] for i in range(count)]
    ends = [weight.shape[1:] for weight in weights]
    if not weights or ends != [bias.shape for bias in biases] or ends[:-1] != [w.shape[:1] for w in weights[1:]]:
        raise UserError(f"{path} is malformed: the layers of {name!r} don't fit together")
    return Mlp(tuple(weights), tuple(biases))
