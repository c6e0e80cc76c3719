"""How bundles hold models: arrays and networks as tensors, everything else as settings in JSON."""

from dataclasses import dataclass, fields, make_dataclass
from functools import cache
from typing import Any, ClassVar, Self, get_args, get_type_hints

import numpy as np

from neuroshard.models.features import FeatureSet
from neuroshard.models.mlp import Mlp, Normaliser, Tensors, checked_tensor
from neuroshard.plumbing.schema import parse


@dataclass(frozen=True)
class Held:
    """How tensors hold a field of a model: under that name; of an array, its type and number of dimensions."""

    name: str
    dtype: type = np.float32
    dimensions: int = 1


class Stored:
    """A model that a bundle can hold: a dataclass whose arrays and networks say how (`Held`).

    Attributes:
        kind: its class's name in bundles.
    """

    kind: ClassVar[str]

    def settings(self) -> dict[str, Any]:
        """Return what isn't a tensor, for JSON."""
        found: dict[str, Any] = {}
        own: Any = type(self)
        for name, (_, held) in _fields(own).items():
            value = getattr(self, name)
            if isinstance(value, FeatureSet):
                found |= {name: value.name, "columns": value.columns}
            elif held is None:
                found[name] = value
        return found

    def tensors(self) -> Tensors:
        """Return arrays, and those of networks and normalisers, by name."""
        found: Tensors = {}
        for name, (_, held) in _tensors(type(self)).items():
            value = getattr(self, name)
            found |= value.tensors(held.name) if isinstance(value, Mlp | Normaliser) else {held.name: value}
        return found

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> Self:
        """The model that gave the settings and tensors.

        Raises:
            UserError: it was made for features of another version.
            ValueError: settings or tensors can't be such a model's.
        """
        own: Any = cls
        plain: dict[str, Any] = dict(vars(parse(settings, _settings(own), "settings")))
        if "features" in plain:
            plain["features"] = FeatureSet.checked(plain["features"], plain.pop("columns"))
        held = {name: _restored(kind, how, tensors) for name, (kind, how) in _tensors(cls).items()}
        model = cls(**plain, **held)
        model.check()
        return model

    def check(self) -> None:
        """Raise ValueError if its parts don't fit together, or costs could overflow."""


def tensors_of(models: dict[str, Stored]) -> Tensors:
    """The tensors of several models, each under its model's name and a dot."""
    return {f"{name}.{part}": tensor for name, model in models.items() for part, tensor in model.tensors().items()}


def _restored(kind: Any, held: Held, tensors: Tensors) -> Any:
    """The network, normaliser or array that tensors hold so."""
    if kind in (Mlp, Normaliser):
        return kind.restored(held.name, tensors)
    return checked_tensor(tensors, held.name, held.dtype, held.dimensions)


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, Held | None]]:
    """The types of a class's fields, by name, and how tensors hold them; None of those that are settings."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, tuple[Any, Held | None]] = {}
    for name in (field.name for field in fields(kind)):
        plain, *extras = get_args(hints[name]) or (hints[name],)
        held = next((extra for extra in extras if isinstance(extra, Held)), None)
        found[name] = (hints[name] if held is None else plain, held)
    return found


def _tensors(kind: Any) -> dict[str, tuple[Any, Held]]:
    """The types of the fields that are tensors, and how they are held, by name."""
    return {name: (hint, held) for name, (hint, held) in _fields(kind).items() if held is not None}


@cache
def _settings(kind: Any) -> Any:
    """The type of what JSON tells: of features their name and their columns' names."""
    found: list[tuple[str, Any]] = []
    for name, (hint, held) in _fields(kind).items():
        if held is None:
            found += [(name, str), ("columns", tuple[str, ...])] if hint is FeatureSet else [(name, hint)]
    return make_dataclass("Settings", found, frozen=True)
