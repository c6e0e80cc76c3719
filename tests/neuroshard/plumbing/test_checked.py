from dataclasses import dataclass, field, replace
from typing import Annotated

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
            raise UserError("shares sum to more than 1")


@checked
def _area(width: Annotated[int, Meta(ge=1)], height: float = 2.0, *, note: str = "") -> float:
    return width * height


def test_fields_have_the_annotated_types():
    settings = _Settings("a", 3, [0, 0.5])
    assert settings.shares == (0.0, 0.5)
    assert replace(settings, count=4).count == 4
    assert hash(settings.shares)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": True}, "settings 'a': count=True must be a whole number"),
        ({"count": -1}, "settings 'a': count=-1 must be a whole number of at least 0"),
        ({"count": 2.0}, "count=2.0 must be a whole number"),
        ({"count": "2"}, "count='2' must be a whole number"),
        ({"count": 10**5000}, "count=2"),
        ({"shares": [0.5, None]}, r"shares\[1\]=None must be a number"),
        ({"shares": [0.5, 0.6]}, "shares sum to more than 1"),
        ({"name": 5}, "name=5 must be text"),
    ],
)
def test_wrong_fields_are_one_line(fields, message):
    with pytest.raises(UserError, match=message):
        _Settings(**{"name": "a"} | fields)


def test_numpy_numbers_become_pythons():
    settings = _Settings("a", np.int64(3), (np.float64(0.25), np.float32(0.5)))
    assert type(settings.count) is int
    assert settings.shares == (0.25, 0.5)
    assert _Settings("a", 3, np.array([0.25, 0.5])).shares == (0.25, 0.5)
    with refused("value-outside-limits"):
        _Settings("a", np.bool_(True))


def test_other_classes_are_left_alone():
    inner = _Settings("b")
    assert _Settings("a", other=inner).other is inner
    assert _Settings("a", extra=[inner]).extra == [inner]


def test_arguments_are_checked():
    assert _area(2, 3) == 6.0
    assert _area(width=2, note="x") == 4.0
    for given, message in (((0,), "width=0"), ((2, "3"), "height='3' must be a number"), ((2, True), "height=True")):
        with pytest.raises(UserError, match=message):
            _area(*given)
    with refused("value-outside-limits"):
        _area(2, note=5)
    with pytest.raises(TypeError, match="depth"):
        _area(2, depth=5)
    assert _area.__name__ == "_area"


@checked
def _limit(size: ByteSize | None = None, least: ByteSize = 0) -> int | None:
    return size


def test_sizes_may_be_written_as_people_do():
    assert (_limit("4GiB"), _limit(1e9), _limit(7), _limit(None)) == (4 << 30, 10**9, 7, None)
    for size, message in (
        ("4GiBs", "size='4GiBs' must be a size"),
        (-1, "size=-1"),
        (True, "size=True"),
        ([], "size="),
    ):
        with pytest.raises(UserError, match=message):
            _limit(size)
    with refused("size-unreadable"):
        _limit(least="x")
