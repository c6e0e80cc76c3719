"""DistributedModelParallel with our plans trains like the unsharded model and keeps weights; real gloo processes."""

from copy import deepcopy

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingCollection
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints
from torchrec.modules.feature_processor_ import PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

from neuroshard import Constraints, Table, TableRule, Task, Tier, TierAssignment, Topology
from neuroshard.plans.plan import assemble
from neuroshard.stages.search.options.tier_changes import reassign_tiers
from neuroshard.testing import ONCE
from neuroshard.torchrec import to_sharding_plan
from neuroshard.words.form import Form
from tests.kit import training
from tests.kit.plans import DATA_PARALLEL, laid_out
from tests.kit.processes import of_all, on_gloo
from tests.kit.torchrec_models import CPU, META, bag, bags, planner, sequence, shaped_bags

SHAPES = {"a": (50, 16), "b": (30, 32), "c": (7, 64)}
READ_BY = {"a": ["f_a"], "b": ["f_b", "g_b"], "c": ["f_c"]}  # two features share b
FEATURES = {feature: SHAPES[name][0] for name, features in READ_BY.items() for feature in features}
SAMPLES, RATE = 8, 0.5

# Places of the tables on 2 devices; on 4, the same with two devices left empty, and one plan over all.
CUT = {1: 20, 0: 44}
PLANS = {
    "table-wise": (0, 1, 0),
    "equal columns": (1, {0: 16, 1: 16}, {0: 32, 1: 32}),
    "unequal columns": ({1: 4, 0: 12}, {0: 28, 1: 4}, CUT),
    "an empty device": (1, 1, 1),
}
HOMES = (
    TierAssignment(Tier.UVM_CACHING, 0.5),
    TierAssignment(Tier.UVM),
    TierAssignment(Tier.UVM_CACHING, 0.1),
)  # FBGEMM keeps no caches on CPU
GRID = {(2, 3): 16, (0, 1): 16}
WIDE = {
    "over all four": (3, {0: 8, 2: 24}, {0: 4, 1: 12, 2: 40, 3: 8}),
    "rows of a host": ([0, 1], 3, [2, 3]),
    "a grid": ({3: 4, 0: 12}, GRID, DATA_PARALLEL),
    "all sharding types": (range(4), GRID, [2, 3]),
}


def _task(world_size):
    tables = tuple(Table(name, *shape, 2.0, ONCE) for name, shape in SHAPES.items())
    return Task(tables, Topology(world_size, 1 << 30, devices_per_host=2), SAMPLES * world_size)


def _formed(world_size):
    """Row-wise and data-parallel places on any number of devices."""
    rows = range(world_size)
    return {
        "rows": (rows, rows, rows),
        "data_parallel": (DATA_PARALLEL, DATA_PARALLEL, DATA_PARALLEL),
        "row-wise, data-parallel and column-wise": (rows, DATA_PARALLEL, CUT),
        "rows of what two features share": (1, rows, DATA_PARALLEL),
    }


def _loss(output):
    """Return the loss with features in a fixed order, because sharded modules reorder features."""
    return training.uneven_loss(output[feature] for feature in FEATURES)


def _train(rank, world_size, plan):
    """Compare one step of the sharded module with one of the whole module."""
    exported, sharder = to_sharding_plan(plan, compute_device="cpu"), EmbeddingBagCollectionSharder(training.sgd(RATE))
    job, whole = training.sharded(shaped_bags(SHAPES, READ_BY), exported, [sharder]), shaped_bags(SHAPES, READ_BY, CPU)
    weights = training.drawn_weights(SHAPES)
    for model in (job, whole):
        training.set_weights(model, weights)
    batches = [training.drawn_lookups(FEATURES, SAMPLES, other, step=1) for other in range(world_size)]

    output, expected = job(batches[rank]), whole(batches[rank])
    given = {name: output[name] + 0 for name in FEATURES}  # waits for it
    close = (
        {"rtol": 1e-5, "atol": 1e-5} if Form.ROW_WISE in plan.forms else {"rtol": 0, "atol": 0}
    )  # sums in other orders
    for name in FEATURES:
        torch.testing.assert_close(given[name], expected[name], **close)
    _loss(output).backward()
    tables = training.tables_of(whole, SHAPES)
    training.descend(tables, [_loss(whole(batch)) for batch in batches], RATE)
    copies = {name for name, form in zip(SHAPES, plan.forms, strict=True) if form is Form.DATA_PARALLEL}
    cut = SHAPES.keys() - copies
    assert not any(torch.equal(shard, weights[name][window]) for name, window, shard in training.held(job, cut))
    shards = training.check_held(job, {name: tables[name] for name in cut})
    copied = training.tables_of(job, copies)
    for name, copy in copied.items():  # their optimizer is the user's own: what it is given is everybody's gradient
        torch.testing.assert_close(copy.grad, tables[name].grad)
        assert copy.grad.abs().max() > 0
    assert shards + len(copied) == sum(placed.device == rank for placed in plan.placements)
    dist.barrier()


