"""Multi-layer perceptrons at inference, in numpy: small batches cost microseconds and need no torch."""

from dataclasses import dataclass

import numpy as np

from neuroshard.arrays import Float32Array, FloatArray

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

    @classmethod
    def fitted(cls, features: FloatArray) -> "Normaliser":
        """To mean 0 and deviation 1 over features (n, F).

        Nothing is divided by less than 0.05: of all features only shares of a histogram vary so little, and a table
        with a larger share in a bin that is empty for the others would look hundreds of deviations away.
        """
        return cls(features.mean(axis=0), np.maximum(features.std(axis=0), _LEAST_DEVIATION))
