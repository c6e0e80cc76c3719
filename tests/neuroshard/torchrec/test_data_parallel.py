"""The optimizer of data-parallel tables trains them as fused kernels do; with real gloo processes."""

import copy
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection
from torchrec import optim as torchrec_optim
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.fused_embeddingbag import FusedEmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, data_parallel, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.feature_processor_ import PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from neuroshard.torchrec import data_parallel_optimizer, data_parallel_parameters, dense_parameters
from tests.kit import training
from tests.kit.messages import refused
from tests.kit.processes import of_all, on_gloo
from tests.kit.torchrec_models import CPU, META, bag, sequences, shaped_bags

ROWS, DIM, SAMPLES, STEPS = 23, 8, 4, 3
DECAY = {"lr": 0.2, "eps": 1e-3, "weight_decay": 0.3}
OPTIMIZERS = {  # set on the weights, by table
    "sgd": (torch.optim.SGD, {"lr": 0.2}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.3, "eps": 1e-4}),
    "rowwise": (torchrec_optim.RowWiseAdagrad, {"lr": 0.1}),
    "undecayed": (torchrec_optim.RowWiseAdagrad, DECAY),  # FBGEMM takes no weight decay without a mode
    "l2": (torchrec_optim.RowWiseAdagrad, {**DECAY, "weight_decay_mode": WeightDecayMode.L2}),
    "decoupled": (torchrec_optim.RowWiseAdagrad, {**DECAY, "weight_decay_mode": WeightDecayMode.DECOUPLE}),
}
COLLECTIONS = {"first": ["sgd", "rowwise", "l2", "bare"], "second": ["adagrad", "undecayed", "decoupled", "also_bare"]}
TABLES = [name for names in COLLECTIONS.values() for name in names]
READ_BY = {name: [f"f_{name}", f"g_{name}"] if name in ("rowwise", "bare") else [f"f_{name}"] for name in TABLES}
FEATURES = {feature: ROWS for features in READ_BY.values() for feature in features}
KINDS = {
    "data_parallel": lambda number: data_parallel(),
    "fused": lambda number: table_wise(rank=number % 2, compute_kernel="fused"),
    "dense": lambda number: table_wise(rank=number % 2, compute_kernel="dense"),
}


class _Model(nn.Module):
    """Two collections, and a dense network."""

    def __init__(self):
        super().__init__()
        for kind, names in COLLECTIONS.items():
            configs = [bag(name, ROWS, DIM, READ_BY[name]) for name in names]
            collection = EmbeddingBagCollection(configs, device=META)
            for name in OPTIMIZERS.keys() & names:
                optimizer, settings = OPTIMIZERS[name]
                apply_optimizer_in_backward(optimizer, [collection.embedding_bags[name].weight], {**settings})
            setattr(self, kind, collection)
        self.dense = nn.Linear(DIM, 1)

    def forward(self, batch):
        found = {}
        for kind in COLLECTIONS:
            found |= getattr(self, kind)(batch).to_dict()
        return training.uneven_loss(self.dense(found[feature]) for feature in FEATURES)


def _job(kind, fused_params):
    """Shard the model with the sharding `kind` for all tables, from the same weights."""
    model, sharder = _Model(), EmbeddingBagCollectionSharder(fused_params)
    numbered = {name: number for number, name in enumerate(TABLES)}
    plan = ShardingPlan(
        {
            path: construct_module_sharding_plan(
                getattr(model, path),
                {name: KINDS[kind](numbered[name]) for name in names},
                sharder=sharder,
                local_size=2,
                world_size=2,
                device_type="cpu",
            )
            for path, names in COLLECTIONS.items()
        }
    )
    job = training.sharded(model, plan, [sharder])
    training.set_weights(job, training.drawn_weights(dict.fromkeys(TABLES, (ROWS, DIM))))
    for parameter in dense_parameters(job).values():
        parameter.data.copy_(torch.linspace(0.1, 1, parameter.numel()).view_as(parameter))
    return job


def _adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)


