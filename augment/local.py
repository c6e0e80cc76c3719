"""Draw random plans for measured training steps, with several sharding types and few or many devices.
The steps are mirrored: one process does the work of one rank of a larger job, and no other rank runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from msgspec import Meta

from neuroshard.layouts import COLUMN_WISE_LAYOUT, DATA_PARALLEL_LAYOUT, LAYOUTS, Layout, place_column_wise
from neuroshard.measure.store.samples import LocalSample
from neuroshard.measure.store.splits import Split, draw_split
from neuroshard.plans.plan import Plan
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import UserError
from neuroshard.plumbing.schema import DIM_MULTIPLE, BatchSize, ByteSize, Devices, Features, ShardDim, Share, TableCount
from neuroshard.tables import Table, halvings
from neuroshard.tasks.task import Task
from neuroshard.words.collective import ELEMENT_BYTES, Precision
from neuroshard.words.form import CALLS, Call
from neuroshard.words.placement import Placement
from neuroshard.words.topology import Topology

_HOST = 4  # devices per host in jobs on several hosts
_SHARES = {
    COLUMN_WISE_LAYOUT: 2.0,
    DATA_PARALLEL_LAYOUT: 0.7,
}  # expected share of a plan's tables, relative to 1 for other layouts
_MEMORY = 1 << 40  # never the limit: `max_bytes` limits the tables


@dataclass(frozen=True)
@checked
class PlanAugmentation:
    """Settings for random plans. `collect` draws the plans, and measures the local work of one rank in a training step
    of each plan.

    Attributes:
        num_devices: list of job sizes in devices, such as [2,4,8]; the job size of each measured training step is drawn
            from this list, and a number listed twice is drawn twice as often.
        batch_sizes: list of numbers of samples per device, such as [512,1024]; the number for each measured training
            step is drawn from this list, and reduced if the global batch size exceeds max_batch_size.
        max_batch_size: maximum global batch size (samples per step over all devices) of a measured training step.
        max_dim: maximum number of columns of a table, a power of two from 4 to 2048; tables get max_dim halved a random
            number of times, down to 4. Widths are max_dim halved any number of times, down to 4.
        max_tables: maximum number of tables in a measured training step.
        max_bytes: maximum bytes of the weights of one table; a larger table gets fewer columns, or is left out if the
            table is still too large.
        max_copy_bytes: maximum bytes of the weights of one data-parallel table.
        max_output_bytes: maximum bytes of the outputs of all tables for the samples of one device (its share of the
            global batch); tables beyond this limit are left out.
        features: list of numbers of features that read the same table, such as [1,2]; the number of each table is drawn
            from this list, and a number listed twice is drawn twice as often.
        sequences: fraction of the measured training steps, from 0 to 1, in which about a third of the tables are
            sequence tables (one output row per lookup).
        precisions: list of data types of embeddings and gradients in exchanges (fp32, fp16 or bf16), such as
            [fp32,fp16]; the data type of each measured training step is drawn from this list, and None means fp32 only.
            The difference between fp32 and another data type is the time of conversion.
    """

    num_devices: Annotated[tuple[Devices, ...], Meta(min_length=1)] = (2, 2, 2, 4, 4, 8, 16, 32, 64, 128)
    batch_sizes: Annotated[tuple[BatchSize, ...], Meta(min_length=1)] = (64, 128, 256, 512, 1024, 2048)
    max_batch_size: BatchSize = 16384
    max_dim: ShardDim = 128
    max_tables: TableCount = 60
    max_bytes: ByteSize = 128 << 20
    max_copy_bytes: ByteSize = 8 << 20
    max_output_bytes: ByteSize = 64 << 20
    features: Annotated[tuple[Features, ...], Meta(min_length=1)] = (1, 1, 1, 2, 3)
    sequences: Share = 0.25
    precisions: Annotated[tuple[str, ...], Meta(min_length=1)] | None = None

    def __post_init__(self) -> None:
        halvings(self.max_dim)
        for precision in self.precisions or ():
            if Precision(precision).element_bytes < 2:
                raise UserError(
                    "local-precision-too-narrow",
                    f"local.precisions has {precision!r}",
                    limit=f"TorchRec cannot exchange the outputs of row-wise tables in {precision}",
                    remedy=f"Replace {precision} by fp16 or bf16 in local.precisions",
                )

    def check(self, split: Split) -> None:
        """Raise UserError if a split has no table that fits into `max_bytes` at the minimum width."""
        for name, group in split.items():
            least = self._least(group)
            if least.size_bytes > self.max_bytes:
                raise UserError(
                    "local-tables-too-large",
                    f"local.max_bytes is {self.max_bytes}",
                    limit=f"the smallest table of the {name} split, {least.name!r}, takes {least.size_bytes} bytes "
                    f"even with only {least.dim} columns",
                    remedy=f"Set local.max_bytes to {least.size_bytes} or more",
                )

    def _least(self, group: Sequence[Table]) -> Table:
        """Narrow copies of all tables in `group` to the minimum width that the settings allow, and return the copy that
        takes the fewest bytes.
        """
        return min((table.with_dim(halvings(self.max_dim)[-1]) for table in group), key=lambda table: table.size_bytes)

    def draw(self, split: Split, rng: np.random.Generator) -> tuple[LocalSample, str]:
        """Draw a random sample and the name of a split, and return both. The sample has a random plan and one random
        rank of the plan. All tables of the plan come from the drawn split.
        """
        name = draw_split(rng)
        devices = int(rng.choice(self.num_devices))
        each = min(int(rng.choice(self.batch_sizes)), max(self.max_batch_size // devices, 1))
        host = _HOST if devices > _HOST and rng.random() < 0.4 else None
        topology = Topology(devices, _MEMORY, devices_per_host=host)
        task = Task(self._tables(split[name], each, rng), topology, each * devices)
        plan, rank = self.placed(task, rng), int(rng.integers(devices))
        return LocalSample(plan, rank, Precision(rng.choice(self.precisions or [Precision.FP32]))), name

    def _tables(self, group: Sequence[Table], samples: int, rng: np.random.Generator) -> tuple[Table, ...]:
        """Draw tables from `group`, give them random widths, and return the drawn tables. `samples` is the number of
        samples per device in a step. Tables are left out if the outputs of all drawn tables for these samples take more
        than `max_output_bytes`, but at least one table is returned.

        In a quarter of the draws all tables are narrow, and independently in a quarter all tables are small enough for
        copies.
        """
        widths = halvings(self.max_dim)
        widths = widths[len(widths) // 2 :] if rng.random() < 0.25 else widths
        most = self.max_copy_bytes if rng.random() < 0.25 else self.max_bytes
        unpooled, width = rng.random() < self.sequences, int(rng.choice(widths))
        tables: list[Table] = []
        for number in rng.permutation(len(group)):
            pooled = not unpooled or rng.random() < 2 / 3
            features, drawn = int(rng.choice(self.features)), int(rng.choice(widths))
            table = replace(group[number], dim=drawn if pooled else width, pooled=pooled, features=features)
            narrower = [table.with_dim(dim) for dim in widths if dim <= table.dim] if pooled else [table]
            tables += [fitted for fitted in narrower if fitted.size_bytes <= most][:1]
        chosen = (tables or [self._least(group)])[: int(rng.integers(1, self.max_tables + 1))]
        outputs = np.cumsum([ELEMENT_BYTES * table.output_columns * samples for table in chosen])
        return tuple(chosen[: max(int((outputs <= self.max_output_bytes).sum()), 1)])

    def placed(self, task: Task, rng: np.random.Generator) -> Plan:
        """Place the tables of the task on random devices, with random sharding types; return the plan.

        Some tables are split in halves, and some plans prefer the first devices. In a tenth of the plans all tables are
        column-wise; in another tenth, all tables that can be are data-parallel.
        """
        layouts = tuple(layout for layout in LAYOUTS.values() if layout.words)  # TorchRec cannot run other layouts
        often = [_SHARES.get(layout, 1.0) for layout in layouts]
        only = COLUMN_WISE_LAYOUT if rng.random() < 0.5 else DATA_PARALLEL_LAYOUT
        shares = rng.dirichlet(often) if rng.random() < 0.8 else [float(layout is only) for layout in layouts]
        halved, favoured = rng.random() * (rng.random() < 0.5), rng.random() < 0.4
        devices = task.topology.num_devices
        placed: list[Placement] = []
        for number, table in enumerate(task.tables):
            layout = layouts[int(rng.choice(len(layouts), p=shares))]
            if group := self._group(layout, task, table, rng):
                placed += layout.over(task, number, group)
            else:
                where = [
                    int(drawn) for drawn in (rng.geometric(0.3, 2) - 1 if favoured else rng.integers(devices, size=2))
                ]
                here, there = (min(device, devices - 1) for device in where)
                cut = table.pooled and table.dim >= 2 * DIM_MULTIPLE and here != there and rng.random() < halved
                halves = [(number, table.dim // 2, here), (number, table.dim // 2, there)]
                placed += place_column_wise(task, halves if cut else [(number, table.dim, here)])
        return Plan(task, tuple(placed))

    def _group(self, layout: Layout, task: Task, table: Table, rng: np.random.Generator) -> list[int]:
        """Draw the devices over which a table is sharded, and return the device numbers. The devices are all devices of
        the task, or all devices of one random host. `layout` is a family of sharding types, such as row-wise. Return an
        empty list if `layout` is column-wise, if the table cannot be sharded by `layout`, or if a copy of a
        data-parallel table would take more than `max_copy_bytes`. The caller then places the table column-wise.
        """
        too_large = layout.dense and table.size_bytes > self.max_copy_bytes
        if layout.free or too_large or not layout.takes(table.dim) or Call(layout.form, table.pooled) not in CALLS:
            return []
        size = task.topology.num_devices
        if layout.host_exchanges and table.pooled and task.topology.host_size < size and rng.random() < 0.5:
            size = task.topology.host_size
        first = size * int(rng.integers(task.topology.num_devices // size))
        return [*range(first, first + size)] if layout.fits(table.rows, size) else []
