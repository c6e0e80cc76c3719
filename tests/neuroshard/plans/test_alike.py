"""Plans that ask the same of hardware are known as such."""

from dataclasses import replace

from neuroshard.layouts import in_columns, in_rows
from neuroshard.plans.moves import layout_key
from neuroshard.plans.plan import Plan, assemble
from neuroshard.testing import toy_task


def _columns(task, devices):
    return assemble(task, [(i, table.dim, devices[i]) for i, table in enumerate(task.tables)])


def test_the_order_of_devices_does_not_count():
    task = toy_task(4, num_devices=4)
    plan = _columns(task, [0, 1, 2, 2])
    assert layout_key(plan) == layout_key(_columns(task, [3, 0, 1, 1]))
    assert layout_key(plan) != layout_key(_columns(task, [0, 1, 2, 3]))
    assert layout_key(plan) != layout_key(_columns(task, [0, 2, 1, 2]))


def test_hosts_count_where_there_are_several():
    task = toy_task(4, num_devices=4)
    task = replace(task, topology=replace(task.topology, devices_per_host=2))
    plan = _columns(task, [0, 1, 2, 3])
    swapped = _columns(task, [3, 2, 0, 1])  # the hosts, and the first one's devices
    assert layout_key(plan) == layout_key(swapped)
    assert layout_key(plan) != layout_key(_columns(task, [0, 2, 1, 3]))


def test_columns_are_alike_and_rows_are_not():
    task = toy_task(3, num_devices=2)
    wide = next(i for i, table in enumerate(task.tables) if table.dim >= 16)
    dim, rest = task.tables[wide].dim, [i for i in range(3) if i != wide]
    others = in_columns(task, [(i, task.tables[i].dim, 0) for i in rest])
    one, other = (
        Plan(task, (*others, *in_columns(task, [(wide, width, 0), (wide, dim - width, 1)]))) for width in (4, dim - 4)
    )
    assert layout_key(one) != layout_key(other)
    blocks = [Plan(task, (*others, *in_rows(task, wide, devices))) for devices in ([0, 1], [1, 0])]
    in_order = layout_key(blocks[0]) == layout_key(blocks[1])
    assert in_order == (blocks[0] == blocks[1])  # the block beside the others is another one
    assert layout_key(blocks[0]) != layout_key(one)
