"""The simulator: predicts the costs of plans, so that searches need no hardware.

Whole plans are costed exactly, by `costs`, from the kernel calls and the traffic of every device. Searches that place
one shard after another, or compare many plans whose devices have equal work, need cheaper costs. For them the parts of
a step other than kernels and exchanges are split in three, whose sum is the cost of a plan with equal devices:

    compute_for   the ms that a shard adds to the device it is placed on, in addition to kernel time. The compute model
                  that it returns includes these ms, so a search that adds up kernel times adds them up, too.
    shared_ms     the ms of the counted parts on each device, except the ms that `compute_for` includes: fixed times of
                  a step, and times by kernel call, by exchange, or by the work of the mean device.
    waited_ms     the ms that devices wait for their host at the end of a step. They depend on the time at which the
                  devices have done all other work, so they are computed last.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from neuroshard.cost.cost import (
    BACKWARD,
    COMPUTE,
    FORWARD,
    INPUT,
    PARTS,
    Cost,
    KernelTimes,
    Part,
    Prediction,
    Step,
    When,
    Work,
)
from neuroshard.cost.loads import LoadSets, Traffic, relative_bytes
from neuroshard.models import CostModels
from neuroshard.models.interface import CommModel, EqualWork, PartModel
from neuroshard.models.kernels import KernelModels
from neuroshard.models.parts import (
    HostWait,
    compute_part,
    counts_of_sets,
    exchange_part,
    imbalance,
    of_calls,
    of_exchanges,
)
from neuroshard.models.trust import DATASHEET, ELSEWHERE, EXCHANGES, Margin, Margins, hardware_warning, versions_caveat
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.messages import Message
from neuroshard.tasks.task import Task
from neuroshard.words.collective import Collective, Precision
from neuroshard.words.form import CALLS, COLUMN_WISE_CALL
from neuroshard.words.placement import Tier

_EXACT = Margin(0.0, 0.0)  # the margin of calls and exchanges that take no time


class Simulator:
    """Predicts the costs of plans with a set of cost models; one call can take many plans.

    Attributes:
        models: the cost models.
        count_input: True if the costs of plans count the input dist, the exchange of indices and lengths. The papers
            leave it out, and pipelines hide it; costs show it in both cases if the models know it.

    Raises:
        UserError: `count_input` is True, but the models do not know the costs of the input dist.
    """

    def __init__(self, models: CostModels, count_input: bool = False) -> None:
        if count_input and models.input is None:
            raise UserError(
                "models-lack-input-dist",
                "these cost models do not know the costs of the input dist",
                limit="count_input=true needs these costs",
                remedy="Leave out count_input, or collect data with the input dist "
                "(`neuroshard collect experiment=collect_sharding_types`) and pretrain cost models on the data",
            )
        self.models = models
        self.count_input = count_input

    def with_dense_ms(self, dense_ms: float) -> "Simulator":
        """Return a copy of this simulator for steps whose dense network takes `dense_ms` ms on a device.

        The copy has the cost models that `CostModels.with_dense_ms` returns.
        """
        return Simulator(self.models.with_dense_ms(dense_ms), self.count_input)

    def cost(self, task: Task, plan: Plan) -> Cost:
        """Predict the cost of one plan of a task.

        Raises:
            UserError: the plan is another task's, or the models do not know the task's tables or the plan's sharding
                types.
        """
        return self.costs(task, [plan])[0]

    def costs(self, task: Task, plans: Sequence[Plan]) -> list[Cost]:
        """Predict the cost of each plan of a task, without checks of memory and constraints.

        The tasks of the plans may have other constraints than `task`.

        A device has a kernel call for each family of sharding types (`Form`) of its tables, and other calls for
        sequence tables, one after the other: their costs add up.

        Raises:
            UserError: a plan is another task's, or the models do not know the task's tables or a plan's sharding types.
        """
        self.models.check(task)
        for plan in plans:
            if plan.task is not task and replace(plan.task, constraints=task.constraints) != task:
                raise UserError(
                    "plan-of-other-task",
                    "the plan was made for another task",
                    limit=_difference(plan.task, task),
                    remedy="Give the plan with its own task (`plan.task`), or search a plan for this task",
                )
            self.models.check_plan(plan)
        loads = LoadSets.joined([plan.device_loads for plan in plans])
        traffic = Traffic.joined([plan.traffic for plan in plans])
        costs = self.costs_of(self.kernel_times(loads, task.topology.num_devices), traffic)
        return [replace(cost, caveat=self.caveat(plan)) for cost, plan in zip(costs, plans, strict=True)]

    def compute_for(self, task: Task) -> KernelModels:
        """Return models of kernel times for a search that places the shards of this task one after another.
        The predictions are computed from sums over the shards of a device (`SumModel`). In addition to kernel times,
        the predictions include the ms that each shard adds to other parts of a step, such as the framework overhead.

        The additional ms of a shard are the sum of `PartModel.of_shards` over all counted parts. With them, these parts
        influence the placement of shards. A model that is not a sum is approximated by a sum (`KernelModels.nearest`).
        """
        adds = tuple(one for part in self._counted if (one := part.of_shards(task)) is not None)
        kernels = KernelModels.nearest(self.models.compute, task.loads, task.topology.num_devices)
        return replace(kernels, adds=kernels.adds + adds) if adds else kernels

    def kernel_times(self, device_loads: LoadSets, num_devices: int) -> KernelTimes:
        """Predict the kernel times of B plans on D devices.
        `device_loads` has B x D sets of shards, one set for each device: first the D sets of the first plan, then the D
        sets of the second plan, and so on.
        """
        calls, of_kernels = device_loads.by_kernel()
        counts, of_call = self.counts_of(device_loads), np.eye(len(CALLS))[of_kernels]  # (G, K)
        devices = len(device_loads) // num_devices, num_devices
        shape = *devices, len(of_kernels)
        ms = _shaped(self.models.compute.predict(calls), (len(calls),), self.models.compute).reshape(shape)
        spread = np.zeros_like(ms)
        if self.models.margins is not None:
            spread = self.models.compute.spread_ms(calls).reshape(shape)
        used = (calls.counts.reshape(shape) > 0).any(axis=1)
        return KernelTimes(ms @ of_call, spread @ of_call, used @ of_call, counts.reshape(*devices, counts.shape[1]))

    def counts_of(self, sets: LoadSets) -> FloatArray:
        """Return the amounts of work, such as lookups and MB of outputs, of each of B sets of shards, (B, C).
        `COUNTS` has the names of the C amounts. C is 0 if no part of a step depends on amounts of work.
        """
        if not any(part.by_counts for part in self.models.parts):
            return np.zeros((len(sets), 0))
        return counts_of_sets(sets)

    def shared_ms(self, task: Task, kernels: FloatArray, counts: FloatArray, input_bytes: FloatArray) -> FloatArray:
        """Predict the ms of the parts of a step other than kernels and exchanges, for each of B plans, (B,).
        The result includes, for example, the fixed times of a step. All devices of a plan are assumed to have equal
        work.

        The result leaves out two times: the ms that each shard adds to these parts, and the waits of devices for their
        hosts. The models that `compute_for` returns count the ms of the shards as kernel time, and `waited_ms` predicts
        the waits.

        Args:
            task: the task, with the number of devices.
            kernels: (B, K) number of kernels of each of `CALLS` on each device.
            counts: (B, C) counts of the work of a device, as in `KernelTimes`.
            input_bytes: (B,) bytes of indices and lengths that a device receives.
        """
        work, ready_ms = EqualWork(kernels, counts, input_bytes), np.zeros(len(kernels))
        each = (part.shared_ms(task, work, ready_ms) for part in self._counted if part.when is not When.HOST)
        return sum(each, np.zeros(len(kernels)))

    def waited_ms(
        self, task: Task, ready_ms: FloatArray, kernels: FloatArray, counts: FloatArray, input_bytes: FloatArray
    ) -> FloatArray:
        """Predict the ms that devices wait for their hosts at the end of a step, for each of B plans, (B,).
        All devices of a plan are assumed to have equal work, so there is only one wait for each plan.

        Args:
            task: the task, with the number of devices.
            ready_ms: (B,) ms of a step until the devices have done all other work.
            kernels, counts, input_bytes: as in `shared_ms`.
        """
        work = EqualWork(kernels, counts, input_bytes)
        waits = (part.shared_ms(task, work, ready_ms) for part in self._counted if part.when is When.HOST)
        return sum(waits, np.zeros(len(kernels)))

    def costs_of(self, times: KernelTimes, traffic: Traffic) -> list[Cost]:
        """Predict the cost of each of B plans from the kernel times and the traffic of the plans.
        These costs have no caveats: `Cost.caveat` is None. A caveat is a text that says why a cost may be wrong; the
        method `costs` adds the caveats.

        Raises:
            UserError: a cost model predicts a time that is negative or not finite.
        """
        margins = self.models.margins
        ms, spread_ms = np.moveaxis(times.ms, -1, 0), np.moveaxis(times.spread_ms, -1, 0)
        margin = _together(margins, zip(map(compute_part, CALLS), ms, spread_ms, strict=True))
        step = self._step(traffic, Part(COMPUTE, When.COMPUTE, times.ms.sum(axis=-1), margin), times, margins)
        self._check_times(step)
        outside = self._outside_training_range(traffic).tolist()
        return [Cost(step[plan].parts, outside_training_range=outside[plan]) for plan in range(len(traffic))]

    def _check_times(self, step: Step) -> None:
        """Raise UserError if a time of a step is negative or not finite, which only wrong cost models can predict."""
        for part in sorted(step.parts, key=lambda part: part.when):  # a wrong time makes later waits wrong, too
            wrong = part.ms[~((part.ms >= 0) & (part.ms < np.inf))]
            if len(wrong):
                models = self.models
                by_name = {COMPUTE: models.compute, FORWARD: models.forward, BACKWARD: models.backward}
                by_name |= {part.name: part for part in models.parts}
                raise UserError(
                    "model-time-wrong",
                    f"{type(by_name[part.name]).__name__} predicts {wrong[0]:.4g} ms for the part {part.name!r} of a "
                    "step",
                    limit="times must be finite, and 0 or more",
                    remedy="Correct the cost model, or choose others with model=NAME",
                )

    def _outside_training_range(self, traffic: Traffic) -> FloatArray:
        """Return how unbalanced the all-to-alls of each of B plans are, relative to the training data, (B,).
        A value is the imbalance of a plan's all-to-alls divided by the largest imbalance in the training data, but at
        least 1. For example, the value is 1.5 if the imbalance is 50% above the training data.

        The value is also 1 if the imbalance in the training data is unknown, or if a plan has traffic in other
        collectives than the all-to-all and the input dist.
        """
        known = self.models.ranges
        if known is None:
            return np.ones(len(traffic))
        others = [one for one in traffic.collectives if one not in (Collective.ALL_TO_ALL, Collective.INPUT)]
        mixed = np.any([np.zeros(len(traffic)), *(traffic.sent_bytes(one).any(axis=1) for one in others)], axis=0)
        return np.where(mixed, 1.0, known.outside(EXCHANGES, *imbalance(traffic.columns)))

    def step(self, times: KernelTimes, traffic: Traffic, compute_ms: FloatArray) -> Step:
        """Predict the timelines of a training step for B plans on D devices, and return the timelines as one `Step`.
        `compute_ms` (B, D) has the kernel time of each device, and `traffic` has the bytes that the devices exchange.
        `times` is used only to predict other parts of the step, such as the framework overhead.

        `times` has the kernel times of B plans, or of one plan that counts for all B plans.
        """
        return self._step(traffic, Part(COMPUTE, When.COMPUTE, compute_ms), times)

    def communication(self, traffic: Traffic, compute_ms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Predict the ms of the forward exchanges and of the backward exchanges on each device, (B, D) each. `traffic`
        has the bytes that the devices send, and `compute_ms` (B, D) the kernel time of each device.

        All devices start the backward exchange together. A device starts the forward exchange when it has ended the
        backward exchange and the compute. Other parts of a step are left out.
        """
        step = self._step(traffic, Part(COMPUTE, When.COMPUTE, compute_ms), None)
        return step.forward, step.backward

    def even_ms(self, task: Task, given: FloatArray, compute_ms: FloatArray) -> FloatArray:
        """Predict the ms of kernels and exchanges together, for each of B plans whose devices have equal work, (B,).
        `compute_ms` (B,) has the kernel time of each device, and `given` (B, C) has the bytes that each device sends
        into each of C collectives.

        Equal devices do not wait for each other, so models need not look at every device.
        """
        forward = given.copy()
        forward[:, Collective.ALL_REDUCE] = 0  # all-reduces are in the backward pass only
        cost_ms = compute_ms
        for (model, precision), size_bytes in zip(self._directions, (forward, given), strict=True):
            cost_ms = cost_ms + model.even_ms(size_bytes * relative_bytes(precision), task.batch_size, task.topology)
        return cost_ms

    @property
    def _directions(self) -> tuple[tuple[CommModel, Precision], ...]:
        """A pair for forward and a pair for backward exchanges: the model, and the data type of the sent elements."""
        models = self.models
        return (models.forward, models.forward_precision), (models.backward, models.backward_precision)

    def _step(self, traffic: Traffic, compute: Part, times: KernelTimes | None, margins: Margins | None = None) -> Step:
        models = self.models
        forward = traffic.forward.in_precision(models.forward_precision)
        backward = traffic.in_precision(models.backward_precision)
        works: list[Work] = [
            (When.COMPUTE, lambda _: compute),
            (When.FORWARD, partial(_exchanges, models.forward, FORWARD, forward, margins)),
            (When.BACKWARD, partial(_exchanges, models.backward, BACKWARD, backward, margins)),
        ]
        if times is not None:
            works += [(part.when, partial(self._other_part, part, times, traffic, margins)) for part in models.parts]
        return Step.of(works, compute.ms.shape)

    def _other_part(
        self, part: PartModel, times: KernelTimes, traffic: Traffic, known: Margins | None, ready_ms: FloatArray
    ) -> Part:
        """Predict the time and the error margin of one part of a step on each device, and return both in a `Part`.
        `part` is the model of this part, which is not kernels or exchanges but, for example, the framework overhead.
        `ready_ms` (B, D) is the time in the step at which each device of B plans is ready for the part. `known` has the
        error margins of the models; if it is None, the `Part` has no margin.
        """
        ms = _shaped(part.ms(times, traffic, ready_ms), ready_ms.shape, part)
        margin = None if known is None else known.of(part.name)
        if margin is None:
            margin_ms = None
        elif isinstance(part, HostWait):
            margin_ms = part.margin_ms(margin, times, ready_ms)
        else:
            margin_ms = margin(ms, np.zeros_like(ms))
        return Part(part.name, part.when, ms, margin_ms, self._counts(part), part.about, part.hides)

    @property
    def _counted(self) -> list[PartModel]:
        return [part for part in self.models.parts if self._counts(part)]

    def _counts(self, part: PartModel) -> bool:
        return self.count_input or not part.hidden

    def predicted(self, plan: Plan, cost: Cost | None = None) -> Plan:
        """Return a copy of the plan whose `prediction` contains the cost that these models predict for the plan.
        If this cost was computed before, give it as `cost`. With None, the method computes the cost.
        """
        cost = cost or self.cost(plan.task, plan)
        margin_ms, expected_ms = (None, None) if cost.margin is None else (cost.margin_ms, cost.expected_ms)
        counts_input = any(part.name == INPUT for part in cost.counted)
        known = cost.total_ms, margin_ms, expected_ms, cost.caveat, counts_input, cost.scope
        models = None if self.models.choice is None else self.models.choice.normalized
        return plan.with_prediction(Prediction(models, *known))

    def caveat(self, plan: Plan) -> str | None:
        """Return a caveat, in a few words, to show with the plan's predicted cost; None if there is nothing to warn of.

        If the models were not measured on a machine like this machine, errors may be larger than the margin.
        """
        kernels = self.models.compute.coverage(plan.device_loads.loads)
        each = [model.coverage(plan.traffic.in_precision(precision)) for model, precision in self._directions]
        exchanges = max((coverage for coverage in each if coverage is not None), default=None)
        analytic = [] if kernels is None else [f"kernel times {kernels}"]
        if kernels is None and (of_calls := self._analytic_calls(plan)):
            analytic.append(f"kernel times of {of_calls} computed from a datasheet")
        if exchanges is not None:
            analytic.append(f"exchange times {exchanges}")
        if analytic:
            whole = kernels is not None and None not in each
            return f"{'' if whole else 'partly '}{DATASHEET}: {', '.join(analytic)}, not measured here"
        return self._versions_caveat if self._elsewhere is None else ELSEWHERE

    def _analytic_calls(self, plan: Plan) -> str:
        """Return text that names the tables of a plan whose kernel times are computed from a datasheet: "some tables",
        or "tables in host memory". The text is empty if no kernel time is computed from a datasheet.
        """
        used = {CALLS[number] for number in np.unique(plan.device_loads.loads.call)}
        analytic = used & self.models.compute.arithmetic
        if not analytic:
            return ""
        in_host_memory = all(call.tier is not Tier.DEVICE for call in analytic)
        return "tables in host memory" if in_host_memory else "some tables"

    @cached_property
    def _elsewhere(self) -> Message | None:
        """A warning that the models may have been measured on other hardware than this machine;
        None if there is no reason for a warning.
        """
        return hardware_warning(self.models.name, self.models.hardware)

    @cached_property
    def _versions_caveat(self) -> str | None:
        """A caveat that the models were measured with other versions of packages than this machine has;
        None if there is no reason for a caveat.
        """
        return versions_caveat(self.models.versions, self.models.hardware)

    def warnings(self, plan: Plan) -> tuple[Message, ...]:
        """Return the warnings about the predicted costs of a plan: one for each reason why the costs may be wrong.

        Reasons are models that were measured on another machine or with other versions, histograms for another batch
        size, tables that are not in device memory, and values outside the training range.
        """
        caveats = dict.fromkeys(
            one for one in (self.caveat(plan), self._versions_caveat) if one not in (None, ELSEWHERE)
        )
        return (
            *(
                Message(
                    "costs-have-caveat",
                    f"predicted costs are {caveat}",
                    remedy="Measure the plan, or use predicted costs only to compare plans",
                )
                for caveat in caveats
            ),
            *(() if self._elsewhere is None else (self._elsewhere,)),
            *self._margin_warnings,
            *self._pipeline_warnings(plan),
            *plan.task.warnings,
            *plan.warnings,
            *self._outside(plan),
        )

    def _pipeline_warnings(self, plan: Plan) -> tuple[Message, ...]:
        """Return a warning if the predicted costs and the pipeline of the task treat the input dist differently.
        A pipeline can hide the input dist, which then runs while devices do other work. There is a warning if the costs
        count an input dist that the pipeline hides, or leave out an input dist that the pipeline does not hide.

        There is no warning if the task has no pipeline, or if the models cannot predict the input dist.
        """
        pipeline = plan.task.memory.pipeline
        if pipeline is None or self.models.input is None or self.count_input is (pipeline == "none"):
            return ()
        if self.count_input:
            counted, hidden, remedy = "count", "hides the input dist behind other work, so steps are shorter", "false"
        else:
            counted, hidden, remedy = "leave out", "does not hide the input dist, so steps are longer", "true"
        return (
            Message(
                "costs-differ-from-pipeline",
                f"predicted costs {counted} the input dist",
                limit=f"memory.pipeline={pipeline} {hidden}",
                remedy=f"Set count_input={remedy}",
            ),
        )

    @property
    def _margin_warnings(self) -> tuple[Message, ...]:
        """A tuple with one warning if an error margin of the predicted costs is unknown; otherwise an empty tuple.
        The margins of kernels, forward exchanges and backward exchanges are checked. A margin is unknown if the cost
        model was replaced by a cost model without a margin.

        The tuple is also empty if the cost models have no margins at all.
        """
        margins = self.models.margins
        if margins is None or not (unknown := [part for part in PARTS if margins.of(part) is None]):
            return ()
        return (
            Message(
                "costs-lack-margin",
                f"predicted costs have no error margin for {' and '.join(map(repr, unknown))}",
                limit="the cost model of the bundle was replaced by a cost model without an error margin",
                remedy=f"If you know the margin, set it with `CostModels.with_{unknown[0]}(model, "
                "margins=Margin(relative, factor))`",
            ),
        )

    def _outside(self, plan: Plan) -> tuple[Message, ...]:
        """Return a warning for each quantity of a plan whose values are outside the training range of the models."""
        ranges = self.models.ranges
        if ranges is None:
            return ()
        calls, _ = plan.device_loads.by_kernel()
        counts = calls.counts[calls.calls == CALLS.index(COLUMN_WISE_CALL)].tolist()
        outside = ranges.warnings(plan.task) + ranges.device_warnings(counts, plan.traffic.columns[0].tolist())
        for part, amounts in self._part_quantities(plan, calls):
            outside += ranges.part_warnings(part, amounts)
        return outside

    def _part_quantities(self, plan: Plan, calls: LoadSets) -> Iterator[tuple[str, dict[str, FloatArray]]]:
        """Yield a pair for each part of a step whose quantities are compared with the models' training ranges.
        The first item of a pair is the name of the part, such as "forward.reduce_scatter". The second item is a dict of
        the quantities that decide the cost of the part: from the name of a quantity to the values of this quantity in
        the plan.

        The first pair is for all exchanges together, with the number of hosts and the imbalance of the all-to-all.
        Pooled column-wise kernel calls in device memory, and exchanges by `Collective.ALL_TO_ALL`, have no pair of
        their own.
        """
        topology = plan.task.topology
        hosts = topology.num_devices / topology.domain_size
        yield EXCHANGES, {"hosts": np.array([hosts])} | dict([imbalance(plan.traffic.columns)])
        if self.count_input:
            yield INPUT, of_exchanges(plan.traffic.alone(Collective.INPUT))
        for number, call in enumerate(CALLS):
            which = np.flatnonzero(calls.calls == number)
            if call != COLUMN_WISE_CALL and len(which):
                yield compute_part(call), of_calls(calls.take(which))
        for direction, traffic in ((FORWARD, plan.traffic.forward), (BACKWARD, plan.traffic)):
            for collective in traffic.collectives:
                if collective not in (Collective.ALL_TO_ALL, Collective.INPUT) and traffic.sent_bytes(collective).any():
                    yield exchange_part(direction, collective), of_exchanges(traffic.alone(collective))


