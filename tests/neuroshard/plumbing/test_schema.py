from dataclasses import dataclass
from typing import Annotated

import pytest
from msgspec import Meta

from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import BatchSize, Device, Name, PoolingFactor, decode, of_format, parse, shown
from tests.kit.messages import refused


@dataclass(frozen=True)
class _Inner:
    dims: tuple[BatchSize, ...]

    def __post_init__(self):
        if sum(self.dims) > 100:
            raise UserError(f"dims sum to {sum(self.dims)}, at most 100")


@dataclass(frozen=True)
class _Outer:
    name: Name
    inner: tuple[_Inner, ...]
    pooling: PoolingFactor = 1.0
    by_name: dict[str, Device] | None = None


GOOD = {"name": "a", "inner": [{"dims": [1, 2]}], "pooling": 3, "by_name": {"x": 1}}


def test_plain_values_become_typed_ones():
    parsed = parse(GOOD, _Outer, "file")
    assert parsed == _Outer("a", (_Inner((1, 2)),), 3.0, {"x": 1})
    assert type(parsed.pooling) is float


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 7}, "file: name=7 must be text"),
        ({"name": ""}, "file: name='' must be text of a length of at least 1"),
        ({"pooling": True}, "file: pooling=True must be a number"),
        ({"pooling": float("nan")}, "pooling=nan must be a number above 0"),
        ({"pooling": 1e308}, r"pooling=1e\+308 must be a number of at most"),
        ({"pooling": 10**5000}, r"pooling=2\^16609... must be a number that fits 64 bits"),
        ({"inner": [{"dims": [1, 2.5]}]}, r"inner\[0\].dims\[1\]=2.5 must be a whole number"),
        ({"inner": [{"dims": [1, 10**30]}]}, r"inner\[0\].dims\[1\]=1000000000000000000000000000000 must be"),
        ({"inner": [{"dims": [50, 51]}]}, "file: dims sum to 101"),
        ({"inner": [{"dim": [1]}]}, "file: unknown field 'dim'; did you mean 'dims'"),
        ({"inner": [{}]}, r"file: inner\[0\]: field 'dims' is missing"),
        ({"inner": None}, "file: inner=None must be a list"),
        ({"by_name": {"x": -1}}, r"file: by_name\[\.\.\.\] must be a whole number of at least 0"),
        ({"by_name": [1]}, "must be named fields or nothing"),
        ({5: 5}, "unknown field '5'"),
    ],
)
def test_what_is_wrong_is_one_line_with_field_and_value(change, message):
    with pytest.raises(UserError, match=message) as caught:
        parse(GOOD | change, _Outer, "file")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "not readable JSON"),
        (b"[NaN]", "not readable JSON"),
        (b"[1e999]", "not readable JSON"),
        (b'["\\ud800"]', "not readable JSON"),
        (b"\xff\xfe[\x00]\x00", "not readable JSON"),
        (b'{"a": 1, "a": 2}', "'a' stands there twice"),
        (b'[{"a": 1}, {"rows": NaN}]', "field 'rows' is nan; numbers must be finite"),
        (b'{"rows": 1e999}', "field 'rows' is inf; numbers must be finite, below 1.8e308"),
        (b"[" * 60 + b"]" * 60, "nested too deeply"),
        (b"[" * 100_000, "JSON"),
        (b"9" * 5000, "not readable JSON"),
    ],
)
def test_bad_json_is_one_line(text, message):
    with pytest.raises(UserError, match=message) as caught:
        decode(text, "file x")
    assert str(caught.value).startswith("file x")


def test_a_byte_order_mark_is_no_trouble():
    assert decode(b'\xef\xbb\xbf{"a": 1}', "file") == {"a": 1}


def test_formats_are_told_apart():
    assert of_format({"format": "x-1", "a": 2}, "x-1", "file") == {"a": 2}
    with refused("file-format-other"):
        of_format({"format": "x-2"}, "x-1", "file")
    for content, message in (({"format": 2}, "not of format 'x-1' but 2"), ([], "not of format"), ({}, "not of")):
        with pytest.raises(UserError, match=message):
            of_format(content, "x-1", "file")


def test_values_are_shown_short():
    for value in ("x" * 10**6, [0] * 10**6, 10**10_000, [[[[[[[[[[]]]]]]]]]], {"a": {"b": 10**10_000}}):
        assert len(shown(value)) < 100
    assert shown(12345678901234567890) == "12345678901234567890"


def test_limits_can_be_written_beside_a_type():
    few = Annotated[int, Meta(ge=1, le=3)]
    assert parse([1, 2], list[few], "file") == [1, 2]
    with refused("value-outside-limits"):
        parse([1, 4], list[few], "file")
