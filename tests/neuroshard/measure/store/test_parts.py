"""Numbered parts of a run outlive the process that wrote them."""

from dataclasses import dataclass

import pytest

from neuroshard.measure.store.parts import Parts, json_codec
from tests.kit.messages import refused


@dataclass(frozen=True)
class Step:
    ms: tuple[float, ...]
    error: str | None = None


def _odd(number, step):
    return None if len(step.ms) % 2 else f"number {number} has {len(step.ms)} times"


@pytest.fixture
def parts(tmp_path):
    return Parts(tmp_path / "steps", json_codec("step", Step), _odd)


def _make(before):
    if len(before) == 3:
        raise KeyboardInterrupt
    return Step((float(len(before)),))


def test_parts_resume_without_repeating_finished_values(parts):
    with pytest.raises(KeyboardInterrupt):
        parts.filled(5, _make)
    found = parts.filled(5, lambda before: Step((10.0 + len(before),)))
    assert [step.ms for step in found] == [(0,), (1,), (2,), (13,), (14,)]
    assert parts.filled(2, _make) == parts.leading() == found


def test_leading_values_end_at_the_first_missing_one(parts):
    for number in (0, 1, 3):
        parts.write(number, Step((1.0,), "late"))
    assert (len(parts.leading()), len(parts.each()), parts.end) == (2, 3, 4)
    assert [parts.has(number) for number in range(5)] == [True, True, False, True, False]
    assert (parts.get(2), parts.get(3)) == (None, Step((1.0,), "late"))
    parts.clear()
    parts.clear()
    assert parts.leading() == ()


@pytest.mark.parametrize(
    ("text", "code", "names"),
    [
        ("{}", "file-format-other", ["'format'", "'neuroshard-step-1'"]),
        ('{"format": "neuroshard-step-1", "ms": 3}', "value-outside-limits", ["ms", 3]),
        ('{"format": "neuroshard-step-1", "ms": [1, 2]}', "stored-part-wrong", ["number 0 has 2 times"]),
    ],
)
def test_errors_of_damaged_parts_name_the_file_to_delete(parts, text, code, names):
    parts.write(0, Step((1.0,)))
    parts.path(0).write_text(text)
    with refused(code, names=[f"step {parts.path(0)}", *names]) as caught:
        parts.leading()
    assert str(parts.path(0)) in caught.value.message.remedy
