import pytest

from neuroshard.plumbing.schema import MAX_BYTES, readable_bytes, readable_number, to_bytes
from tests.kit.messages import refused


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, 0), (34359738368, 1 << 35), (1e9, 10**9), ("1e9", 10**9), ("32GiB", 1 << 35), ("16 GB", 16 * 10**9),
        ("1.5 kib", 1536), (" 7 ", 7), ("7b", 7), ("2TiB", 1 << 41), (MAX_BYTES, MAX_BYTES), ("1024 PiB", MAX_BYTES),
    ],
)  # fmt: skip
def test_sizes_are_parsed_with_all_units(size, expected):
    assert to_bytes(size, "memory") == expected


@pytest.mark.parametrize(
    "size",
    [
        True, None, -1, "-1", "", "GiB", "1 XB", "1GiBs", "1 2", float("nan"), float("inf"), "1e999", MAX_BYTES + 1,
        "1025PiB", pytest.param(10**5000, id="huge"), "9" * 5000, "1_000", "0x10", "\u0663", [1], {}, "1\n2",
    ],
)  # fmt: skip
def test_malformed_sizes_are_refused_in_one_line(size):
    with refused("size-unreadable", names=["memory", "2^60"]) as caught:
        to_bytes(size, "memory")
    assert len(str(caught.value)) < 200


def test_readable_numbers_keep_significant_digits():
    numbers = (0, 1.0177, 205.18, 65536, 999_499, 3_402_352, 4e7, 1.234e9)
    shown = [readable_number(number) for number in numbers]
    assert shown == ["0", "1.02", "205", "65,536", "999,499", "3.4 million", "40 million", "1.23 billion"]


def test_readable_sizes_have_the_right_unit():
    assert (readable_bytes(3 << 30), readable_bytes(1 << 20)) == ("3 GiB", "1 MiB")
    assert (readable_bytes((1 << 30) - 1), readable_bytes(1 << 42)) == ("1024 MiB", "4096 GiB")
    assert (readable_bytes(1500), readable_bytes(0)) == ("1.46 KiB", "0 bytes")
