"""Damaged copies of files: what a reader may be handed."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

_JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 3.5, 1e308, -(1 << 70), 1 << 63, float("nan"), float("inf"), "", "x", "\n", "\u2603" * 40,
    [], {}, [[]], {"a": 1}, [None], "../../etc", "1e9",
)  # fmt: skip


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """A copy of a file with one to three things wrong: bytes of any file, values of JSON too."""
    ways: list[Callable[[bytes, np.random.Generator], bytes]] = [_truncated, _flipped, _stuffed, _doubled]
    if content[:1] in (b"{", b"["):
        ways += [_changed] * 6  # what gets past the parser is where readers go wrong
    for _ in range(int(rng.integers(1, 4))):
        content = ways[int(rng.integers(len(ways)))](content, rng)
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


def _changed(content: bytes, rng: np.random.Generator) -> bytes:
    """One value of a JSON file replaced, removed, or put a level deeper."""
    try:
        tree = json.loads(content)
    except ValueError:
        return content
    places = list(_places(tree))
    if not places:
        return content
    holder, key = places[int(rng.integers(len(places)))]
    what = int(rng.integers(4))
    if what == 0:
        del holder[key]
    elif what == 1:
        holder[key] = [holder[key]]
    else:
        holder[key] = _JUNK[int(rng.integers(len(_JUNK)))]
    return json.dumps(tree).encode()


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """(holder, key) of every value inside."""
    found: list[tuple[Any, Any]] = []
    stack = [tree]
    while stack:
        node = stack.pop()
        keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
        found += [(node, key) for key in keys]
        stack += [node[key] for key in keys]
    return found
