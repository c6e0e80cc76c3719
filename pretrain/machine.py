"""A shared compute model made a machine's: a few numbers are found, everything else stays as it is."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from msgspec import Meta

from neuroshard.arrays import FloatArray
from neuroshard.checked import checked
from neuroshard.errors import UserError
from neuroshard.models.additive import AdditiveCompute
from neuroshard.models.ensemble import ComputeEnsemble
from neuroshard.models.shared import SharedCompute, SharedMember
from neuroshard.schema import NonNegative, PositiveCount
from neuroshard.stages.pretrain.across import SharedNetwork
from neuroshard.stages.pretrain.examples import ComputeTable
from neuroshard.stages.pretrain.fitting import OnEpoch, check_start
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements

_LEAST_TARGET = 1e-3  # as the loss of training has it


@dataclass(frozen=True)
@checked
class Machine:
    """Finds the numbers of a machine with which a shared model is least off.

    What is made small is the mean relative error of the training samples, plus what places far from the typical one
    cost: as if errors had a Laplace distribution, and places a normal one, with the deviations of the machines that
    the model was fitted to. So few samples say little but the speed, and many say everything.

    Attributes:
        steps: of Adam; the best one is kept. The first is from the known machine that fits best.
        learning_rate: of Adam, at the start; it falls to 0.
        error: relative one that is expected of a sample; the larger, the more samples it takes to leave the typical
            place.
    """

    goes_on_from: ClassVar[Any] = SharedCompute

    steps: PositiveCount = 200
    learning_rate: Annotated[float, Meta(gt=0, le=1)] = 0.1
    error: NonNegative = 0.1

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
        search = _Search(SharedNetwork.of(member), inputs, examples.targets, self.error / (2 * len(table.counts)))
        search.begin(member.machines[:, 1:])
        best, least = search.numbers, np.inf
        for step, numbers, loss in search.descend(self.steps, self.learning_rate):
            if loss < least:
                best, least = numbers, loss
            on_epoch(step, loss)
        return member.at(best)


@dataclass(frozen=True)
class _Search:
    """For the one machine's numbers in a network, by samples (n,) as it takes them; `doubt` weighs squared places."""

    network: SharedNetwork
    inputs: tuple[torch.Tensor, ...]
    targets: torch.Tensor
    doubt: float

    @property
    def numbers(self) -> FloatArray:
        """(1 + A,) as they are now."""
        speed, places = self.network.speed.detach(), self.network.places.detach()[0]
        return torch.cat([speed, places]).numpy().astype(np.float64)

    def begin(self, known: FloatArray) -> None:
        """Go to the place where the loss is least, of `known` (M, A) and the typical one, with the speed that fits."""
        places = [np.zeros(known.shape[1]), *known]
        with torch.no_grad():
            losses = [self._at(place) for place in places]
            self._at(places[int(np.argmin(losses))])

    def _at(self, place: FloatArray) -> float:
        """The loss at a place, with the median speed."""
        self.network.places[0] = torch.from_numpy(place)
        self.network.speed.zero_()
        self.network.speed[0] = (self._least(self.targets) / self._least(self._predicted())).median().log()
        return float(self._loss())

    def descend(self, steps: int, learning_rate: float) -> Iterator[tuple[int, FloatArray, float]]:
        """Adam's steps; for each its number, and the numbers that it began from with their loss."""
        numbers = [self.network.speed, self.network.places]
        for parameter in self.network.parameters():
            parameter.requires_grad_(any(parameter is one for one in numbers))
        optimizer = torch.optim.Adam(numbers, lr=learning_rate)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for step in range(steps):
            before, loss = self.numbers, self._loss()
            yield step, before, float(loss.detach())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()

    def _loss(self) -> torch.Tensor:
        error = ((self._predicted() - self.targets) / self._least(self.targets)).abs().mean()
        return error + self.doubt * self.network.places.square().sum()

    @staticmethod
    def _least(costs: torch.Tensor) -> torch.Tensor:
        return costs.clamp(min=_LEAST_TARGET)

    def _predicted(self) -> torch.Tensor:
        machine = torch.zeros(len(self.targets), dtype=torch.int64)
        predicted: torch.Tensor = self.network(*self.inputs, machine)
        return predicted
