"""Measurements of a data directory, by split."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from neuroshard.plumbing.errors import UserError
from neuroshard.records.sample_loads import by_group
from neuroshard.records.samples import Measurement, Sample
from neuroshard.records.splits import TEST, TRAIN, VALID


@dataclass(frozen=True)
class SplitMeasurements:
    """Measurements by split; `everything` holds the second passes too."""

    train: list[Measurement[Any]]
    valid: list[Measurement[Any]]
    test: list[Measurement[Any]]
    everything: list[Measurement[Any]]

    @classmethod
    def of(cls, measurements: Sequence[Measurement[Sample]]) -> "SplitMeasurements":
        """Split the measurements that succeeded; any part may be empty."""
        good = [m for m in measurements if m.error is None]
        once = [m for m in good if not m.second_pass]
        train, valid, test = ([m for m in once if m.split == name] for name in (TRAIN, VALID, TEST))
        return cls(train, valid, test, good)

    def check(self, what: str, where: str) -> None:
        """Raise UserError if a split is empty."""
        for name, count in self.sizes.items():
            if not count:
                good = len(self.everything)
                raise UserError(f"{where} holds no {what} for the {name} split; collect more (found {good})")

    @property
    def known(self) -> list[Measurement[Any]]:
        """Return what isn't for testing, once each."""
        return [*self.train, *self.valid]

    def limited(self, most: int | None) -> "SplitMeasurements":
        """With the first `most` training samples only; None keeps all."""
        return replace(self, train=self.train[:most])

    def combining(self, most: int | None) -> "SplitMeasurements":
        """With training samples of at most so many tables only; None keeps all.

        Raises:
            UserError: there are none.
        """
        train = [m for m in self.train if most is None or len(m.sample.tables) <= most]
        if not train:
            raise UserError(f"max_tables={most} leaves no sample to train on")
        return replace(self, train=train)

    def by_group(self) -> "SplitMeasurements":
        """Of exchanges: each group's, as if it were an all-to-all; what is measured twice stays as it is."""
        parts = {name: [one for m in getattr(self, name) for one in by_group(m)] for name in (TRAIN, VALID, TEST)}
        return replace(self, **parts)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples in each split."""
        return {TRAIN: len(self.train), VALID: len(self.valid), TEST: len(self.test)}
