"""The published search of NeuroShard, implemented plainly and slowly, to compare with the compiled search."""

from neuroshard.cost.loads import LoadSets
from neuroshard.plans.plan import assemble


def plain_search(task, simulator, num_candidates=10, beam_width=3, max_splits=10, points=11, max_factor=1.5):
    """Return the plan and the cost of the published algorithm, which costs one plan at a time by the simulator."""
    best = beam = [_grid_search(task, simulator, _whole(task), points, max_factor)]
    best = best[0]
    for _ in range(max_splits):
        layouts = []
        for layout, _, _ in beam:
            for shard in _candidates(task, simulator, layout, num_candidates):
                split = _split(layout, shard)
                if split not in layouts:
                    layouts.append(split)
        if not layouts:
            break
        placed = [_grid_search(task, simulator, layout, points, max_factor) for layout in layouts]
        beam = sorted(placed, key=lambda p: p[2])[:beam_width]
        if beam[0][2] < best[2]:
            best = beam[0]
    return best[1], best[2]


def _comparable(cost):
    """Round to six significant digits: smaller differences are ties."""
    return float(f"{cost:.5e}")


def _whole(task):
    return [(i, table.dim) for i, table in enumerate(task.tables)]


def _split(layout, shard):
    index, dim = shard
    units = dim // 4
    rest = list(layout)
    rest.remove(shard)
    return sorted([*rest, (index, units // 2 * 4), (index, (units - units // 2) * 4)])


def _alone(task, simulator, shard):
    return simulator.models.compute.predict(LoadSets.of([[task.tables[shard[0]].with_dim(shard[1])]], task.batch_size))[
        0
    ]


def _candidates(task, simulator, layout, count):
    splittable = sorted({shard for shard in layout if shard[1] >= 8})
    by_size = sorted(splittable, key=lambda s: -task.tables[s[0]].with_dim(s[1]).size_bytes)[:count]
    by_cost = sorted(splittable, key=lambda s: -_alone(task, simulator, s))[:count]
    return list(dict.fromkeys([*by_size, *by_cost]))


def _grid_search(task, simulator, layout, points, max_factor):
    mean = task.output_columns / task.topology.num_devices
    best = (layout, None, float("inf"))
    for i in range(points):
        factor = 1.0 + (max_factor - 1.0) * i / max(points - 1, 1)
        plan = _greedy(task, simulator, layout, mean * factor)
        if plan is not None:
            cost = _comparable(simulator.cost(task, plan).total_ms)
            if cost < best[2]:
                best = (layout, plan, cost)
    if best[1] is None:
        plan = _greedy(task, simulator, layout, float("inf"))
        best = best if plan is None else (layout, plan, _comparable(simulator.cost(task, plan).total_ms))
    return best


def _greedy(task, simulator, layout, cap):
    placed = []
    for index, dim in sorted(layout, key=lambda shard: -_alone(task, simulator, shard)):
        options = []
        for device in range(task.topology.num_devices):
            tables = _tables_on(task, [*placed, (index, dim, device)], device)
            size, dims = sum(t.size_bytes for t in tables), sum(t.output_columns for t in tables)
            if dims <= cap + 1e-9 and size <= task.topology.memory_bytes:
                options.append((simulator.models.compute.predict(LoadSets.of([tables], task.batch_size))[0], device))
        if not options:
            return None
        placed.append((index, dim, min(options)[1]))
    return assemble(task, placed)


def _tables_on(task, placed, device):
    dims = {}
    for index, dim, where in placed:
        if where == device:
            dims[index] = dims.get(index, 0) + dim
    return [task.tables[index].with_dim(dim) for index, dim in dims.items()]
