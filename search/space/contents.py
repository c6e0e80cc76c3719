"""What devices hold, as the sets of loads that compute models are asked with."""

import numpy as np

from neuroshard.arrays import IntArray
from neuroshard.loads import LoadSets
from neuroshard.schema import DIM_MULTIPLE
from neuroshard.stages.search.space.items import Items


class DeviceLoads:
    """Turns units of I items on devices into loads."""

    def __init__(self, items: Items) -> None:
        self._loads = items.task.loads
        self._parts = np.array([len(item.parts) for item in items.items], dtype=np.int64)
        self._first_part = self._parts.cumsum() - self._parts
        self._table, self._units = np.array([part for item in items.items for part in item.parts], dtype=np.int64).T

    def sets(self, contents: IntArray) -> LoadSets:
        """Return the loads of n devices that hold so many units of 4 columns of each item, (n, I).

        Of an item that is several tables kept together, a device holds all columns or none.
        """
        device, item = contents.nonzero()
        parts = self._parts[item]
        shard = np.repeat(np.arange(len(item)), parts)  # that each load is a part of
        part = self._first_part[item][shard] + np.arange(len(shard)) - (parts.cumsum() - parts)[shard]
        units = np.where(parts[shard] > 1, self._units[part], contents[device, item][shard])
        loads = self._loads.take(self._table[part]).columns(units * DIM_MULTIPLE)
        return LoadSets(loads, np.bincount(device[shard], minlength=len(contents)))
