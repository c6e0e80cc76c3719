"""How long planning a large TorchRec model takes, and how much memory: 2,000 tables, 64 of them read by several
features, on 12 hosts of 8 GPUs.

usage: planner_scale.py [TABLES] [GPUS]

One pooled collection on the meta device, batch 4,096 a GPU, `roofline:h100`: arithmetic on a datasheet, not a
measurement. The model is planned in a process of its own, so that the peak is that of planning and of what it imports;
that of imports alone stands beside it. Let nothing else run.
"""

import multiprocessing
import resource
import sys
import time
from multiprocessing.connection import Connection

import numpy as np
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints, Topology

from neuroshard.tables.dlrm_like import dlrm_like
from neuroshard.torchrec import NeuroShardPlanner

_TABLES, _GPUS, _GPUS_PER_HOST = 2000, 96, 8
_SHARED, _MOST_FEATURES = 64, 19  # tables that several features read, and how many read one at most
_BATCH_SIZE = 4096  # of one GPU
_DIMS = (16, 32, 64, 128)
_HBM_BYTES = 80 << 30


def main() -> None:
    given = [int(text) for text in sys.argv[1:]]
    num_tables, num_gpus = (*given, *(_TABLES, _GPUS)[len(given) :])
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_planned, args=(num_tables, num_gpus, theirs))
    process.start()
    theirs.close()
    seconds, cpu_s, before_mib, peak_mib, cost_ms, shards = ours.recv()
    process.join()
    print(f"{num_tables} tables ({shards} shards) on {num_gpus} GPUs, predicted {cost_ms:.2f} ms")
    print(f"planned in {seconds:.1f} s ({cpu_s:.1f} s of CPU), peak memory {peak_mib} MiB ({before_mib} MiB before)")


def _planned(num_tables: int, num_gpus: int, out: Connection) -> None:
    topology = Topology(
        num_gpus, "cuda", hbm_cap=_HBM_BYTES, local_world_size=min(_GPUS_PER_HOST, num_gpus), created_by_factory=True
    )
    model, constraints = _model(num_tables)
    planner = NeuroShardPlanner(topology, _BATCH_SIZE, "roofline:h100", constraints)
    before_mib, start, cpu_start = _peak_mib(), time.perf_counter(), time.process_time()
    planner.plan(model, [EmbeddingBagCollectionSharder()])
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
    plan, cost = planner.last_plan, planner.last_cost
    assert plan is not None
    assert cost is not None
    out.send((seconds, cpu_s, before_mib, _peak_mib(), cost.total_ms, len(plan.placements)))


def _model(num_tables: int) -> tuple[EmbeddingBagCollection, dict[str, ParameterConstraints]]:
    """Tables with the published rows and lookups; the first ones are read by 2 to 19 features each."""
    rng = np.random.default_rng(0)
    configs, constraints = [], {}
    for index, table in enumerate(dlrm_like(num_tables)):
        features = int(rng.integers(2, _MOST_FEATURES + 1)) if index < min(_SHARED, num_tables) else 1
        configs.append(
            EmbeddingBagConfig(
                name=table.name,
                num_embeddings=table.rows,
                embedding_dim=int(rng.choice(_DIMS)),
                feature_names=[f"{table.name}_{feature}" for feature in range(features)],
            )
        )
        constraints[table.name] = ParameterConstraints(pooling_factors=[table.pooling_factor] * features)
    return EmbeddingBagCollection(configs, device=torch.device("meta")), constraints


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    main()
