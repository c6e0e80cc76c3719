"""Tables with dense kernels train as fused kernels would train them; real gloo processes."""

from itertools import pairwise

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection
from torchrec import optim as torchrec_optim
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, data_parallel, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from neuroshard.torchrec import data_parallel_optimizer, dense_parameters
from tests.kit import training
from tests.kit.processes import of_all, on_gloo
from tests.kit.torchrec_models import META, bag

ROWS, DIM, SAMPLES, STEPS = 23, 8, 4, 4
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
    """Shard the model with every table in the same way, from the same weights."""
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
    """As scripts have it that filter parameters by their optimizer."""
    tables = data_parallel_optimizer(model)
    others = in_backward_optimizer_filter(model.named_parameters())
    dense = KeyedOptimizerWrapper({name: its for name, its in others if name not in tables.params}, _adam)
    return CombinedOptimizer([model.fused_optimizer, tables, dense])


def _named(model):
    """As scripts have it that filter parameters by name."""
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


def test_data_parallel_tables_train_as_fused_kernels_would_train_them():
    cases = {
        "FBGEMM's default optimizer": ("fused", None, _documented),
        "the sharder's": ("fused", ROWWISE, _filtered),
        "filtered by name": ("fused", training.sgd(0.3), _named),
        "gradients summed": ("fused", ROWWISE, _documented, False),
        "dense kernels elsewhere": ("dense", ROWWISE, _documented, False),
    }
    on_gloo(2, of_all, _train_as_fused, cases)
