"""Differences between releases of TorchRec; each test passes with every supported release."""

import logging
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

import pytest
from torch import nn
from torchrec.distributed.planner import ParameterConstraints, storage_reservations
from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import CacheParams

from neuroshard.plumbing.errors import MissingPackageError
from neuroshard.torchrec.releases import HAS_DRY_RUN, TORCHREC
from tests.kit.messages import check, logged, logged_codes, refused
from tests.kit.torchrec_models import bags, places, planner, sequences, topology
from tests.neuroshard.torchrec.test_ignored_arguments import Missed
from tests.neuroshard.torchrec.test_torchrec_arguments import CAP, stored_plan

SINCE_1_9 = pytest.mark.skipif(not HAS_DRY_RUN, reason="came with TorchRec 1.9")


def test_torchrec_constants_match_the_installed_release():
    assert version("torchrec").startswith(TORCHREC.removeprefix("TorchRec ") + ".")
    assert (find_spec("torchrec.distributed.planner.dry_run") is not None) == HAS_DRY_RUN


@pytest.mark.skipif(HAS_DRY_RUN, reason="TorchRec has a dry run since 1.9")
def test_dry_run_with_a_release_without_one_is_refused():
    with refused("dry-run-missing", names=[TORCHREC], kind=MissingPackageError):
        import_module("neuroshard.torchrec.dry_run")


@pytest.mark.parametrize("device", ["cpu", "cuda", "mtia"])
def test_planner_delegates_all_tables_on_device_types_without_models(device, caplog):
    """Tables on types of devices without cost models are delegated to TorchRec."""
    model = nn.ModuleDict({"bags": bags(*"abc"), "s": sequences("s")})
    ours = planner(device=device, models=None)
    plan = ours.plan(model)
    assert set(plan.plan["bags"]) == {"a", "b", "c"}
    assert set(plan.plan["s"]) == {"s"}
    ours_too = device in ("cpu", "cuda")
    assert (ours.last_plan is not None) is ours_too
    delegated = [message for message in logged(caplog) if message.code == "tables-delegated"]
    assert len(delegated) == (not ours_too)
    for message in delegated:
        check(message, "tables-delegated", names=["bags.a", device])


# In a process of its own: it gives PyTorch a type of devices, as the makers of TPUs do.
ON_TPUS = """
import torch
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from tests.kit.torchrec_models import bags, planner
torch.utils.rename_privateuse1_backend("tpu")
said = {"a": ParameterConstraints(["table_wise"], ["unfused_tpu"])}
ours = planner(device="tpu", models=None, constraints=said)
its = ours.plan(bags(*"ab")).plan[""]
print(ours.last_plan, its["a"].compute_kernel, its["b"].compute_kernel, its["a"].sharding_spec.shards[0].placement)
"""


def _printed(script, seed="0"):
    """Return the last line that a script prints in a new process."""
    path = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", script], env=path, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@SINCE_1_9
@pytest.mark.slow
def test_tables_on_tpus_are_delegated_with_their_kernels():
    ours, first, second, placement = _printed(ON_TPUS).split()
    assert (ours, first) == ("None", "unfused_tpu")
    assert second in ("fused", "unfused_tpu", "dense")
    assert placement in ("rank:0/tpu:0", "rank:1/tpu:1")


@SINCE_1_9
def test_planner_delegates_modules_of_unknown_sharders(caplog):
    from torchrec.modules.pec_embedding_modules import PECEmbeddingCollection

    model = nn.ModuleDict({"pec": PECEmbeddingCollection(sequences("s")), "bags": bags("a")})
    assert set(planner(device="cuda").plan(model).plan) == {"pec", "bags"}
    (delegated,) = (message for message in logged(caplog) if message.code == "tables-delegated")
    check(delegated, "tables-delegated", names=["pec.s (PECEmbeddingCollection)"])


@SINCE_1_9
def test_planner_delegates_tables_with_unknown_kernels(caplog):
    kernel = "fused_triton"
    sharder = get_default_sharders()[0]
    sharder.compute_kernels = lambda *_: ["fused", kernel]
    constraints = {"a": ParameterConstraints(compute_kernels=[kernel], sharding_types=["table_wise"])}
    plan = planner(device="cuda", constraints=constraints).plan(bags(*"ab"), [sharder])
    assert plan.plan[""]["a"].compute_kernel == kernel
    assert plan.plan[""]["b"].compute_kernel == "fused"
    (delegated,) = (message for message in logged(caplog) if message.code == "tables-delegated")
    check(delegated, "tables-delegated", names=[f"compute_kernels=['{kernel}']"])


@SINCE_1_9
def test_a_plan_whose_context_has_no_fingerprint_is_planned_again(caplog):
    said = {"a": ParameterConstraints(cache_params=CacheParams(load_factor=0.5, stats=Missed()))}
    _, loader = stored_plan(bags(*"ab"), device="cuda", hashed=False, constraints=said)
    loader.context = "some hash"
    found = planner(device="cuda", plan_loader=loader, constraints=said).plan(bags(*"ab"))
    assert set(places(found)) == {"a", "b"}
    (unused,) = (message for message in logged(caplog) if message.code == "plan-loader-not-used")
    check(unused, "plan-loader-not-used", names=["Missed", "stable_fingerprint()"])


