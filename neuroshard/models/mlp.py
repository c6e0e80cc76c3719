"""Multi-layer perceptrons at inference, in numpy: small batches cost microseconds and need no torch."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from neuroshard.arrays import Float32Array, FloatArray

Tensors = dict[str, Any]  # arrays by name, as safetensors takes and gives them

_LEAST_DEVIATION = 0.05


@dataclass(frozen=True)
class Mlp:
    """Linear layers, (in, out) weights and (out,) biases, with ReLU between them."""

    weights: tuple[Float32Array, ...]
    biases: tuple[Float32Array, ...]

    def __call__(self, inputs: Float32Array) -> Float32Array:
        """(..., out) of inputs (..., in)."""
        hidden = inputs @ self.weights[0] + self.biases[0]
        for weight, bias in zip(self.weights[1:], self.biases[1:], strict=True):
            hidden = np.maximum(hidden, 0) @ weight + bias
        return hidden

    def tensors(self, name: str) -> Tensors:
        """Weights and biases, `name` before their own names."""
        pairs = enumerate(zip(self.weights, self.biases, strict=True))
        return {f"{name}.{i}.{part}": t for i, wb in pairs for part, t in zip(("weight", "bias"), wb, strict=True)}

    @classmethod
    def restored(cls, name: str, tensors: Tensors) -> "Mlp":
        """The network whose `tensors(name)` are among the tensors.

        Raises:
            ValueError: they don't make a network.
        """
        count = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in tensors)
        weights: list[Float32Array] = [np.ascontiguousarray(tensors[f"{name}.{i}.weight"]) for i in range(count)]
        biases: list[Float32Array] = [tensors[f"{name}.{i}.bias"] for i in range(count)]
        ends = [weight.shape[1:] for weight in weights]
        if not weights or ends != [bias.shape for bias in biases] or ends[:-1] != [w.shape[:1] for w in weights[1:]]:
            raise ValueError(f"the layers of {name!r} don't fit together")
        return cls(tuple(weights), tuple(biases))

    @property
    def widths(self) -> tuple[int, ...]:
        """(in, ..., out)."""
        return (self.weights[0].shape[0], *(weight.shape[1] for weight in self.weights))


@dataclass(frozen=True)
class Normaliser:
    """Shifts and scales features by statistics of the training data, never of what is being predicted.

    `shift` and `scale` are (F,).
    """

    shift: FloatArray
    scale: FloatArray

    def __call__(self, features: FloatArray) -> Float32Array:
        """(n, F) normalised."""
        return ((features - self.shift) / self.scale).astype(np.float32)

    def tensors(self) -> Tensors:
        """Shift and scale."""
        return {"shift": self.shift, "scale": self.scale}

    @classmethod
    def restored(cls, tensors: Tensors, num_features: int) -> "Normaliser":
        """The normaliser whose tensors are among them.

        Raises:
            ValueError: it is for another number of features.
        """
        if not tensors["shift"].shape == tensors["scale"].shape == (num_features,):
            raise ValueError(f"the normaliser isn't for {num_features} features")
        return cls(tensors["shift"], tensors["scale"])

    @classmethod
    def fitted(cls, features: FloatArray) -> "Normaliser":
        """To mean 0 and deviation 1 over features (n, F).

        Nothing is divided by less than 0.05: of all features only shares of a histogram vary so little, and a table
        with a larger share in a bin that is empty for the others would look hundreds of deviations away.
        """
        return cls(features.mean(axis=0), np.maximum(features.std(axis=0), _LEAST_DEVIATION))
