"""What columns cost beside tables in rows or copies, which keep devices busy and exchange something too."""

import numpy as np

from neuroshard.arrays import FloatArray
from neuroshard.loads import Loads, LoadSets
from neuroshard.simulator import Simulator
from neuroshard.stages.search.space.forms import FormedTask
from neuroshard.traffic import Collective, Traffic, given_bytes


def beside(simulator: Simulator, formed: FormedTask) -> Simulator:
    """A simulator for steps of a task's columns; where all tables lie in columns, the one that is given."""
    return simulator if formed.whole else _Beside(simulator, formed)


class _Beside(Simulator):
    """A simulator for steps of columns: exchanges are of whole plans, whose other tables stay where they are."""

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
        """Of devices whose columns have such traffic and compute costs (B, D): of all tables, (B, D) ms each.

        What the others compute comes with backward communication: forward communication waits for both.
        """
        sent = np.repeat(self._given[None], len(traffic), axis=0)
        sent[..., Collective.ALL_TO_ALL] += traffic.given(Collective.ALL_TO_ALL)
        whole = Traffic(sent, traffic.batch_size, self._host_size)
        forward, backward = super().communication(whole, compute_ms + self._compute_ms)
        return forward, backward + self._compute_ms
