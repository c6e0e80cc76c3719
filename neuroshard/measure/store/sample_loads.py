"""The inputs of cost models for measured samples: the loads of kernel calls, and the traffic of exchanges."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from neuroshard.cost.loads import Loads, LoadSets, Traffic
from neuroshard.layouts import are
from neuroshard.measure.store.samples import FORWARD, BlockLookups, CommSample, ComputeSample, Measurement
from neuroshard.plumbing.arrays import FloatArray
from neuroshard.tables.reuse import lookup_share, range_reuse
from neuroshard.words.collective import Collective
from neuroshard.words.form import FORMS
from neuroshard.words.placement import block_rows


def loads_of(samples: Sequence[ComputeSample]) -> LoadSets:
    """Return the loads of each kernel call in `samples`, with one set of loads for each call.
    A load is the work that one table causes in the call: the rows, columns, lookups and reuse of the table, for
    example.

    Row blocks have the lookups that were measured, or the expected lookups if the sample was not measured.
    """
    counts = np.array([len(sample.tables) for sample in samples], dtype=np.int64)
    each = np.repeat(np.arange(len(samples)), counts)
    batch_size = np.array([sample.batch_size for sample in samples], dtype=np.int64)
    form = np.array([FORMS.index(sample.form) for sample in samples], dtype=np.int64)
    loads = Loads.of([table for sample in samples for table in sample.tables], batch_size[each])
    loads = replace(loads, form=form[each]).at([sample.tier_assignment for sample in samples for _ in sample.tables])
    return LoadSets(_in_blocks(loads, [sample for sample in samples if sample.blocks]), counts)


def _in_blocks(loads: Loads, samples: Sequence[ComputeSample]) -> Loads:
    """Return a copy of `loads` in which each load of a row-wise table counts only the rows and lookups of one row
    block. A row block has the rows that one device stores. In `loads`, each load of a row-wise table still counts the
    rows and lookups of the whole table. `samples` has the kernel calls with row blocks, which give the rows of each
    block.
    """
    if not samples:
        return loads
    which = np.flatnonzero(are(loads, lambda layout: layout.blocks))
    rows, lookups, reuse = (values.copy() for values in (loads.rows, loads.lookups, loads.reuse))
    sharers = loads.sharers.copy()
    rows[which] = [block.rows for sample in samples for block in sample.blocks]
    sharers[which] = block_rows(loads.rows[which], rows[which])
    seen = [drawn for sample in samples for drawn in sample.lookups or _expected(sample)]
    lookups[which], reuse[which] = [drawn.count for drawn in seen], [drawn.reuse for drawn in seen]
    return replace(loads, rows=rows, lookups=lookups, reuse=reuse, sharers=sharers)


def _expected(sample: ComputeSample) -> Iterator[BlockLookups]:
    """Yield the expected number of lookups, and the expected reuse histogram, of each row block in a kernel call. A row
    block has the rows of a row-wise table that one device stores. The expected values are computed from the statistics
    of the tables. These values are used if the sample has no measured lookups.
    """
    for table, block in zip(sample.tables, sample.blocks, strict=True):
        first, rows = np.array([block.row]), np.array([block.rows])
        whole = sample.batch_size * table.pooling_factor
        reuse = range_reuse(table, whole, first, rows)[0]
        yield BlockLookups(round(whole * lookup_share(table, first, rows)[0]), tuple(reuse.tolist()))


def traffic_of(samples: Sequence[CommSample]) -> Traffic:
    """Return the bytes that each device sends in each exchange, as a `Traffic`.
    `size_bytes` of the result is (n, D, 1), for n exchanges, D devices and one collective: every exchange is treated as
    an all-to-all.

    All exchanges must have the same number of devices and the same hosts.
    """
    size_bytes = np.array([sample.size_bytes for sample in samples], dtype=np.float64)
    batch_size = np.array([sample.batch_size for sample in samples])
    return Traffic(size_bytes[..., None], batch_size, samples[0].devices_per_host)


def starts_of(samples: Sequence[CommSample], direction: int) -> FloatArray:
    """Return the start delay of each of D devices in each of n exchanges, (n, D) ms. In the backward direction, all
    delays are 0.

    All exchanges must have the same number of devices.
    """
    starts: FloatArray = np.array([sample.start_ms for sample in samples]) * (direction == FORWARD)
    return starts


def own_traffic(sample: CommSample) -> Traffic:
    """Return the bytes that each of D devices sends in an exchange, as a `Traffic` (1, D, C) with C types of
    collectives. Only the collective of the exchange has bytes. All other collectives have 0 bytes.
    """
    size_bytes = np.zeros((1, sample.num_devices, len(Collective)))
    size_bytes[0, :, sample.collective] = sample.size_bytes
    return Traffic(size_bytes, np.array([sample.batch_size]), sample.host_size)


def by_group(measurement: Measurement[CommSample]) -> Iterator[Measurement[CommSample]]:
    """Split a measured exchange into groups of devices, and yield a measurement for each group. The devices of a group,
    such as the devices of one host, exchange data only with each other. Each new measurement has the bytes and times of
    one group, and describes the exchange within the group as an all-to-all. A measured all-to-all is not split.

    Groups that exchange nothing are left out, and so are groups of one device, unless the exchange has only one device.
    The measurement must have repeats.
    """
    sample, repeats = measurement.sample, measurement.repeats
    assert repeats is not None
    if sample.collective is Collective.ALL_TO_ALL and any(sample.size_bytes):
        yield measurement
        return
    groups = own_traffic(sample).groups(sample.collective)
    host_size = sample.devices_per_host if len(groups) == 1 else None
    for group in groups:
        sizes, starts = ([values[device] for device in group] for values in (sample.size_bytes, sample.start_ms))
        if any(sizes) and (len(group) > 1 or sample.num_devices == 1):
            alone = CommSample(tuple(sizes), tuple(starts), sample.batch_size, devices_per_host=host_size)
            yield replace(measurement, sample=alone, repeats=replace(repeats, times_ms=repeats.times_ms[..., group]))
