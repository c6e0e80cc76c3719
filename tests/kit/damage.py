"""Damaged copies of files, for tests of the functions that read them."""

from collections.abc import Callable

import numpy as np

from tests.kit.wrong_values import change_for

_Change = Callable[[bytes, np.random.Generator], bytes]


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a file's content with one to three random changes, of bytes or, if the format is known, of values.

    If the format is known, three of four results are well-formed with wrong values, because most mistakes of readers
    only show after the parser has accepted a file.
    """
    change = change_for(content)
    values = change is not None and rng.random() < 0.75
    for _ in range(int(rng.integers(1, 4))):
        way = change if values and change is not None else _BYTES[int(rng.integers(len(_BYTES)))]
        content = way(content, rng)
    return content


def _truncated(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: int(rng.integers(len(content) + 1))]


def _flipped(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for _ in range(min(int(rng.integers(1, 9)), len(changed))):
        changed[int(rng.integers(len(changed)))] = int(rng.integers(256))
    return bytes(changed)


def _stuffed(content: bytes, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(len(content) + 1))
    return content[:place] + rng.bytes(int(rng.integers(1, 40))) + content[place:]


def _doubled(content: bytes, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(len(content) + 1))
    return content[:place] + content[max(0, place - 30) :]


_BYTES: tuple[_Change, ...] = (_truncated, _flipped, _stuffed, _doubled)