@pytest.mark.parametrize(("world_size", "placed"), [pytest.param(2, PLANS, marks=pytest.mark.slow), (4, PLANS | WIDE)])
def test_sharded_training_equals_training_of_the_unsharded_module(world_size, placed):
    task = _task(world_size)
    plans = {name: laid_out(task, *places) for name, places in (placed | _formed(world_size)).items()}
    rows = laid_out(task, *[range(world_size)] * 2, CUT)
    plans["behind caches and in host memory"] = reassign_tiers(rows, task, HOMES)
    cases = {name: (world_size, plan) for name, plan in plans.items()}
    on_gloo(world_size, of_all, _train, cases, local_world_size=2)


KINDS = {"pooled": ("a", "b"), "weighted": ("w",), "sequences": ("whole", "halved", "rows")}
NAMES = [name for names in KINDS.values() for name in names]
TWICE = ("b", "halved")  # which two features read
KINDS_ROWS, KINDS_DIM, KINDS_SAMPLES, STEPS = 41, 8, 4, 3
SERVED = {"whole": "table_wise", "halved": "column_wise", "rows": "row_wise"}


def _read_by(name):
    return [f"f_{name}", f"g_{name}"] if name in TWICE else [f"f_{name}"]


class _EveryKind(nn.Module):
    """A model with a collection of each kind, and a loss over all outputs."""

    def __init__(self, device):
        super().__init__()
        configs = {
            kind: [(sequence if kind == "sequences" else bag)(it, KINDS_ROWS, KINDS_DIM, _read_by(it)) for it in names]
            for kind, names in KINDS.items()
        }
        weighted = EmbeddingBagCollection(configs["weighted"], is_weighted=True, device=device)
        processors = {"f_w": PositionWeightedModule(4, device=device)}
        self.pooled = EmbeddingBagCollection(configs["pooled"], device=device)
        self.weighted = FeatureProcessedEmbeddingBagCollection(weighted, processors)
        self.sequences = EmbeddingCollection(configs["sequences"], device=device)

    def forward(self, batches):
        parts = []
        for kind, names in KINDS.items():
            found = getattr(self, kind)(batches[kind])
            parts += [(kind, found[feature]) for name in names for feature in _read_by(name)]
        return training.uneven_loss(part.values() if kind == "sequences" else part for kind, part in parts)


def _batches(rank, step):
    found = {}
    for number, (kind, names) in enumerate(KINDS.items()):
        rows = {feature: KINDS_ROWS for name in names for feature in _read_by(name)}
        found[kind] = training.drawn_lookups(rows, KINDS_SAMPLES, rank, len(KINDS) * step + number)
    return found


def _planner_of_every_kind(world_size, keep):
    """A planner that gives sequence tables every sharding type."""
    alone = {"whole": "table_wise", "rows": "row_wise", "a": "row_wise"}
    constraints = {name: ParameterConstraints(sharding_types=[kind]) for name, kind in alone.items()}
    rules = Constraints((TableRule("halved", min_shards=2, sharding_types=("column_wise",)),))
    given = {"models": "roofline:h100", "constraints": constraints, "rules": rules, "keep": keep}
    return planner(world_size, cap=1 << 24, on_host=2, batch_size=KINDS_SAMPLES, **given)


