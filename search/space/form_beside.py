"""What columns cost beside tables in rows or copies, which keep devices busy and exchange something too."""

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.cost.traffic import Traffic, given_bytes
from neuroshard.models.simulator import Simulator
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.stages.search.space.forms import FormedTask
from neuroshard.words.collective import Collective


def beside(simulator: Simulator, formed: FormedTask) -> Simulator:
    """Return a simulator of whole plans, by their columns; the given one where all tables lie in columns."""
    return simulator if formed.whole else _Beside(simulator, formed)


class _Beside(Simulator):
    """A simulator of plans whose columns alone move: tables in rows and copies stay, and add what they cost."""

    def __init__(self, simulator: Simulator, formed: FormedTask) -> None:
        super().__init__(simulator.models, simulator.count_input)
        task, devices = formed.task, formed.task.topology.num_devices
        places = np.array([placed.device for placed in formed.others], dtype=np.int64)
        loads = Loads.placed(task.tables, formed.others, task.batch_size, devices)
        self._compute_ms = self.models.compute.device_ms(LoadSets.grouped(loads, places, devices))
        self._given = np.zeros((devices, len(Collective)))
        np.add.at(self._given, places, given_bytes(loads, devices))
        self._host_size = task.topology.host_size

    def communication(self, traffic: Traffic, compute_ms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Predict (B, D) ms forward and backward of whole plans, from traffic and compute ms (B, D) of columns alone.

        Tables in rows and copies add the same traffic and compute to each of the B plans. The caller adds the compute
        of columns alone to what it gets: so that of the others is counted as backward, which comes before forward
        communication, too.
        """
        given = np.repeat(self._given[None], len(traffic), axis=0)  # (B, D, C) bytes
        given[..., Collective.ALL_TO_ALL] += traffic.given(Collective.ALL_TO_ALL)
        whole = Traffic(given, traffic.batch_size, self._host_size)
        forward_ms, backward_ms = super().communication(whole, compute_ms + self._compute_ms)
        return forward_ms, backward_ms + self._compute_ms
