"""The dry run of TorchRec with NeuroShard's planner."""

import logging

import pytest
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders

from neuroshard.torchrec.releases import HAS_DRY_RUN
from tests.kit.messages import check, logged
from tests.kit.torchrec_models import bags, places

if not HAS_DRY_RUN:
    pytest.skip("TorchRec 1.8 has no dry run", allow_module_level=True)

from torchrec.distributed.planner.dry_run.api import DryRunOrchestrator
from torchrec.distributed.planner.dry_run.types import DryRunRequest
from torchrec.distributed.planner.executor import DefaultPlannerExecutor
from torchrec.distributed.planner.types import (
    PlannerConfig,
    PlannerErrorType,
    PlannerSessionContext,
    PlannerVariant,
    TrainingFramework,
)

from neuroshard.torchrec.dry_run import NeuroShardProvider, main


def _planned(provider, skus=("H100",), **fields):
    given = {"model": bags(*"abcd", rows=100_000, dim=128), "world_size": 2, "local_world_size": 2, "batch_size": 64}
    given |= {"sharders": get_default_sharders(), "training_framework": TrainingFramework.APF, "hbm_gb": 16.0}
    request = DryRunRequest(sku_list=list(skus), **given | fields)
    context = PlannerSessionContext(request=request, results={})
    return DryRunOrchestrator(DefaultPlannerExecutor(provider)).plan(request, context), context


def test_dry_run_plans_for_each_kind_of_machine_with_its_models():
    provider = NeuroShardProvider({"H100": "h100", "H200": "roofline:h200"}, searcher="dim_greedy")
    results, context = _planned(provider, ("H100", "H200"), capture_search_space=True)
    assert set(results) == {"H100", "H200"}
    for result in results.values():
        assert result.success
        assert {option.fqn.strip(".") for option in result.sharding_options} == {"a", "b", "c", "d"}
        assert places(result.sharding_plan).keys() == {"a", "b", "c", "d"}
        assert result.estimated_max_hbm_bytes >= 2 * 100_000 * 128 * 4
        assert result.critical_path_ms > 0
    assert results["H100"].critical_path_ms != results["H200"].critical_path_ms
    assert context.search_space == {"H100": (), "H200": ()}


def test_dry_run_fails_only_for_the_kind_of_machine_without_models():
    results, _ = _planned(NeuroShardProvider({"H100": "h100"}, searcher="dim_greedy"), ("H100", "B200"))
    assert results["H100"].success
    assert not results["B200"].success
    assert "'B200'" in results["B200"].planner_failure_reason


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"hbm_gb": 0.05, "ddr_gb": 0.05}, PlannerErrorType.INSUFFICIENT_STORAGE),
        ({"constraints": {"a": ParameterConstraints(min_partition=0)}}, PlannerErrorType.OTHER),
    ],
)
def test_a_model_without_a_plan_is_reported_as_torchrec_reports_it(fields, kind):
    reserved = PlannerConfig(storage_reservation_percentage=0.0, dense_tensor_estimate=0)
    results, _ = _planned(NeuroShardProvider(searcher="dim_greedy"), planner_config=reserved, **fields)
    assert not results["H100"].success
    assert results["H100"].planner_error_type is kind


def test_settings_of_the_request_reach_the_planner_or_are_named(caplog):
    caplog.set_level(logging.WARNING)
    config = PlannerConfig(pipeline_type="train_sparse_dist", timeout_seconds=7, partitioner_type="greedy_perf")
    request = DryRunRequest(
        bags("a"), [], 2, 2, 8, sku_list=["A"], training_framework=TrainingFramework.APF, planner_config=config
    )
    context = PlannerSessionContext(request=request, results={})
    provider = NeuroShardProvider(searcher="dim_greedy")
    topology = provider.build_topology("A", request, context)
    built = provider.build_planner(
        "A",
        topology=topology,
        storage_reservation=provider.build_storage_reservation("A", request),
        ctx=context,
    )
    [request] = built._requests
    assert (request.topology, request.batch_size, request.pipeline, request.timeout_s) == (
        topology,
        8,
        "sparse_dist",
        7,
    )
    (unused,) = (message for message in logged(caplog) if message.code == "dry-run-settings-unused")
    check(unused, "dry-run-settings-unused", names=["partitioner_type"])


def test_dry_run_fails_for_other_planner_variants():
    config = PlannerConfig(planner_variant=PlannerVariant.LINEAR_PROGRAMMING)
    results, _ = _planned(NeuroShardProvider(), planner_config=config)
    assert not results["H100"].success
    assert "linear_programming" in results["H100"].planner_failure_reason


def test_the_command_plans_for_each_kind_of_machine(capsys):
    tables = ["--num-tables", "2", "--num-embeddings", "1000", "--world-size", "2", "--hbm-gb", "80"]
    assert main(["--sku-list", "A,B", "--models", "A=h100,B=roofline:h200", *tables]) == 0
    assert "[OK] A" in capsys.readouterr().out
    assert main(["--sku-list", "A,C", "--models", "A=h100", *tables]) == 1
    assert "[FAIL] C" in capsys.readouterr().out
