"""Where a bundle comes from and how good it is."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from neuroshard.cost.parts import PARTS
from neuroshard.plumbing.schema import BatchSize, Count, Devices, NonNegative, Seed, Share
from neuroshard.words.fingerprint import Fingerprint


@dataclass(frozen=True)
class Accuracy:
    """Errors of predictions against measurements.

    Attributes:
        samples: how many there are.
        mse: mean squared error, ms squared.
        mape: mean absolute error relative to the measurement.
        kendall_tau: agreement of the two orders, -1 to 1.
        decile_mape: (10,) MAPE of each tenth of the measurements, cheapest first.
    """

    samples: Count
    mse: NonNegative
    mape: NonNegative
    kendall_tau: Annotated[float, Meta(ge=-1, le=1)]
    decile_mape: tuple[NonNegative, ...]


@dataclass(frozen=True)
class ModelTest:
    """A model on unseen tables, and the noise floor: how far two passes over the same samples differ.

    `coverage` is the share of the measurements inside the model's 90% intervals.
    """

    test: Accuracy
    noise_mean: NonNegative
    noise_p50: NonNegative
    noise_p90: NonNegative
    coverage: Share


@dataclass(frozen=True)
class ModelTests:
    """How each model did on its test samples: of columns and all-to-alls, and (`others`) of other parts by name."""

    compute: ModelTest
    forward: ModelTest
    backward: ModelTest
    others: dict[str, ModelTest] = field(default_factory=dict)

    @classmethod
    def of(cls, tests: dict[str, ModelTest]) -> "ModelTests":
        """From the tests of all parts, by name."""
        others = {part: test for part, test in tests.items() if part not in PARTS}
        return cls(**{part: tests[part] for part in PARTS}, others=others)


@dataclass(frozen=True)
class DataSummary:
    """What models were fitted to: the data directory's name and seed, how many samples each split has, their spans.

    `other_samples` are those of other forms and collectives, by the names of their parts.
    """

    directory: str
    seed: Seed
    compute_samples: dict[str, Count]
    comm_samples: dict[str, Count]
    batch_sizes: tuple[BatchSize, ...]
    num_devices: tuple[Devices, ...]
    other_samples: dict[str, dict[str, Count]] = field(default_factory=dict)


@dataclass(frozen=True)
class Card:
    """Where a bundle comes from and how good it is.

    Attributes:
        hardware: the machine that was measured; None if that is unknown.
        versions: of Python and the packages there.
        data: what the models were fitted to; None if that is unknown.
        training: settings of the networks and of the training, for people.
        metrics: of each model, on tables never seen in training, with the noise floor beside them; None if unknown.
    """

    hardware: Fingerprint | None = None
    versions: dict[str, str] = field(default_factory=dict)
    data: DataSummary | None = None
    training: dict[str, Any] = field(default_factory=dict)
    metrics: ModelTests | None = None
