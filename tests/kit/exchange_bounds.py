"""A test that every communication model must pass, besides its conformance class: bounds say no more than is so."""

import numpy as np

from neuroshard.cost.loads import Traffic
from neuroshard.models.interface import device_waits, waits
from neuroshard.stages.search.space.exchange_bounds import OneDevice, least_outline

_ROUNDING = 1e-5


class Bounded:
    """A test of the model of 4 devices that `make` makes."""

    def test_transfers_are_no_shorter_than_their_least_outline(self):
        """Only a range of a device's and the widest one's bytes is told; waits are as they come."""
        rng = np.random.default_rng(0)
        dims, starts = rng.integers(1, 200, size=(16, 4)) * 4.0, rng.uniform(0, 20, size=(16, 4))
        model, slack = self.make(), np.random.default_rng(1).uniform(0, 0.5, size=len(dims))
        traffic, wait_ms = Traffic.of_columns(dims, 256), waits(starts)
        transfer_ms, lead_ms = model.transfer_ms(traffic, wait_ms), device_waits(wait_ms)
        sizes = traffic.size_bytes.sum(axis=-1)
        for b, device in np.ndindex(sizes.shape):
            total, ends = sizes[b].sum(), np.array([[1 - slack[b]], [1 + slack[b]]])
            own, widest = (np.minimum(given * ends, total) for given in (sizes[b, device], sizes[b].max()))
            outline = least_outline(model, OneDevice(own, widest, float(total), sizes.shape[1], 256))
            left = np.maximum(outline.segments_ms[0, 0] - outline.lead @ lead_ms[b, device], 0) @ outline.share
            assert left <= transfer_ms[b, device] * (1 + _ROUNDING)
