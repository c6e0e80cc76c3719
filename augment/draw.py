"""Drawing that all samples have in common."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def one_of(choices: Sequence[T], rng: np.random.Generator) -> T:
    """One of the choices, each as likely; a single one draws nothing from `rng`."""
    return choices[0 if len(choices) == 1 else int(rng.integers(len(choices)))]
