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
            raise UserError("dims-sum", f"the dims sum to {sum(self.dims)}")


@dataclass(frozen=True)
class _Outer:
    name: Name
    inner: tuple[_Inner, ...]
    pooling: PoolingFactor = 1.0
    by_name: dict[str, Device] | None = None


GOOD = {"name": "a", "inner": [{"dims": [1, 2]}], "pooling": 3, "by_name": {"x": 1}}


def test_parse_converts_plain_values_to_annotated_types():
    parsed = parse(GOOD, _Outer, "file")
    assert parsed == _Outer("a", (_Inner((1, 2)),), 3.0, {"x": 1})
    assert type(parsed.pooling) is float


@pytest.mark.parametrize(
    ("change", "code", "where", "names"),
    [
        ({"name": 7}, "value-outside-limits", "file", ["name", 7]),
        ({"name": ""}, "value-outside-limits", "file", ["name", "''", 1]),
        ({"pooling": True}, "value-outside-limits", "file", ["pooling", True]),
        ({"pooling": float("nan")}, "value-outside-limits", "file", ["pooling", "nan", 0]),
        ({"pooling": 1e308}, "value-outside-limits", "file", ["pooling", "1e+308", 1 << 20]),
        ({"pooling": 10**5000}, "value-outside-limits", "file", ["pooling", "2^16609...", 64]),
        ({"inner": [{"dims": [1, 2.5]}]}, "value-outside-limits", "file", ["inner[0].dims[1]", 2.5]),
        ({"inner": [{"dims": [1, 10**30]}]}, "value-outside-limits", "file", ["inner[0].dims[1]", 10**30]),
        ({"inner": [{"dims": [50, 51]}]}, "dims-sum", "file, inner[0]", [101]),
        ({"inner": [{"dim": [1]}]}, "unknown-name", "file", ["'dim'", "'dims'"]),
        ({"inner": [{}]}, "field-missing", "file: inner[0]", ["'dims'"]),
        ({"inner": None}, "value-outside-limits", "file", ["inner", None]),
        ({"by_name": {"x": -1}}, "value-outside-limits", "file", ["by_name", 0]),
        ({"by_name": [1]}, "value-outside-limits", "file", ["by_name", "[1]"]),
        ({5: 5}, "unknown-name", "file", ["'5'"]),
    ],
)
def test_schema_errors_are_one_line_with_field_and_value(change, code, where, names):
    with refused(code, where=where, names=names) as caught:
        parse(GOOD | change, _Outer, "file")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "code", "names"),
    [
        (b"{", "json-unreadable", []),
        (b"[NaN]", "json-unreadable", []),
        (b"[1e999]", "json-unreadable", []),
        (b'["\\ud800"]', "json-unreadable", []),
        (b"\xff\xfe[\x00]\x00", "json-unreadable", []),
        (b'{"a": 1, "a": 2}', "json-field-twice", ["'a'"]),
        (b'[{"a": 1}, {"rows": NaN}]', "json-number-infinite", ["'rows'", "nan"]),
        (b'{"rows": 1e999}', "json-number-infinite", ["'rows'", "inf", "1.8e308"]),
        (b"[" * 60 + b"]" * 60, "value-nested-deeply", []),
        (b"[" * 100_000, "value-nested-deeply", []),
        (b"9" * 5000, "json-unreadable", []),
    ],
)
def test_decoding_bad_json_is_refused_in_one_line(text, code, names):
    with refused(code, where="file x", names=names):
        decode(text, "file x")


def test_json_with_a_byte_order_mark_is_read():
    assert decode(b'\xef\xbb\xbf{"a": 1}', "file") == {"a": 1}


def test_schema_refuses_files_of_another_format():
    assert of_format({"format": "x-1", "a": 2}, "x-1", "file") == {"a": 2}
    for content, found in (({"format": "x-2"}, "'x-2'"), ({"format": 2}, 2), ([], "'x-1'"), ({}, "'format'")):
        with refused("file-format-other", where="file", names=[found, "'x-1'"]):
            of_format(content, "x-1", "file")


def test_shown_shortens_long_and_deep_values():
    for value in ("x" * 10**6, [0] * 10**6, 10**10_000, [[[[[[[[[[]]]]]]]]]], {"a": {"b": 10**10_000}}):
        assert len(shown(value)) < 100
    assert shown(12345678901234567890) == "12345678901234567890"


def test_parse_checks_limits_annotated_to_a_type():
    few = Annotated[int, Meta(ge=1, le=3)]
    assert parse([1, 2], list[few], "file") == [1, 2]
    with refused("value-outside-limits", where="file", names=["[1]", 4, 3]):
        parse([1, 4], list[few], "file")