HASH = """
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import CacheParams
from tests.kit.torchrec_models import bags
from tests.neuroshard.torchrec.test_torchrec_arguments import stored_plan
several = ["table_wise", "column_wise", "row_wise", "data_parallel"]
kernels = ["fused", "fused_uvm", "fused_uvm_caching", "dense"]
said = {"a": ParameterConstraints(several, kernels, cache_params=CacheParams(load_factor=0.5))}
print(stored_plan(bags(*"abc"), device="cuda", constraints=said)[1].context)
"""


@pytest.mark.slow
def test_context_hashes_of_processes_are_equal_only_since_torchrec_1_9():
    assert (len({_printed(HASH, seed) for seed in "123"}) == 1) is HAS_DRY_RUN


@SINCE_1_9
@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, CAP * 3 // 4 - 3 * 4 * 8 * 20 - 1000),
        ({"model_base_bytes": CAP // 2, "runtime_overhead_bytes": CAP // 8}, CAP * 3 // 8 - 3 * 4 * 8 * 20),
    ],
)
def test_sku_aware_reservation_leaves_its_stated_memory(settings, left, caplog):
    caplog.set_level(logging.INFO)
    given = {"margin_bytes": CAP // 4, "dense_tensor_estimate": 1000} | settings
    reservation = storage_reservations.SKUAwareStorageReservation(**given)
    ours = planner(device="cuda", storage_reservation=reservation, stats=EmbeddingStats())
    ours.plan(bags(*"abc"))
    assert ours.last_plan.task.topology.device_memory == (left, left)
    assert "--- Planner Statistics ---" in caplog.text


def test_get_selected_options_lists_all_parameters_of_the_plan():
    """The executor of TorchRec reads options of all parameters, of delegated ones too."""
    model = nn.ModuleDict({"bags": bags(*"abc", rows=128, dim=32), "s": sequences("s")})
    ours = planner(device="cuda")
    assert ours.get_selected_options() == []
    plan = ours.plan(model)
    options = {option.fqn: option for option in ours.get_selected_options()}
    assert set(options) == {"bags.a", "bags.b", "bags.c", "s.s"}
    for fqn, option in options.items():
        path, name = fqn.split(".")
        assert [shard.rank for shard in option.shards] == plan.plan[path][name].ranks
        assert all(shard.storage.hbm > 0 and shard.perf.total > 0 for shard in option.shards)
    assert ours.get_search_space() is None


def test_selected_options_contain_changes_made_by_callbacks():
    def moved(options):
        for shard in options[0].shards:
            shard.rank = 1
        return options

    constraints = {"a": ParameterConstraints(sharding_types=["table_wise"])}
    ours = planner(callbacks=[moved], constraints=constraints)
    assert ours.plan(bags("a")).plan[""]["a"].ranks == [1]
    assert [shard.rank for option in ours.get_selected_options() for shard in option.shards] == [1]


def _stashed(*names, device="cuda", **settings):
    model = bags(*names, rows=1 << 12, dim=64)
    for config in model.embedding_bag_configs():
        config.stash_weights = config.name in "ab"
    ours = planner(device=device, cap=1 << 26, **settings)
    return ours, ours.plan(model)


@pytest.mark.parametrize(
    ("names", "on_host", "taken"),
    [
        ("cd", 2, 0),
        ("acd", 2, 1),
        ("abcd", 2, 2),
        ("abcd", 1, 2),  # on either host, as far as anyone knows beforehand
    ],
)
def test_copies_of_stashed_weights_are_counted_in_host_memory(names, on_host, taken):
    ours, _ = _stashed(*names, on_host=on_host)
    topology = ours.last_plan.task.topology
    assert topology.host_memory_bytes == on_host * (1 << 26) - taken * (1 << 20)
    assert topology.device_memory == (1 << 26, 1 << 26)


def test_stashed_copies_on_a_host_count_at_most_the_memory_of_its_devices():
    model = bags("a", rows=1 << 20, dim=64)
    model.embedding_bag_configs()[0].stash_weights = True
    where = topology(8, "cuda", 1 << 26, on_host=2, ddr_cap=1 << 28)
    constraints = {"a": ParameterConstraints(sharding_types=["column_wise"], min_partition=4)}
    ours = planner(topology=where, constraints=constraints)
    ours.plan(model)
    assert ours.last_plan.task.topology.host_memory_bytes == 2 * ((1 << 28) - (1 << 26))


def test_hosts_that_lack_memory_for_stashed_weights_are_warned_of(caplog):
    where = topology(2, "cuda", 1 << 26, ddr_cap=1 << 18)
    _stashed("a", "c", topology=where)
    (lacking,) = (message for message in logged(caplog) if message.code == "stashed-weights-over-memory")
    check(lacking, "stashed-weights-over-memory", names=[1, "stash_weights=True", "512 KiB", "ddr_cap"])
    caplog.clear()
    _stashed("a", "c", device="cpu")
    assert "stashed-weights-over-memory" not in logged_codes(caplog)


@SINCE_1_9
def test_sharding_options_say_which_weights_are_stashed():
    ours, _ = _stashed("a", "c")
    assert {option.name: option.stash_weights for option in ours.get_selected_options()} == {"a": True, "c": False}