def _shaped(ms: FloatArray, shape: tuple[int, ...], model: object) -> FloatArray:
    """Return the times that a cost model predicted, in ms, as an array of the shape `shape`.
    Raise UserError if they have a shape that cannot be broadcast to `shape`.
    """
    try:
        return np.broadcast_to(ms, shape)
    except ValueError:
        raise UserError(
            "model-shape-wrong",
            f"{type(model).__name__} predicts times of the shape {np.shape(ms)}",
            limit=f"times of the shape {shape} are expected",
            remedy="Correct the cost model",
        ) from None


def _difference(first: Task, second: Task) -> str:
    """Return text that names the first field in which the tasks `first` and `second` differ."""
    names = {"tables": "tables", "topology": "topology", "batch_size": "batch size", "memory": "memory settings"}
    differing = (name for field, name in names.items() if getattr(first, field) != getattr(second, field))
    return f"the task of the plan and this task differ in their {next(differing, 'settings')}"


def _exchanges(
    model: CommModel, direction: str, traffic: Traffic, margins: Margins | None, start_ms: FloatArray
) -> Part:
    """Predict the time and the error margin of all exchanges in one direction, and return both in a `Part`.
    The direction is "forward" or "backward". The exchanges run one after the other. `traffic` has the bytes that the
    devices exchange, and `start_ms` (B, D) has the delays with which the devices start. `margins` has the error margins
    of the models; if it is None, the `Part` has no margin.
    """
    chain, none = model.chain(traffic, start_ms), np.zeros_like(start_ms)
    each = ((exchange_part(direction, one), ms, none) for one, ms in chain.each_ms.items())
    return Part(direction, When[direction.upper()], chain.total_ms, _together(margins, [("", none, none), *each]))


def _together(margins: Margins | None, each: Iterable[tuple[str, FloatArray, FloatArray]]) -> FloatArray | None:
    """Return the error margin of the total time of the kernel calls or exchanges in `each`, (B, D) ms.
    The errors of the calls or exchanges are assumed to be independent, so the margin is the root of the sum of the
    squared margins.

    Args:
        margins: by name; None if no margin is known.
        each: name, ms (B, D) and spread in ms (B, D) of each call or exchange.

    Returns:
        (B, D) ms; None if the margin of a call or exchange that takes any time is unknown.
    """
    if margins is None:
        return None
    squares: FloatArray = np.zeros(())
    for name, ms, spread_ms in each:
        known = margins.of(name) if ms.any() else _EXACT
        if known is None:
            return None
        squares = squares + known(ms, spread_ms) ** 2
    return np.sqrt(squares)
