"""How a bundle (a directory with cost models) stores each model: arrays and networks as tensors, and everything else as
settings in JSON.

Networks are multi-layer perceptrons for inference in numpy: a small batch takes microseconds, and torch is not needed.
"""

from dataclasses import asdict, dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Self, get_args, get_type_hints

import numpy as np
from msgspec import Meta

from neuroshard.models.features import FeatureSet
from neuroshard.plumbing.arrays import Float32Array, FloatArray
from neuroshard.plumbing.errors import check_name
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.schema import parse

Scale = Annotated[float, Meta(gt=0, le=1e9)]  # ms
Offset = Annotated[float, Meta(ge=-1e9, le=1e9)]  # in multiples of the scale

Tensors = dict[str, Any]  # arrays by name, as safetensors reads and writes them

_LEFT_OUT = 1e9
_LEAST_DEVIATION = 0.05
_MOST_LAYERS = 16
_LARGEST_FEATURE = 1e18
_LARGEST_OUTPUT = 1e30  # limit for one table, so that sums over all tables stay finite in fp32


def within(tensors: Tensors, name: str) -> Tensors:
    """Return the tensors whose names begin with the prefix `name` and a dot, with this prefix removed
    from the names.
    """
    prefix = f"{name}."
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def checked_tensor(tensors: Tensors, name: str, dtype: type, dimensions: int) -> Any:
    """Return the tensor called `name`, after checks of its type, number of dimensions and values.

    Raises:
        ValueError: the tensor is missing, has another type or number of dimensions, is empty, or is not finite.
    """
    if name not in tensors:
        raise ValueError(f"tensor {name!r} is missing")
    tensor = tensors[name]
    if tensor.dtype != dtype or tensor.ndim != dimensions or not tensor.size:
        raise ValueError(
            f"tensor {name!r} is {tensor.dtype} of shape {tensor.shape}, but must be {np.dtype(dtype).name} with "
            f"{number_of(dimensions, 'dimension')}"
        )
    if not np.isfinite(tensor).all():
        raise ValueError(f"tensor {name!r} has values that are not finite")
    return tensor


