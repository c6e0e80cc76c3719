"""What an exchange takes of a device at least, whatever the plan: all that bounds know of communication models."""

from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np

from neuroshard.cost.loads import Traffic
from neuroshard.models import CommModel
from neuroshard.models.by_form import CommByCollective
from neuroshard.models.comm_models import HOST_SIGNS, SetComm, in_logarithms
from neuroshard.models.interface import NUM_WAITS, Outline
from neuroshard.models.precision import Narrowed
from neuroshard.models.roofline import RooflineComm
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.words.collective import Collective


@dataclass(frozen=True, eq=False)
class OneDevice:
    """What is known of one of D devices in X exchanges, all of them one all-to-all.

    Attributes:
        given: (2, X) bytes that it gives out, as in `Traffic.size_bytes`: at least, and at most.
        widest: (2, X) that the device gives out which gives out most.
        total_bytes: that all devices give out together.
        num_devices: D.
        batch_size: samples over all devices.
        host_size: as in `Traffic`.
    """

    given: FloatArray
    widest: FloatArray
    total_bytes: float
    num_devices: int
    batch_size: int
    host_size: int | None = None


@singledispatch
def least_outline(_model: CommModel, known: OneDevice) -> Outline:
    """Bound one device's transfer in each exchange, for any waits: by nothing, unless more is known of the model.

    The outline's segments are (X, 1, P): of X exchanges, and of one device of each.
    """
    return Outline(np.zeros((known.given.shape[1], 1, 1)), np.ones(1), np.zeros((1, NUM_WAITS)))


@least_outline.register
def _of_all_to_all(model: CommByCollective, known: OneDevice) -> Outline:
    """Bound transfers by the all-to-all's; what follows it counts as 0."""
    return least_outline(model.exchanges[Collective.ALL_TO_ALL], known)


@least_outline.register
def _of_narrowed(model: Narrowed, known: OneDevice) -> Outline:
    given, widest, total_bytes = known.given * model.share, known.widest * model.share, known.total_bytes * model.share
    return least_outline(model.model, replace(known, given=given, widest=widest, total_bytes=total_bytes))


@least_outline.register(RooflineComm)
def of_widest(model: CommModel, known: OneDevice) -> Outline:
    """Bound every device's transfer by the widest one's, where all wait for it and more bytes never take less."""
    size_bytes = np.zeros((known.widest.shape[1], known.num_devices, 1))
    size_bytes[:, 0, 0] = known.widest[0]
    outline = model.outline(Traffic(size_bytes, np.full(len(size_bytes), known.batch_size), known.host_size))
    return replace(outline, segments_ms=outline.segments_ms[:, :1])


@least_outline.register
def _of_set(model: SetComm, known: OneDevice) -> Outline:
    if known.num_devices == 1:
        return least_outline.dispatch(CommModel)(model, known)
    least, most = _feature_ranges(known)
    if model.sees_hosts:  # of what crosses their links, nothing and everything
        crossing = np.zeros((len(least), len(HOST_SIGNS)))
        least = np.concatenate([least, crossing], axis=1)
        most = np.concatenate([most, crossing + np.log2(1 + known.total_bytes)], axis=1)
    return model.least_between(least, most)


def _feature_ranges(known: OneDevice) -> tuple[FloatArray, FloatArray]:
    """Compute the least and the most of a device's `set_features`, (X, F) each.

    The narrowest device gives out no more than this one, nor than those beside the widest on average.
    """
    devices = known.num_devices
    (low, high), (widest, most_widest) = known.given / devices, known.widest / devices
    everything = np.full_like(low, known.total_bytes / devices)
    narrowest = np.minimum(high, (everything - widest) / (devices - 1))
    least: tuple[FloatArray, ...] = (
        low * (devices - 1), everything - high, low, everything / devices,
        widest * (devices - 1), everything - narrowest, everything * (devices - 1),
    )  # fmt: skip
    most: tuple[FloatArray, ...] = (
        high * (devices - 1), everything - low, high, everything / devices,
        most_widest * (devices - 1), everything, everything * (devices - 1),
    )  # fmt: skip
    batch_size = np.array(known.batch_size)
    return in_logarithms(least, batch_size, devices), in_logarithms(most, batch_size, devices)