def _documented(model):
    tables = data_parallel_optimizer(model)
    dense = KeyedOptimizerWrapper(dense_parameters(model), _adam)
    return CombinedOptimizer([model.fused_optimizer, tables, dense])


def _filtered(model):
    """Make optimizers like a script that filters parameters by their optimizer."""
    tables = data_parallel_optimizer(model)
    others = in_backward_optimizer_filter(model.named_parameters())
    dense = KeyedOptimizerWrapper({name: its for name, its in others if name not in tables.params}, _adam)
    return CombinedOptimizer([model.fused_optimizer, tables, dense])


def _named(model):
    """Make optimizers like a script that filters parameters by name."""
    dense = {name: its for name, its in model.named_parameters() if "embedding_bags" not in name}
    return CombinedOptimizer(
        [model.fused_optimizer, data_parallel_optimizer(model), KeyedOptimizerWrapper(dense, _adam)]
    )


def _step(job, optimizer, rank, step):
    optimizer.zero_grad()
    job(training.drawn_lookups(FEATURES, SAMPLES, rank, step)).backward()
    optimizer.step()


def _same(job, other):
    """Check that all weights here are equal in both jobs, of which the other one has whole tables on every rank."""
    training.check_held(job, training.tables_of(other, TABLES))
    for one, another in zip(dense_parameters(job).values(), dense_parameters(other).values(), strict=True):
        torch.testing.assert_close(one, another)


def _same_states(whole, others):
    """Check that the tables here have the same states, whole on every rank in the first."""
    for name, states in others.items():
        if name.split(".")[-2] in TABLES:
            for key, state in states.items():
                for shard in (
                    [its.tensor for its in state.local_shards()] if hasattr(state, "local_shards") else [state]
                ):
                    torch.testing.assert_close(whole[name][key], shard, rtol=1e-4, atol=1e-5)  # sums of squares


def _train_as_fused(rank, kind, fused_params, idiom, division=True):
    set_gradient_division(division)
    try:
        jobs = _job("data_parallel", fused_params), _job(kind, fused_params)
        optimizers = idiom(jobs[0]), _documented(jobs[1])
        assert optimizers[0].params.keys() == dict(jobs[0].named_parameters()).keys()
        before = [{name: its.detach().clone() for name, its in jobs[0].named_parameters()}]
        for step in range(STEPS):
            for job, optimizer in zip(jobs, optimizers, strict=True):
                _step(job, optimizer, rank, step)
            _same(jobs[1], jobs[0])
            before.append({name: its.detach().clone() for name, its in jobs[0].named_parameters()})
        for earlier, later in pairwise(before):
            assert not any(torch.equal(earlier[name], later[name]) for name in earlier)  # all of them train
        _same_states(*(optimizer.state_dict()["state"] for optimizer in optimizers))
    finally:
        set_gradient_division(True)


ROWWISE = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.25, "eps": 1e-2}


def test_data_parallel_optimizer_trains_as_fused_kernels_do():
    cases = {
        "FBGEMM's default optimizer": ("fused", None, _documented),
        "the sharder's": ("fused", ROWWISE, _filtered),
        "filtered by name": ("fused", training.sgd(0.3), _named),
        "gradients summed": ("fused", ROWWISE, _documented, False),
        "dense kernels elsewhere": ("dense", ROWWISE, _documented, False),
    }
    on_gloo(2, of_all, _train_as_fused, cases)