@dataclass(frozen=True)
class Mlp:
    """A network for inference: linear layers, with (in, out) weights and (out,) biases, and ReLU between the layers."""

    weights: tuple[Float32Array, ...]
    biases: tuple[Float32Array, ...]

    def __call__(self, inputs: Float32Array) -> Float32Array:
        """Return the outputs (..., out) of the network for inputs (..., in)."""
        hidden = inputs @ self.weights[0] + self.biases[0]
        for weight, bias in zip(self.weights[1:], self.biases[1:], strict=True):
            hidden = np.maximum(hidden, 0) @ weight + bias
        return hidden

    def tensors(self, name: str) -> Tensors:
        """Return the weights and biases as tensors, whose names begin with `name`."""
        pairs = enumerate(zip(self.weights, self.biases, strict=True))
        return {f"{name}.{i}.{own}": t for i, wb in pairs for own, t in zip(("weight", "bias"), wb, strict=True)}

    @classmethod
    def restored(cls, name: str, tensors: Tensors) -> "Mlp":
        """Rebuild the network that was stored as `name`, and return the network.
        `tensors` has the weights and biases. If `name` is "head", the tensors are called "head.0.weight", "head.0.bias"
        and so on.

        Raises:
            ValueError: the tensors are not a network of finite weights.
        """
        count = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in tensors)
        if not 1 <= count <= _MOST_LAYERS:
            raise ValueError(f"network {name!r} has {count} layers; 1 to {_MOST_LAYERS} are possible")
        weights = [
            np.ascontiguousarray(checked_tensor(tensors, f"{name}.{i}.weight", np.float32, 2)) for i in range(count)
        ]
        biases = [checked_tensor(tensors, f"{name}.{i}.bias", np.float32, 1) for i in range(count)]
        ends = [weight.shape[1:] for weight in weights]
        if ends != [bias.shape for bias in biases] or ends[:-1] != [w.shape[:1] for w in weights[1:]]:
            raise ValueError(f"the shapes of the layers of network {name!r} do not fit together")
        return cls(tuple(weights), tuple(biases))

    def largest(self, inputs: float) -> float:
        """Return an upper bound of the magnitude of all outputs, if no input has a magnitude above `inputs`."""
        bound = inputs
        with np.errstate(over="ignore"):
            for weight, bias in zip(self.weights, self.biases, strict=True):
                bound = float((np.abs(weight.astype(np.float64)).sum(axis=0) * bound + np.abs(bias)).max())
        return bound

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of every layer, from the inputs to the outputs."""
        return (self.weights[0].shape[0], *(weight.shape[1] for weight in self.weights))


@dataclass(frozen=True)
class Normaliser:
    """Normalisation of features by statistics of the training data: (features - shift) / scale.

    The statistics never depend on the features that are predicted. `shift` and `scale` are (F,).
    """

    shift: FloatArray
    scale: FloatArray

    def __call__(self, features: FloatArray) -> Float32Array:
        """Return the normalised values, (n, F), of the features (n, F)."""
        return ((features - self.shift) / self.scale).astype(np.float32)

    def tensors(self, name: str) -> Tensors:
        """Return shift and scale as two tensors, whose names begin with `name`."""
        return {f"{name}shift": self.shift, f"{name}scale": self.scale}

    @classmethod
    def restored(cls, name: str, tensors: Tensors) -> "Normaliser":
        """Rebuild the normaliser that was stored as `name`, and return the normaliser.
        `tensors` has the shift and the scale, whose names begin with `name`. If `name` is empty, the tensors are called
        "shift" and "scale".

        Raises:
            ValueError: shift and scale have different sizes, or a scale is not positive.
        """
        shift, scale = (checked_tensor(tensors, f"{name}{own}", np.float64, 1) for own in ("shift", "scale"))
        if shift.shape != scale.shape:
            raise ValueError(f"the normaliser has shifts of {len(shift)} features, and scales of {len(scale)}")
        if not (scale > 0).all():
            raise ValueError("a scale of the normaliser is 0 or less")
        return cls(shift, scale)

    @property
    def largest(self) -> float:
        """Upper bound of the magnitude of all normalised features."""
        with np.errstate(over="ignore"):
            return float(((_LARGEST_FEATURE + np.abs(self.shift)) / self.scale).max())

    @classmethod
    def fitted(cls, features: FloatArray) -> "Normaliser":
        """Return the normaliser that gives each of the features (n, F) mean 0 and standard deviation 1.

        No scale is below 0.05. Only shares of a histogram vary less than that. Without the limit, a table with a larger
        share in a bin that is empty for the training tables would be hundreds of standard deviations away. A feature
        that never varies is ignored: the scale is so large that the normalised feature is always near 0.
        """
        scale = np.maximum(features.std(axis=0), _LEAST_DEVIATION)
        return cls(features.mean(axis=0), np.where(np.ptp(features, axis=0) > 0, scale, _LEFT_OUT))


def check_bounded(normaliser: Normaliser, *networks: Mlp) -> None:
    """Raise ValueError if the normaliser does not fit the first network, or if costs could overflow.
    `networks` are the networks of a model, in the order in which they are applied. The first network must have one
    input for each feature of the normaliser. Sums of the outputs of the last network must not overflow.

    The bounds follow from the weights, so models that pass the check predict finite costs for every table and plan.
    """
    if len(normaliser.shift) != networks[0].widths[0]:
        raise ValueError(
            f"the normaliser has {len(normaliser.shift)} features, and the network has {networks[0].widths[0]}"
        )
    bound = normaliser.largest
    for network in networks:
        bound = network.largest(bound)
    if not bound <= _LARGEST_OUTPUT:
        raise ValueError("weights or scales are so large that costs could overflow")


@dataclass(frozen=True)
class TensorField:
    """Annotation of a dataclass field that a bundle stores as tensors: the name of the tensors and, for an array, the
    type and the number of dimensions.
    """

    name: str
    dtype: type = np.float32
    dimensions: int = 1


class Stored:
    """Base class of models that a bundle can store:
    dataclasses whose arrays and networks have annotations (`TensorField`).

    Attributes:
        kind: name of the class in bundles.
    """

    kind: ClassVar[str]

    def settings(self) -> dict[str, Any]:
        """Return the settings of the model, which are all fields that are not tensors, as values that
        JSON can store.
        """
        plain: dict[str, Any] = {}
        own: Any = type(self)
        for name, (_, held) in _fields(own).items():
            value = getattr(self, name)
            if isinstance(value, FeatureSet):
                plain |= {name: value.name, "columns": value.columns}
            elif held is None:
                plain[name] = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        return plain

    def tensors(self) -> Tensors:
        """Return all arrays of the model by name, including the arrays in networks, normalisers and curves."""
        by_name: Tensors = {}
        for name, (_, held) in _tensors(type(self)).items():
            value = getattr(self, name)
            by_name |= {held.name: value} if isinstance(value, np.ndarray) else value.tensors(held.name)
        return by_name

    @classmethod
    def restored(cls, settings: object, tensors: Tensors) -> Self:
        """Rebuild a stored model from `settings` and `tensors`, and return the model.
        `settings` has the values that the method `settings()` of the model returned, and `tensors` has the arrays that
        the method `tensors()` returned.

        Raises:
            UserError: the model was made for features of another version.
            ValueError: the settings or tensors are invalid for this class.
        """
        own: Any = cls
        plain: dict[str, Any] = dict(vars(parse(settings, _settings(own), "settings")))
        if "features" in plain:
            plain["features"] = FeatureSet.checked(plain["features"], plain.pop("columns"))
        held = {name: _restored(field_type, how, tensors) for name, (field_type, how) in _tensors(cls).items()}
        model = cls(**plain, **held)
        model.check()
        return model

    def check(self) -> None:
        """Raise ValueError if the tensors do not fit together, or if costs could overflow."""


def tensors_of(models: dict[str, Stored]) -> Tensors:
    """Return the tensors of several models; each name begins with the name of the model and a dot."""
    return {f"{name}.{key}": tensor for name, model in models.items() for key, tensor in model.tensors().items()}


def _restored(field_type: Any, held: TensorField, tensors: Tensors) -> Any:
    """Rebuild one field of a model from `tensors`, and return it. The field is a network, a normaliser, curves or an
    array. `held` is the annotation of the field, which has the name of the field's tensors.
    """
    if hasattr(field_type, "restored"):
        return field_type.restored(held.name, tensors)
    return checked_tensor(tensors, held.name, held.dtype, held.dimensions)


@cache
def _fields(model: Any) -> dict[str, tuple[Any, TensorField | None]]:
    """Return the type and the `TensorField` annotation of each field of a model class, by name of the field.
    The annotation is None for a field that is a setting.
    """
    hints = get_type_hints(model, include_extras=True)
    types: dict[str, tuple[Any, TensorField | None]] = {}
    for name in (one.name for one in fields(model)):
        plain, *extras = get_args(hints[name]) or (hints[name],)
        held = next((extra for extra in extras if isinstance(extra, TensorField)), None)
        types[name] = (hints[name] if held is None else plain, held)
    return types


def _tensors(model: Any) -> dict[str, tuple[Any, TensorField]]:
    """Return the fields of a model class that are tensors, by name, with their types and `TensorField` annotations."""
    return {name: (hint, held) for name, (hint, held) in _fields(model).items() if held is not None}


@cache
def _settings(model: Any) -> Any:
    """Return a dataclass type that describes the JSON settings of a model class.

    A feature set is stored as its name and the names of its features. Fields that may be empty may be missing.
    """
    types: list[tuple[str, Any, Any]] = []
    empty = {
        one.name: field(default_factory=one.default_factory) for one in fields(model) if callable(one.default_factory)
    }
    for name, (hint, held) in _fields(model).items():
        if held is None:
            stored_fields = [(name, str), ("columns", tuple[str, ...])] if hint is FeatureSet else [(name, hint)]
            types += [(stored_name, of, empty.get(name, field())) for stored_name, of in stored_fields]
    return make_dataclass("Settings", types, frozen=True)


@dataclass(frozen=True)
class Described:
    """The description of a model in `bundle.json`: the kind, which names the class of the model, and the settings of
    the model.
    """

    kind: str
    settings: dict[str, Any]

    @classmethod
    def of(cls, model: Stored) -> "Described":
        """Return the description of a model: the kind and the settings."""
        return cls(model.kind, model.settings())

    def restored(self, kinds: dict[str, Any], name: str, tensors: Tensors) -> Any:
        """Rebuild the model called `name` from this description and from `tensors`. Only tensors whose names begin with
        `name` and a dot are used. `kinds` has the model class of each kind.

        Raises:
            UserError: the kind is not one of `kinds`.
            ValueError: the settings or tensors are invalid for the kind.
        """
        check_name(f"kind of {name} model", self.kind, kinds)
        return kinds[self.kind].restored(self.settings, within(tensors, name))


def described(models: dict[str, Stored]) -> dict[str, Any]:
    """Return the descriptions of several models for JSON, by name of the model."""
    return {name: asdict(Described.of(model)) for name, model in models.items()}
