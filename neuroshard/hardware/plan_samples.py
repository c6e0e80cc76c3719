"""What is measured of a plan: a kernel call for each form on each device, and exchanges one after the other."""

from neuroshard.plans.plan import Plan
from neuroshard.records.samples import CommSample, ComputeSample


def kernel_calls(plan: Plan) -> tuple[tuple[ComputeSample, ...], ...]:
    """(D,) calls of each device, which follow one another; none on an empty device."""
    return tuple((ComputeSample(tables, plan.task.batch_size),) if tables else () for tables in plan.device_tables)


def exchanges(plan: Plan, direction: int) -> tuple[CommSample, ...]:  # noqa: ARG001  # columns go both ways
    """The plan's exchanges in one direction, in the order of a step's way forward, without delays."""
    nothing = (0.0,) * plan.task.topology.num_devices
    return (CommSample.of_columns(plan.device_dims, nothing, plan.task.batch_size),)
