"""Costs of plans, predicted: the search's stand-in for hardware."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from neuroshard.cost.cost import Cost, Prediction
from neuroshard.cost.loads import LoadSets
from neuroshard.cost.traffic import Traffic
from neuroshard.models import CostModels
from neuroshard.models.interface import Chain
from neuroshard.models.parts import (
    BACKWARD,
    EXCHANGES,
    FORWARD,
    INPUT,
    compute_part,
    exchange_part,
    of_calls,
    of_exchanges,
)
from neuroshard.models.trust import DATASHEET, ELSEWHERE, Margins, Ranges, hardware_warning
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.plumbing.errors import UserError
from neuroshard.tasks.task import Task
from neuroshard.words.collective import Collective
from neuroshard.words.form import CALLS, IN_COLUMNS


class Simulator:
    """Predicts costs with a set of cost models; many plans per call.

    Attributes:
        models: they are.
        count_input: whether plans' costs count the exchange of indices and lengths. The papers leave it out, and
            pipelines hide it; `Cost.input` shows it either way, where the models know it.

    Raises:
        UserError: it is to be counted, and the models don't know it.
    """

    def __init__(self, models: CostModels, count_input: bool = False) -> None:
        if count_input and models.input is None:
            raise UserError(
                "these cost models don't know the exchange of indices; leave count_input out, or fit models to data "
                "that holds it: neuroshard collect experiment=collect_forms"
            )
        self.models = models
        self.count_input = count_input

    def cost(self, task: Task, plan: Plan) -> Cost:
        """The plan's cost.

        Raises:
            UserError: the plan is another task's, or the models can't serve the task or the plan's forms.
        """
        return self.costs(task, [plan])[0]

    def costs(self, task: Task, plans: Sequence[Plan]) -> list[Cost]:
        """Each plan's cost; memory is not checked.

        A device calls a kernel for each form that tables lie in there, and others for sequence tables, one after the
        other: their costs add up.

        Raises:
            UserError: a plan is another task's, or the models can't serve the task or a plan's forms.
        """
        self.models.check(task)
        for plan in plans:
            if plan.task is not task and plan.task != task:
                raise UserError("the plan was made for another task")
            self.models.check_plan(plan)
        calls = LoadSets.joined([plan.device_loads for plan in plans]).by_call()
        traffic = Traffic.joined([plan.traffic for plan in plans])
        shape = (len(plans), task.topology.num_devices, len(CALLS))
        by_call = self.models.compute.predict(calls).reshape(shape)
        compute = by_call.sum(axis=-1)
        before = self._input_ms(traffic)
        ready = compute if before is None or not self.count_input else compute + before
        forward, backward = self._chains(traffic, ready)
        margin: Sequence[FloatArray | None] = [None] * len(plans)
        if self.models.margins is not None:
            of = self.models.margins
            first = _call_margins(of, by_call, self.models.compute.spread_ms(calls).reshape(shape))
            first += [] if before is None or not self.count_input else [of.of(INPUT)(before, np.zeros_like(before))]
            margin = list(_margin(of, first, ready, forward, backward))
        inputs: Sequence[FloatArray | None] = [None] * len(plans) if before is None else list(before)
        caveats = [self.caveat(plan) for plan in plans]
        shares = [float(self.count_input)] * len(plans)
        parts = zip(compute, forward.total_ms, backward.total_ms, margin, inputs, shares, caveats, strict=True)
        return [Cost(*its) for its in parts]

    def _input_ms(self, traffic: Traffic) -> FloatArray | None:
        """(B, D) ms of the exchange of indices and lengths, all starting together; None where it isn't known."""
        if self.models.input is None:
            return None
        alone = traffic.alone(Collective.INPUT)
        return self.models.input.predict(alone, np.zeros(alone.size_bytes.shape[:2]))

    def predicted(self, plan: Plan) -> Plan:
        """The same plan, with what these models predict of it."""
        return with_prediction(plan, self.cost(plan.task, plan), self.models.name)

    def caveat(self, plan: Plan) -> str | None:
        """What is to be said in a few words wherever the plan's predicted cost is shown; None if nothing is.

        Costs that nobody measured on this kind of machine may be off by more than any margin says.
        """
        arithmetic, exchanges = self.models.compute.arithmetic, (self.models.forward, self.models.backward)
        if any(model.is_arithmetic for model in exchanges):
            return DATASHEET
        if arithmetic and not arithmetic.isdisjoint(CALLS[number] for number in plan.device_loads.loads.call.tolist()):
            return DATASHEET
        return None if self._elsewhere is None else ELSEWHERE

    @cached_property
    def _elsewhere(self) -> str | None:
        """A line where the models were not surely measured on hardware like this machine's."""
        return hardware_warning(self.models.name, self.models.hardware)

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        """What makes the costs of a plan doubtful, one line each.

        That nobody measured them on this kind of machine, histograms made for another batch size, and what lies outside
        the range that the models were fitted to.
        """
        return self._unmeasured(plan) + plan.task.warnings + self._outside(plan)

    def _unmeasured(self, plan: Plan) -> tuple[str, ...]:
        told = f"predicted costs: {DATASHEET}; the order of plans carries over better"
        found = (told if self.caveat(plan) == DATASHEET else None, self._elsewhere)
        return tuple(line for line in found if line is not None)

    def _outside(self, plan: Plan) -> tuple[str, ...]:
        """What of a plan lies outside the models' range."""
        ranges = self.models.ranges
        if ranges is None:
            return ()
        calls = plan.device_loads.by_call()
        counts = calls.counts.reshape(-1, len(CALLS))[:, CALLS.index(IN_COLUMNS)].tolist()
        columns = plan.traffic.columns[0].tolist()
        found = ranges.warnings(plan.task) + ranges.device_warnings(counts, columns)
        topology = plan.task.topology
        hosts = topology.num_devices / (topology.devices_per_host or topology.num_devices)
        found += ranges.part_warnings(EXCHANGES, {"hosts": np.array([hosts])})
        if self.count_input:
            found += ranges.part_warnings(INPUT, of_exchanges(plan.traffic.alone(Collective.INPUT)))
        return found + _beyond_columns(ranges, calls, plan.traffic)

    def communication(self, traffic: Traffic, compute_ms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Forward and backward communication, (B, D) ms each, of devices with such traffic and compute costs (B, D).

        Backward communication starts everywhere at once; forward communication on each device when its backward
        communication and then its compute have ended.
        """
        forward, backward = self._chains(traffic, compute_ms)
        return forward.total_ms, backward.total_ms

    def _chains(self, traffic: Traffic, compute_ms: FloatArray) -> tuple[Chain, Chain]:
        backward = self.models.backward.chain(traffic, np.zeros_like(compute_ms))
        return self.models.forward.chain(traffic.forward, backward.total_ms + compute_ms), backward


def with_prediction(plan: Plan, cost: Cost, models: str | None) -> Plan:
    """The same plan, with its cost as the models of that name predict it."""
    margin_ms, expected_ms = (None, None) if cost.margin is None else (cost.margin_ms, cost.expected_ms)
    return replace(plan, prediction=Prediction(models, cost.total_ms, margin_ms, expected_ms, cost.caveat))


def _call_margins(margins: Margins, by_call: FloatArray, spread: FloatArray) -> list[FloatArray]:
    """(B, D) of each kernel call, from their costs and spreads (B, D, K)."""
    return [margins.of(compute_part(call))(by_call[..., i], spread[..., i]) for i, call in enumerate(CALLS)]


def _margin(
    margins: Margins, calls: list[FloatArray], ready: FloatArray, forward: Chain, backward: Chain
) -> FloatArray:
    """(B, D) of each device's sum, errors of all calls and exchanges taken as independent.

    From the margins of what a device computes, (B, D) each, and what it takes together. Waiting makes every device's
    backward communication, compute and wait together as long as those of the device that is last to start forward
    communication, so that one's errors count for all.
    """
    last = (backward.total_ms + ready).argmax(axis=1)[:, None]
    before = _squares([*calls, *_exchange_margins(margins, BACKWARD, backward)])
    after = _squares(_exchange_margins(margins, FORWARD, forward))
    margin: FloatArray = np.sqrt(np.take_along_axis(before, last, axis=1) + after)
    return margin


def _exchange_margins(margins: Margins, direction: str, chain: Chain) -> list[FloatArray]:
    none = np.zeros_like(chain.total_ms)
    return [none, *(margins.of(exchange_part(direction, one))(ms, none) for one, ms in chain.each_ms.items())]


def _squares(margins: Sequence[FloatArray]) -> FloatArray:
    """(B, D) sum of the squares."""
    squares: FloatArray = np.sum([margin**2 for margin in margins], axis=0)
    return squares


def _beyond_columns(ranges: Ranges, calls: LoadSets, traffic: Traffic) -> tuple[str, ...]:
    """What of other kernel calls and exchanges lies outside what models of these were fitted to."""
    found: list[str] = []
    for number, call in enumerate(CALLS):
        which = np.flatnonzero(calls.calls == number)
        if call != IN_COLUMNS and len(which):
            found += ranges.part_warnings(compute_part(call), of_calls(calls.take(which)))
    for direction, its in ((FORWARD, traffic.forward), (BACKWARD, traffic)):
        for one in its.held:
            if one not in (Collective.ALL_TO_ALL, Collective.INPUT) and its.given(one).any():
                found += ranges.part_warnings(exchange_part(direction, one), of_exchanges(its.alone(one)))
    return tuple(found)