def _planned(rank, world_size, keep, model, sharders):
    """Return the plan after keeping it in a file and reading it again."""
    ours = _planner_of_every_kind(world_size, keep / f"{rank}.json")
    plan = ours.collective_plan(model, sharders)
    dist.barrier()
    assert [path.name for path in keep.iterdir()] == ["0.json"]
    again = _planner_of_every_kind(world_size, keep / f"{rank}.json")
    assert again.collective_plan(model, sharders) == plan
    assert again.last_plan == ours.last_plan
    assert {path: set(names) for path, names in plan.plan.items()} == {kind: set(its) for kind, its in KINDS.items()}
    assert {name: sharding.sharding_type for name, sharding in plan.plan["sequences"].items()} == SERVED
    assert plan.plan["pooled"]["a"].sharding_type == "row_wise"  # TorchRec's own planner has no rows of bags on CPUs
    assert [table.name for table in ours.last_plan.task.tables] == NAMES  # on every rank
    assert ours.last_plan.violations == ()
    assert ours.last_cost.total_ms == ours.last_plan.prediction.cost_ms
    return plan


def _train_every_kind(rank, world_size, keep):
    fused = training.sgd(0.01)
    pooled = EmbeddingBagCollectionSharder(fused)
    sharders = [pooled, FeatureProcessedEmbeddingBagCollectionSharder(pooled), EmbeddingCollectionSharder(fused)]
    model, whole = _EveryKind(META), _EveryKind(CPU)
    job = training.sharded(model, _planned(rank, world_size, keep, model, sharders), sharders)
    weights = training.drawn_weights(dict.fromkeys(NAMES, (KINDS_ROWS, KINDS_DIM)))
    for model in (whole, job):
        training.set_weights(model, weights)
        (position,) = [p for name, p in model.named_parameters() if "position_weight" in name]
        position.data.copy_(torch.linspace(0.5, 2, 4))  # they are not trained: by whom is the user's choice
    tables, untrained = training.tables_of(whole, NAMES), deepcopy(whole)
    for step in range(STEPS):
        batches = [_batches(other, step) for other in range(world_size)]
        loss, expected = job(batches[rank]), whole(batches[rank])
        torch.testing.assert_close(loss, expected)
        loss.backward()
        training.descend(tables, [whole(batch) for batch in batches], 0.01)
    assert not torch.allclose(untrained(batches[rank]), expected)
    assert training.check_held(job, tables)
    assert not any(torch.equal(shard, weights[name][window]) for name, window, shard in training.held(job, NAMES))


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_model_with_every_kind_of_tables_trains_as_the_whole_model_does(world_size, tmp_path):
    on_gloo(world_size, _train_every_kind, world_size, tmp_path, local_world_size=2)


def _job_of_one_table(widths):
    task = Task((Table("a", 20, 16, 1.0, ONCE),), Topology(2, 1 << 30), 8)
    plan = assemble(task, [(0, width, device) for device, width in enumerate(widths)])
    exported = to_sharding_plan(plan, compute_device="cpu")
    return training.sharded(bags("a", rows=20, device=CPU), exported, [EmbeddingBagCollectionSharder()])


def _load(rank, *widths):
    """Sharded or whole weights of a job load into another job with the same plan."""
    weights = torch.arange(20 * 16, dtype=torch.float32).view(20, 16)
    saved, job = _job_of_one_table(widths), _job_of_one_table(widths)
    state = saved.state_dict()
    if widths == (4, 12) and rank == 1:  # rank 0's shard is the first one, as wide as TorchRec takes all to be
        with pytest.raises(RuntimeError, match="size mismatch"):
            job.load_state_dict(state)
    else:
        job.load_state_dict(state)
        pairs = zip(training.held(saved, ["a"]), training.held(job, ["a"]), strict=True)
        assert all(torch.equal(one, other) for (*_, one), (*_, other) in pairs)
    job.load_state_dict(dict.fromkeys(state, weights))
    ((_, window, shard),) = training.held(job, ["a"])
    assert torch.equal(shard, weights[window])


def test_weights_load_into_shards_of_one_width_and_whole_ones_into_any():
    on_gloo(2, of_all, _load, {"one width": (8, 8), "two widths": (4, 12)})