def _resume(rank):
    """A job that loads another one's weights and optimizer states goes on as that one does."""
    jobs = [_job("data_parallel", {"optimizer": kind, "learning_rate": 0.1}) for kind in 2 * [EmbOptimType.ADAM]]
    optimizers = [_documented(job) for job in jobs]
    _step(jobs[0], optimizers[0], rank, step=0)
    _step(jobs[0], optimizers[0], rank, step=1)
    optimizers[1].init_state()  # dense Adam has none before the first step, and no optimizer may add any when it loads
    jobs[1].load_state_dict(jobs[0].state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for job, optimizer in zip(jobs, optimizers, strict=True):
        _step(job, optimizer, rank, step=2)
    for one, another in zip(jobs[0].parameters(), jobs[1].parameters(), strict=True):
        torch.testing.assert_close(one, another, rtol=0, atol=0)


def test_optimizer_states_of_all_tables_are_saved_and_loaded_together():
    on_gloo(2, _resume)


def _all_data_parallel(collection, sharder):
    """Plan a collection for this process alone."""
    ways = {name: data_parallel() for name in sharder.shardable_parameters(collection)}
    given = {"local_size": 1, "world_size": 1, "device_type": "cpu"}
    return construct_module_sharding_plan(collection, ways, sharder=sharder, **given)


def _alone(model, sharder):
    """Shard a model that is one collection, all its tables data_parallel, over this process alone."""
    return training.sharded(model, ShardingPlan({"": _all_data_parallel(model, sharder)}), [sharder])


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("fused_params", "named"),
    [
        ({"optimizer": EmbOptimType.LAMB}, "optimizer=LAMB"),
        ({"optimizer": EmbOptimType.ADAM, "learning_rate": "0.1"}, "lr=0.1"),
        ({"gradient_clipping": True}, "gradient_clipping=True"),
        ({"max_norm": 1.0}, "max_norm=1.0"),
        ({"lr_decay": 0.1}, "lr_decay=0.1"),
        ({"weight_decay_mode": WeightDecayMode.COUNTER}, "weight_decay_mode=COUNTER"),
    ],
)
def test_optimizers_without_dense_support_are_refused_until_replaced(fused_params, named):
    job = _alone(shaped_bags({"a": (5, 4), "b": (5, 6)}), EmbeddingBagCollectionSharder(fused_params))
    with refused("dense-optimizer-setting", names=["'a'", named]):
        data_parallel_optimizer(job)
    replaced = {
        "optimizer": EmbOptimType.EXACT_SGD,
        "lr": 0.5,
        "gradient_clipping": False,
        "max_norm": 0.0,
        "lr_decay": 0.0,
        "weight_decay_mode": WeightDecayMode.NONE,
    }
    with refused("dense-optimizer-setting", names=["'b'", named]):
        data_parallel_optimizer(job, {"a": replaced})
    (group,) = data_parallel_optimizer(job, {"a": replaced, "b": replaced}).param_groups
    assert group["lr"] == 0.5
    assert [*data_parallel_parameters(job)] == ["embedding_bags.a.weight", "embedding_bags.b.weight"]


@pytest.mark.usefixtures("group")
def test_data_parallel_functions_refuse_unsharded_models_and_unknown_tables():
    model = shaped_bags({"a": (5, 4)})
    for function in (data_parallel_optimizer, data_parallel_parameters, dense_parameters):
        with refused("model-not-sharded", names=["EmbeddingBagCollection"]):
            function(model)
    job = _alone(model, EmbeddingBagCollectionSharder())
    with refused("data-parallel-table-unknown", names=["other"]):
        data_parallel_optimizer(job, {"other": {"lr": 1.0}})
    with refused("data-parallel-setting-unknown", names=["'a'", "learning_rate"]) as raised:
        data_parallel_optimizer(job, {"a": {"learning": 1.0}})
    assert "learning" in raised.value.message.what


class _EveryKind(nn.Module):
    """A collection of each kind that TorchRec can look up with dense kernels."""

    def __init__(self):
        super().__init__()
        self.pooled = shaped_bags({"a": (5, 4), "odd": (5, 6)})
        weighted = EmbeddingBagCollection([bag("w", 5, 4)], is_weighted=True, device=META)
        self.weighted = FeatureProcessedEmbeddingBagCollection(
            weighted, {"f_w": PositionWeightedModule(4, device=META)}
        )
        self.sequences = sequences("s", rows=5, dim=4)


