from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
import pytest
from msgspec import Meta

from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import ByteSize, Count, Name, Share
from tests.kit.messages import refused


@dataclass(frozen=True)
@checked
class _Settings:
    name: Name
    count: Count = 1
    shares: tuple[Share, ...] = ()
    other: "_Settings | None" = None
    extra: list[object] = field(default_factory=list)

    def __post_init__(self):
        if sum(self.shares) > 1:
            raise UserError("shares-sum", f"the shares sum to {sum(self.shares)}")


@checked
def _area(width: Annotated[int, Meta(ge=1)], height: float = 2.0, *, note: str = "") -> float:
    return width * height


def test_checked_class_converts_fields_to_annotated_types():
    settings = _Settings("a", 3, [0, 0.5])
    assert settings.shares == (0.0, 0.5)
    assert replace(settings, count=4).count == 4
    assert hash(settings.shares)


NAMED = "_ settings 'a'"


@pytest.mark.parametrize(
    ("fields", "where", "names"),
    [
        ({"count": True}, NAMED, ["count", True]),
        ({"count": -1}, NAMED, ["count", -1, 0]),
        ({"count": 2.0}, NAMED, ["count", "2.0"]),
        ({"count": "2"}, NAMED, ["count", "'2'"]),
        ({"count": 10**5000}, NAMED, ["count", "2^"]),
        ({"shares": [0.5, None]}, NAMED, ["shares[1]", None]),
        ({"name": 5}, "", ["name", 5]),
    ],
)
def test_checked_class_refuses_wrong_fields_in_one_line(fields, where, names):
    with refused("value-outside-limits", where=where, names=names):
        _Settings(**{"name": "a"} | fields)


def test_checked_class_runs_its_own_check_after_the_annotations():
    with refused("shares-sum", names=[1.1]):
        _Settings("a", shares=[0.5, 0.6])


def test_numpy_numbers_in_fields_become_python_numbers():
    settings = _Settings("a", np.int64(3), (np.float64(0.25), np.float32(0.5)))
    assert type(settings.count) is int
    assert settings.shares == (0.25, 0.5)
    assert _Settings("a", 3, np.array([0.25, 0.5])).shares == (0.25, 0.5)
    with refused("value-outside-limits", names=["count"]):
        _Settings("a", np.bool_(True))


def test_checked_class_keeps_fields_of_other_classes():
    inner = _Settings("b")
    assert _Settings("a", other=inner).other is inner
    assert _Settings("a", extra=[inner]).extra == [inner]


def test_checked_function_refuses_arguments_of_wrong_type():
    assert _area(2, 3) == 6.0
    assert _area(width=2, note="x") == 4.0
    for given, *names in (((0,), "width", 0), ((2, "3"), "height", "'3'"), ((2, True), "height", True)):
        with refused("value-outside-limits", names=names):
            _area(*given)
    with refused("value-outside-limits", names=["note", 5]):
        _area(2, note=5)
    with pytest.raises(TypeError, match="depth"):  # Python's own
        _area(2, depth=5)
    assert _area.__name__ == "_area"


@checked
def _limit(size: ByteSize | None = None, least: ByteSize = 0) -> int | None:
    return size


def test_checked_sizes_accept_units_and_refuse_malformed_values():
    assert (_limit("4GiB"), _limit(1e9), _limit(7), _limit(None)) == (4 << 30, 10**9, 7, None)
    for size in (-1, True, []):
        with refused("value-outside-limits", names=["size", size]):
            _limit(size)
    with refused("size-unreadable", names=["size", "'4GiBs'"]):
        _limit("4GiBs")
    with refused("size-unreadable", names=["least", "'x'"]):
        _limit(least="x")


@checked
def _painted(color: Literal["red", "blue"] | None = None, size: Literal["s", "m"] = "s") -> tuple[str | None, str]:
    return color, size


@pytest.mark.parametrize(
    ("given", "values"), [({"color": "pink"}, ["red", "blue", "null"]), ({"size": "x"}, ["s", "m"])]
)
def test_a_value_that_no_literal_allows_is_refused_with_the_allowed_values(given, values):
    assert _painted(None, "m") == (None, "m")
    with refused("value-outside-limits", names=[*given, *values]):
        _painted(**given)
