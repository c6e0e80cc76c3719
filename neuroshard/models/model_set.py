"""Cost models that belong together, and what is known of how far they reach: what a bundle holds."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from neuroshard.models.composed import WithParts
from neuroshard.models.framework import Framework
from neuroshard.models.interface import CommModel, ComputeModel, PartModel, SumModel
from neuroshard.models.named_parts import InputExchange
from neuroshard.models.trust import Margins, Ranges
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.errors import UserError
from neuroshard.tasks.task import Task
from neuroshard.words.collective import name_of
from neuroshard.words.form import CALLS, IN_COLUMNS, Call, Forms
from neuroshard.words.home import Tier


@dataclass(frozen=True)
class ModelSet:
    """Cost models of computation, forward and backward communication.

    Attributes:
        batch_size: the only one that they serve, None if they serve any.
        ranges: of what they were fitted to; None if that is unknown.
        margins: how far they may be off; None if that is unknown.
        input: of the exchange of indices and lengths, by itself (`Traffic.alone`); None if that is unknown.
        framework: what TorchRec adds to a step, which counts in models of `in_torchrec`; None if that is unknown.
        more: other parts of a step; bundles don't hold them.
    """

    compute: ComputeModel
    forward: CommModel
    backward: CommModel
    batch_size: int | None
    ranges: Ranges | None = None
    margins: Margins | None = None
    input: CommModel | None = None
    framework: Framework | None = None
    more: tuple[PartModel, ...] = ()

    @property
    def parts(self) -> tuple[PartModel, ...]:
        """Return the parts of a step besides compute and communication."""
        return (*([] if self.input is None else [InputExchange(self.input)]), *self.more)

    @property
    def of_whole_steps(self) -> bool:
        """Whether costs count what TorchRec adds to kernels and exchanges."""
        return any(part.by_counts for part in self.more)

    def in_torchrec(self) -> Self:
        """The same models where what TorchRec adds to a step counts, and kernels take what they do in a step.

        Raises:
            UserError: that is unknown.
        """
        if self.framework is None or not isinstance(self.compute, SumModel):
            raise UserError(
                "these cost models don't know what TorchRec adds to a step; leave +torchrec out, take the installed "
                "model=cpu+torchrec, or fit models to data that holds it: neuroshard collect num_local_samples=400"
            )
        compute = WithParts(self.compute, factor=self.framework.factor)
        return replace(self, compute=compute, framework=None, more=(*self.more, *self.framework.parts))

    @property
    def num_devices(self) -> int | None:
        """Number of devices that the communication models serve; None for any."""
        return self.forward.num_devices

    @property
    def forms(self) -> Forms:
        """The forms that all three models know costs of."""
        return self.compute.forms & self.forward.forms & self.backward.forms

    def check_plan(self, plan: Plan) -> None:
        """Raise UserError unless the models can cost the forms of `plan`."""
        for call in (CALLS[number] for number in np.unique(plan.device_loads.loads.call)):
            self._check_call(call, f"sequence tables in {call.form.value}")
        plan.check_layouts(
            lambda layout: layout.form in self.forms,
            f"these cost models know costs of {', '.join(sorted(self.forms))} only",
            "lay it out so, or take models that know more, such as model=roofline:h100",
        )
        self._check_exchanges(plan)

    def _check_exchanges(self, plan: Plan) -> None:
        """Raise UserError unless the models know what a plan exchanges besides what all tables of its forms do."""
        for which in dict.fromkeys(which for layout in plan.layouts for which in layout.exchanges[1:]):
            known = self.forward.collectives & self.backward.collectives
            if which not in known and plan.traffic.given(which).any():
                raise UserError(
                    f"these cost models don't know the exchange {name_of(which)}, which tables in rows on one host "
                    "need; collect it, lay them out on all devices, or take other models, such as model=roofline:h100"
                )

    def _check_call(self, call: Call, what: str) -> None:
        """Raise UserError unless the models know costs of sequence tables and of host memory, where it is called so."""
        if call in self.compute.calls:
            return
        if call.tier is not Tier.DEVICE:
            raise UserError(
                f"these cost models don't know costs of tables in tier {call.tier.value}; take models that do, such as "
                "model=roofline:h100, or leave the tables in device memory"
            )
        if not call.pooled:
            raise UserError(
                f"these cost models don't know costs of {what}; collect compute.pooled=[true,false] and pretrain, or "
                "take models that know them, such as model=roofline:h100"
            )

    def check(self, task: Task) -> None:
        """Raise UserError unless the models can cost plans of `task`."""
        if self.num_devices not in (None, task.topology.num_devices):
            raise UserError(
                f"the cost models were made for {self.num_devices} devices, the task has "
                f"{task.topology.num_devices}; collect and pretrain with comm.num_devices=[{task.topology.num_devices}]"
            )
        kinds: dict[tuple[bool, Tier], str] = {}  # with the first table of each: tasks are checked with every plan
        for table, home in zip(task.tables, task.homes, strict=True):
            kinds.setdefault((table.pooled, home.tier), table.name)
        for (pooled, tier), name in kinds.items():
            self._check_call(replace(IN_COLUMNS, pooled=pooled, tier=tier), f"sequence tables such as {name!r}")
        if self.batch_size not in (None, task.batch_size):
            raise UserError(
                f"the cost models were made for batch size {self.batch_size}, the task has {task.batch_size}; "
                f"set batch_size={self.batch_size}, or collect and pretrain at {task.batch_size}"
            )
