"""Made-up CPUs that differ as machines do: by bandwidths, latencies and caches."""

from dataclasses import fields

import numpy as np

from neuroshard.testing.devices.cpu import MadeUpCpu

_LEAST_REST, _MOST_REST = 1.0, 3.0


def drawn_cpu(rng: np.random.Generator, times: float = 3.0) -> MadeUpCpu:
    """A CPU whose every size and time is the usual one times or over a factor of up to `times`, each its own."""
    usual = MadeUpCpu()
    changed = {
        field.name: getattr(usual, field.name) * times ** rng.uniform(-1, 1)
        for field in fields(usual)
        if field.name != "rest_vectors"
    }
    return MadeUpCpu(**changed, rest_vectors=rng.uniform(_LEAST_REST, _MOST_REST))
