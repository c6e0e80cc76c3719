"""Draw random exchanges between devices, from balanced to very unbalanced exchanges, to be measured.
This is the training data of the communication cost model (NeuroShard, section 3.1).
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from neuroshard.measure.store.samples import CommSample
from neuroshard.measure.store.splits import TEST, TRAIN, VALID
from neuroshard.plumbing.arrays import IntArray
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import ByteSize, Devices, Dim, NonNegative, Share, TableCount
from neuroshard.stages.augment.compute import one_of
from neuroshard.tables import halvings
from neuroshard.words.collective import BETWEEN_HOSTS, ELEMENT_BYTES, INDEX_BYTES, Collective, collective_named

_SPLITS = (TRAIN,) * 8 + (VALID, TEST)
_LEAST_GRADIENT_BYTES = 4 << 10
# Mean and deviation of the logarithm: 50% of published tables have at most 5, 90% at most 18.
_LOG_POOLING = (np.log(5), 1.0)
_MAX_POOLING = 208  # the largest pooling factor of a published table


@dataclass(frozen=True)
@checked
class CommAugmentation:
    """Settings of the random exchanges between devices that are drawn and measured.

    The draw places tables greedily: the widest table first, each on the device with the fewest columns. A fraction of
    the tables, drawn for every sample, goes to random devices instead, so that some exchanges are balanced and others
    are not. Each device starts after a random delay; the maximum delay is drawn for every sample, too.

    Attributes:
        num_devices: list of numbers of devices that take part in an exchange, such as [2,4], with one process per
            device; every number gets the same share of the exchanges.
        max_dim: maximum number of columns of the tables whose embeddings are exchanged, a power of two and at least 4.
        min_tables: minimum number of tables in one measured exchange; applies to the collectives all_to_all (exchange
            of embeddings) and input (exchange of the indices before the lookup).
        max_tables: maximum number of tables in one measured exchange; applies to the collectives all_to_all (exchange
            of embeddings) and input (exchange of the indices before the lookup).
        max_start_ms: maximum random delay, in ms, before a device starts an exchange; the delays stand for devices that
            finish their kernels at different times. CPU kernels take longer than GPU kernels, and delays must cover
            their imbalance.
        collectives: list of exchanges to measure: all_to_all (column-wise outputs), reduce_scatter (row-wise outputs),
            all_reduce (data-parallel gradients), input (indices), on several hosts also host_reduce_scatter and
            host_all_to_all (row-wise within hosts); a repeated name is drawn more often.
        max_row_tables: maximum number of row-wise tables in a reduce_scatter exchange; in a host_reduce_scatter or
            host_all_to_all exchange, the maximum number per host.
        max_gradient_bytes: maximum bytes of all gradients in one all_reduce exchange, which sums the gradients of
            data-parallel tables; at least 4096.
        skewed_fraction: fraction of all_to_all and input exchanges, from 0 to 1, in which some devices get many more
            tables than others; one device may get all tables. Plans with a hot table have such exchanges, and the
            search rejects plans whose exchanges are more unbalanced than any measured exchange.
    """

    num_devices: Annotated[tuple[Devices, ...], Meta(min_length=1)] = (4,)
    max_dim: Dim = 128
    min_tables: TableCount = 10
    max_tables: TableCount = 59
    max_start_ms: NonNegative = 40.0
    collectives: Annotated[tuple[str, ...], Meta(min_length=1)] = ("all_to_all",)
    max_row_tables: TableCount = 10
    max_gradient_bytes: ByteSize = 64 << 20
    skewed_fraction: Share = 0.5

    def __post_init__(self) -> None:
        halvings(self.max_dim)
        if self.min_tables > self.max_tables:
            raise UserError(
                "comm-min-tables-above-max",
                f"comm.min_tables is {self.min_tables}",
                limit=f"comm.min_tables must not be above comm.max_tables, which is {self.max_tables}",
                remedy=f"Set comm.min_tables to {self.max_tables} or less, or raise comm.max_tables",
            )
        if self.max_gradient_bytes < _LEAST_GRADIENT_BYTES:
            raise UserError(
                "comm-max-gradient-bytes-small",
                f"comm.max_gradient_bytes is {self.max_gradient_bytes}",
                limit=f"the minimum is {_LEAST_GRADIENT_BYTES}",
                remedy=f"Set comm.max_gradient_bytes to {_LEAST_GRADIENT_BYTES} or more",
            )
        for name in self.collectives:
            collective_named(name)

    def check(self, devices_per_host: int | None) -> None:
        """Raise UserError if a collective needs several hosts but all devices are on one
        host (`devices_per_host` is None).
        """
        for name in self.collectives:
            if devices_per_host is None and collective_named(name) in BETWEEN_HOSTS:
                raise UserError(
                    "comm-collective-needs-hosts",
                    f"comm.collectives has {name!r}",
                    limit="this collective needs several hosts, but all devices are on one host",
                    remedy=f"Start the command with torchrun on several hosts, or remove {name} from comm.collectives",
                )

    def draw(
        self, num_devices: int, batch_size: int, rng: np.random.Generator, devices_per_host: int | None = None
    ) -> tuple[CommSample, str]:
        """Draw one exchange between `num_devices` processes.
        Return the exchange and the name of the split that it is assigned to: train, valid or test.
        """
        collective = collective_named(one_of(self.collectives, rng))
        sizes = self._sizes(collective, num_devices, batch_size, devices_per_host, rng)
        starts = rng.random(num_devices) * self.max_start_ms * rng.random()
        sample = CommSample(tuple(sizes), tuple(starts.tolist()), batch_size, collective, devices_per_host)
        return sample, str(rng.choice(_SPLITS))

    def _sizes(
        self,
        collective: Collective,
        num_devices: int,
        batch_size: int,
        devices_per_host: int | None,
        rng: np.random.Generator,
    ) -> list[int]:
        """Draw the bytes of each of D devices in one exchange, and return a list, (D,).
        In an input dist, these are the bytes that the device receives. In other exchanges, these are the bytes that the
        device sends.
        """
        if collective in (Collective.ALL_TO_ALL, Collective.INPUT):
            return self._placed(self._table_bytes(collective, batch_size, rng), num_devices, rng)
        if collective is Collective.ALL_REDUCE:
            return [self._gradient_bytes(rng)] * num_devices
        if collective is Collective.REDUCE_SCATTER:
            return [ELEMENT_BYTES * batch_size * self._row_columns(rng)] * num_devices
        assert devices_per_host is not None
        sharers = devices_per_host if collective is Collective.HOST_ALL_TO_ALL else 1
        hosts = [self._row_columns(rng) for _ in range(num_devices // devices_per_host)]
        return [ELEMENT_BYTES * (batch_size // sharers) * dim for dim in hosts for _ in range(devices_per_host)]

    def _table_bytes(self, collective: Collective, batch_size: int, rng: np.random.Generator) -> IntArray:
        """Draw the bytes that each of n tables adds to an exchange, (n,), in decreasing order.

        In an all-to-all, a table adds its output embeddings. In an input dist, a table adds its lengths and indices;
        pooling factors follow the distribution of published tables.
        """
        tables = int(rng.integers(self.min_tables, self.max_tables + 1))
        if collective is Collective.ALL_TO_ALL:
            sizes: IntArray = ELEMENT_BYTES * batch_size * rng.choice(halvings(self.max_dim), size=tables)
        else:
            pooling = np.minimum(rng.lognormal(*_LOG_POOLING, size=tables), _MAX_POOLING)
            sizes = INDEX_BYTES * np.round(batch_size * (1 + pooling)).astype(np.int64)
        return np.sort(sizes)[::-1]

    def _row_columns(self, rng: np.random.Generator) -> int:
        """Draw the number of row-wise tables and the width of each table; return the sum of all widths."""
        tables = int(rng.integers(1, self.max_row_tables + 1))
        return int(rng.choice(halvings(self.max_dim), size=tables).sum())

    def _gradient_bytes(self, rng: np.random.Generator) -> int:
        """Draw the total bytes of the fp32 gradients in an all-reduce;
        the logarithm of the bytes is uniformly distributed.
        """
        least, most = np.log(_LEAST_GRADIENT_BYTES), np.log(self.max_gradient_bytes)
        return ELEMENT_BYTES * int(np.exp(rng.uniform(least, most)) / ELEMENT_BYTES)

    def _placed(self, weights: IntArray, num_devices: int, rng: np.random.Generator) -> list[int]:
        """Place n tables on D devices, partly at random, and return the sum of the bytes on each device, (D,).
        `weights` (n,) has the bytes that each table adds to an exchange.

        A table goes to the device with the fewest bytes so far, or, with a probability that is drawn once, to a random
        device.
        """
        random_share, sums = rng.random(), np.zeros(num_devices, dtype=np.int64)
        skewed = self.skewed_fraction > 0 and rng.random() < self.skewed_fraction
        chances = rng.dirichlet(np.ones(num_devices)) if skewed else None
        for weight in weights:
            at_random = rng.random() < random_share
            device = rng.choice(num_devices, p=chances) if at_random else sums.argmin()
            sums[device] += weight
        return [int(total) for total in sums]
