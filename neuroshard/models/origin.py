"""Which models margins, ranges and provenance belong to, so that another model never inherits them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from neuroshard.cost.cost import BACKWARD, COMPUTE, FORWARD, FRAMEWORK, INPUT, PARTS
from neuroshard.models.parts import EXCHANGES
from neuroshard.models.trust import Margin, Margins, Ranges

MODELS = (COMPUTE, FORWARD, BACKWARD, INPUT, FRAMEWORK, "more")  # fields of a model set
_MEASURED_WITH: dict[str, Any] = {"hardware": None, "versions": {}}
_FOUND_BY: dict[str, Any] = {"choice": None, "digest": None}
_FACTS = ("margins", "ranges", *_FOUND_BY, *_MEASURED_WITH)
_OF_CALLS = ("rows", "dim", "pooling_factor", "bytes_per_element", "batch_size", "tables_on_a_device", "features")
_OF_ALL_TO_ALLS = ("devices", "columns_on_a_device")


@dataclass(frozen=True, eq=False)
class Origin:
    """The models of a set as they were when their margins, ranges and provenance were set.

    `dataclasses.replace` keeps all fields that it is not given. Models remember by this which facts were set for which
    models: facts about a model that was replaced are dropped, unless new facts were given with it.

    Attributes:
        models: each model of the set, by the name of its field.
        facts: the values of margins, ranges, choice, digest, hardware and versions.
        kept: which of compute, forward and backward are still those that were loaded or fitted together.
    """

    models: Mapping[str, object]
    facts: Mapping[str, object]
    kept: frozenset[str] = frozenset(PARTS)

    @classmethod
    def of(cls, models: object, kept: Collection[str]) -> "Origin":
        """Remember the models of a set, and the facts about them."""
        facts = {name: getattr(models, name) for name in _FACTS if hasattr(models, name)}
        return cls({name: getattr(models, name) for name in MODELS}, facts, frozenset(kept))

    def replaced(self, models: object) -> frozenset[str]:
        """Return the names of the models that are other ones now."""
        return frozenset(name for name, known in self.models.items() if getattr(models, name) is not known)

    def corrected(self, models: object) -> dict[str, Any]:
        """Return the facts about `models` that must change, by name: facts that still describe replaced models."""
        replaced, gone = self.replaced(models), dict[str, Any]()
        if replaced:
            gone |= _FOUND_BY
        if replaced and not self.kept - replaced:
            gone |= _MEASURED_WITH
        margins, ranges, named = self.facts.get("margins"), self.facts.get("ranges"), replaced - {"more"}
        if named and isinstance(margins, Margins):
            gone["margins"] = margins_without(margins, named)
        if named and isinstance(ranges, Ranges):
            gone["ranges"] = ranges_without(ranges, named)
        return {name: value for name, value in gone.items() if self._was_copied(models, name)}

    def _was_copied(self, models: object, fact: str) -> bool:
        return fact in self.facts and getattr(models, fact) is self.facts[fact]


def margins_without(margins: Margins, models: Collection[str]) -> Margins | None:
    """Return the margins without those of some models, by name; None if none of the three main ones is left."""
    for name in models:
        margins = margins_with(margins, name, None)
    return margins if any((margins.compute, margins.forward, margins.backward)) else None


def margins_with(margins: Margins, model: str, margin: Margin | None) -> Margins:
    """Return the margins with another one for all that a model predicts; None if that margin is unknown."""
    others = {part: known for part, known in margins.others.items() if part.partition(".")[0] != model}
    if model in PARTS:
        return replace(margins, others=others, **{model: margin})
    return replace(margins, others=others | {model: margin})


def ranges_without(ranges: Ranges, models: Collection[str]) -> Ranges | None:
    """Return the ranges without those of some models, by name; None if no range is left.

    The ranges of all-to-alls are of both directions together, so they go with either model.
    """
    of_exchanges = not {FORWARD, BACKWARD}.isdisjoint(models)
    gone = {*(_OF_CALLS if COMPUTE in models else ()), *(_OF_ALL_TO_ALLS if of_exchanges else ())}
    parts = {*models, *([EXCHANGES] if of_exchanges else [])}
    others = {part: its for part, its in ranges.others.items() if part.partition(".")[0] not in parts}
    left = replace(ranges, others=others, **dict.fromkeys(gone))
    return left if others or any(getattr(left, name) for name in (*_OF_CALLS, *_OF_ALL_TO_ALLS)) else None
