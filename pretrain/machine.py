"""A shared compute model made a machine's: a few numbers are found, everything else stays as it is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from msgspec import Meta
from torch import nn

from neuroshard.models.additive import AdditiveCompute
from neuroshard.models.ensemble import ComputeEnsemble
from neuroshard.models.shared import SharedCompute, SharedMember
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import PositiveCount
from neuroshard.stages.pretrain.across import SharedNetwork
from neuroshard.stages.pretrain.examples import ComputeTable
from neuroshard.stages.pretrain.fitting import OnEpoch, check_start
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements

_LEAST_TARGET = 1e-3  # as the loss of training has it
_OUTLIER = 2.0  # expected errors; samples that are farther off count in proportion


@dataclass(frozen=True)
@checked
class Machine:
    """Finds the numbers of a machine with which a shared model is least off.

    The search sets out from the known machine that fits best at the speed of this one. What is made small is what the
    logarithms of predictions are off by, squared (beyond twice what is expected, in proportion), plus what places far
    from that machine's cost: as if errors were normal, but for a few, and places too, with the deviations of the
    machines that the model was fitted to. So few samples say little but the speed, and many say everything.

    Attributes:
        steps: of the search for the numbers. The best one is kept.
        learning_rate: Adam's, at the start. It falls to 0.
        error: relative one that is expected of a sample: the larger, the more samples it takes to leave a known
            machine's place.
    """

    goes_on_from: ClassVar[Any] = SharedCompute

    steps: PositiveCount = 100
    learning_rate: Annotated[float, Meta(gt=0, le=1)] = 0.1
    error: Annotated[float, Meta(gt=0, le=1e6)] = 0.1

    @property
    def epochs(self) -> int:
        """So many; one for each step of a member."""
        return self.steps

    def fit(self, measured: SplitMeasurements, start: Any, seed: int, on_epoch: OnEpoch) -> ComputeEnsemble:
        """The shared model `start` on the machine of the training samples: a plain ensemble; nothing is random.

        Raises:
            UserError: there is no start, or it isn't shared.
        """
        check_start(start, self)
        if start is None:
            raise UserError(
                "numbers of a machine are found for a shared model: init=BUNDLE of neuroshard pretrain "
                "experiment=pretrain_across"
            )
        members = []
        for number, member in enumerate(start.members):

            def told(epoch: int, loss: float, done: int = number) -> None:
                on_epoch((done * self.steps + epoch) // len(start.members), loss)

            members.append(self._fitted(member, measured, told))
        return ComputeEnsemble(tuple(members))

    def _fitted(self, member: SharedMember, measured: SplitMeasurements, on_epoch: OnEpoch) -> AdditiveCompute:
        table = ComputeTable.of(measured.train, member.typical.features)
        examples = table.examples(member.typical.normaliser, member.typical.scale_ms)
        inputs = examples.inputs(torch.arange(len(table.counts)))
        logs = examples.targets.clamp(min=_LEAST_TARGET).log()
        search = _Search(SharedNetwork.of(member), inputs, logs, self.error)
        origin = search.begin([np.zeros(len(member.call)), *member.machines[:, 1:]])
        best, least = search.numbers, np.inf
        for step, numbers, loss in search.descend(origin, self.steps, self.learning_rate):
            if loss < least:
                best, least = numbers, loss
            on_epoch(step, loss)
        return member.at(best)


@dataclass(frozen=True)
class _Search:
    """For the one machine's numbers in a network, by samples as it takes them and the logarithms of their costs (n, 1).

    Attributes:
        error: of a logarithm that is expected.
    """

    network: SharedNetwork
    inputs: tuple[torch.Tensor, ...]
    logs: torch.Tensor
    error: float

    @property
    def numbers(self) -> FloatArray:
        """(1 + A,) as they are now."""
        speed, places = self.network.speed.detach(), self.network.places.detach()[0]
        return torch.cat([speed, places]).numpy().astype(np.float64)

    @torch.no_grad()
    def begin(self, places: Sequence[FloatArray]) -> torch.Tensor:
        """Go to the one of the places, (A,) each, where errors are least at the mean speed, and return it."""
        losses = [self._at(place) for place in places]
        best = places[int(np.argmin(losses))]
        self._at(best)
        return torch.from_numpy(best).to(torch.float32)

    def _at(self, place: FloatArray) -> float:
        self.network.places[0] = torch.from_numpy(place)
        self.network.speed.zero_()
        self.network.speed[0] = self._errors().mean()
        return float(self._loss())

    def descend(
        self, origin: torch.Tensor, steps: int, learning_rate: float
    ) -> Iterator[tuple[int, FloatArray, float]]:
        """Adam's steps; for each its number, and the numbers that it began from with their loss."""
        numbers = [self.network.speed, self.network.places]
        for parameter in self.network.parameters():
            parameter.requires_grad_(any(parameter is one for one in numbers))
        optimizer = torch.optim.Adam(numbers, lr=learning_rate)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for step in range(steps):
            loss = self._loss() + (self.network.places[0] - origin).square().sum() / 2
            yield step, self.numbers, float(loss.detach())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()

    def _loss(self) -> torch.Tensor:
        """Of the samples: minus the logarithm of their likelihood, but for what numbers can't change."""
        relative = self._errors() / self.error
        return nn.functional.huber_loss(relative, torch.zeros_like(relative), reduction="sum", delta=_OUTLIER)

    def _errors(self) -> torch.Tensor:
        """(n, 1) by which logarithms of predictions are too low."""
        machine = torch.zeros(len(self.logs), dtype=torch.int64)
        predicted: torch.Tensor = self.network(*self.inputs, machine)
        return self.logs - predicted.clamp(min=_LEAST_TARGET).log()