@pytest.mark.usefixtures("group")
def test_data_parallel_functions_find_tables_of_every_kind_of_collection():
    model, fused = _EveryKind(), training.sgd(0.1)
    pooled = EmbeddingBagCollectionSharder(fused)
    sharders = {
        "pooled": pooled,
        "weighted": FeatureProcessedEmbeddingBagCollectionSharder(pooled),
        "sequences": EmbeddingCollectionSharder(fused),
    }
    plan = {path: _all_data_parallel(getattr(model, path), sharder) for path, sharder in sharders.items()}
    job = training.sharded(model, ShardingPlan(plan), [*sharders.values()])
    optimizer = data_parallel_optimizer(job)
    assert {name.split(".")[-2] for name in optimizer.params} == {"a", "odd", "w", "s"}
    assert {"position_weight"} == {name.split(".")[-1] for name in dense_parameters(job)}
    assert optimizer.params.keys() | dense_parameters(job).keys() == dict(job.named_parameters()).keys()
    for weights in optimizer.params.values():
        before = weights.detach().clone()
        weights.grad = torch.ones_like(weights)
        optimizer.step()
        torch.testing.assert_close(before - weights, torch.full_like(before, 0.1))
        optimizer.zero_grad()


@pytest.mark.usefixtures("group")
def test_data_parallel_optimizer_leaves_out_tables_that_torchrec_trains_in_backward():
    fused = FusedEmbeddingBagCollection([bag("a", 5, 4)], torch.optim.SGD, {"lr": 0.1}, device=CPU)
    sharder, env = FusedEmbeddingBagCollectionSharder(), ShardingEnv.from_process_group(dist.group.WORLD)
    job = sharder.shard(fused, _all_data_parallel(fused, sharder), env)  # DistributedModelParallel needs GPUs for it
    assert data_parallel_optimizer(job).params == data_parallel_parameters(job) == dense_parameters(job) == {}
    weights = job.embedding_bags["a"].weight
    before = weights.detach().clone()
    job(training.drawn_lookups({"f_a": 5}, 4, rank=0, step=1)).wait().values().sum().backward()
    assert not torch.equal(weights, before)


@pytest.mark.usefixtures("group")
def test_schedulers_and_the_combined_optimizer_change_how_tables_train():
    job = _alone(shaped_bags({"a": (5, 4)}), EmbeddingBagCollectionSharder(training.sgd(0.4)))
    optimizer = data_parallel_optimizer(job)
    combined, scheduler = CombinedOptimizer([optimizer]), torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    (weights,) = optimizer.params.values()
    weights.data.zero_()

    def loss():
        combined.zero_grad()
        looked_up = job(training.drawn_lookups({"f_a": 5}, 64, rank=0, step=1)).wait().values().sum()
        looked_up.backward()
        return looked_up

    loss()
    gradient = weights.grad.clone()
    assert optimizer.step(loss) == 0  # of weights that are zero
    moved = -0.4 * gradient
    torch.testing.assert_close(weights.detach(), moved)
    scheduler.step()
    combined.step()
    torch.testing.assert_close(weights.detach(), moved := moved - 0.2 * gradient)
    combined.update_hyper_parameters({"lr": 1.0})
    combined.step()
    torch.testing.assert_close(weights.detach(), moved := moved - gradient)
    combined.zero_grad()
    combined.step()
    torch.testing.assert_close(weights.detach(), moved)


@pytest.mark.usefixtures("group")
def test_adam_resumes_from_the_step_set_by_set_optimizer_step():
    def trained(step):
        job = _alone(shaped_bags({"a": (5, 4)}), EmbeddingBagCollectionSharder({"optimizer": EmbOptimType.ADAM}))
        optimizer = data_parallel_optimizer(job)
        CombinedOptimizer([optimizer]).set_optimizer_step(step)
        (weights,) = optimizer.params.values()
        before, weights.grad = weights.detach().clone(), torch.ones_like(weights)
        optimizer.step()
        return (before - weights)[0, 0].item()

    corrected = (1 - 0.9) / (1 - 0.9**8), (1 - 0.999) / (1 - 0.999**8)
    assert trained(0) == pytest.approx(0.01, rel=1e-3)
    assert trained(7) == pytest.approx(0.01 * corrected[0] / corrected[1] ** 0.5, rel=1e-3)
