"""Plans that are verified by measurements, and replanned plans with few and reported moves."""

import logging
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
from torchrec.distributed.planner import ParameterConstraints

from neuroshard import Constraints, MemoryUse, TableRule
from neuroshard.stages.search.evaluate.kernel_measurer import KernelMeasurer
from tests.kit.messages import logged_codes, logged_one, refused
from tests.kit.torchrec_models import bags, planner

SCRIPT = """
import logging
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.planner import Topology
from neuroshard.torchrec import NeuroShardPlanner

print("the job begins", flush=True)
logging.basicConfig()
logging.getLogger("neuroshard").setLevel(logging.INFO)
kind = {"num_embeddings": 500, "embedding_dim": 16}
tables = [EmbeddingBagConfig(name=name, feature_names=[name], **kind) for name in "abc"]
model = EmbeddingBagCollection(tables, device=torch.device("meta"))
planner = NeuroShardPlanner(Topology(2, "cpu"), batch_size=64, verify="mirrored", candidate_plans=2, passes=2)
print(len(planner.plan(model).plan[""]), "tables are planned")
"""


@dataclass(frozen=True)
class _TakesTheLast:
    """A verifier that takes the last candidate plan, with a remark."""

    candidate_plans: int = 3

    def decided(self, searcher, task, simulator):
        """The last one of so many."""
        found = searcher.find(task, simulator)
        return replace(
            found, plan=searcher.candidate_plans(found.plan, simulator, self.candidate_plans)[-1], remark="the last one"
        )


def test_planner_with_verifier_uses_the_plan_that_the_verifier_chooses(caplog):
    caplog.set_level(logging.INFO, "neuroshard")
    model, verified, predicted = bags("a", "b", "c", "d"), planner(verify=_TakesTheLast()), planner()
    taken = verified.search(model)
    assert taken.placements != predicted.search(model).placements
    assert "the last one" in caplog.text
    assert verified.last_cost.total_ms >= predicted.last_cost.total_ms


def test_planner_does_not_verify_a_kept_plan_again(path):
    model = bags("a", "b", "c", "d")
    first, again = (planner(verify=_TakesTheLast(), keep=path) for _ in range(2))
    assert first.plan(model) == again.plan(model)
    assert again.last_plan == first.last_plan
    kept = path.read_bytes()
    planner(verify=_TakesTheLast(candidate_plans=1), keep=path).plan(model)
    assert path.read_bytes() != kept


def test_replan_does_not_measure_candidate_plans():
    model = bags("a", "b")
    before = planner().search(model)
    never = object()  # can decide nothing
    assert planner(verify=never).replan(bags("a", "b", "c"), previous=before).plan.task.tables[2].name == "c"


@pytest.mark.parametrize("verify", ["steps", "mirrored"])
@pytest.mark.parametrize("pipeline", ["none", "sparse_dist", "semi_sync", None])
def test_steps_are_measured_with_the_input_dist_if_costs_count_it(verify, pipeline):
    finder = planner(verify=verify, models="cpu", pipeline=pipeline)._finder
    assert finder.verifier.measure.protocol.pipeline == ("none" if pipeline == "none" else "sparse_dist")
    assert finder.simulator.count_input == (pipeline == "none")


def test_verify_kernels_with_pipeline_none_uses_the_kernel_measurer():
    assert planner(verify="kernels", models="cpu", pipeline="none")._finder.verifier.measure == KernelMeasurer()


@pytest.mark.slow
def test_verifying_in_a_script_without_a_main_guard_runs_the_script_once(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the job begins", "3 tables are planned"]
    assert done.stderr.count("INFO:neuroshard.torchrec.finder:") == 1  # of the measurement


SIZE = 100 * 16 * 4  # bytes of each table


def _unperturbed(devices=2, cap=1 << 20, **settings):
    return planner(devices, cap=cap, memory=MemoryUse(), improvement={"perturbations": 0}, **settings)


def _devices(plan):
    return {name: sorted(parameter.ranks) for name, parameter in plan.plan[""].items()}


def test_replanning_moves_nothing_if_no_bytes_may_move(path):
    ours = _unperturbed()
    before = ours.search(bags("a", "b", "c", "d"))
    where = _devices(ours.plan(bags("a", "b", "c", "d")))
    changed = ours.replan(bags("b", "c", "d", "new"), previous=before, max_moved_bytes=0)
    after = _devices(changed.sharding_plan)
    assert {name: after[name] for name in ("b", "c", "d")} == {name: where[name] for name in ("b", "c", "d")}
    assert changed.moved_bytes == 0
    assert changed.plan == ours.last_plan
    told = {change.table: change for change in changed.changes}
    assert set(told) == {"a", "new"}
    assert (told["a"].after, told["new"].before, told["new"].size_bytes) == ((), (), SIZE)
    moved, since, *_ = str(changed).splitlines()
    assert "0 bytes" in moved
    assert all(table in since for table in ("(new)", "(a)"))
    assert any("table new" in line and "6.25 KiB" in line for line in str(changed).splitlines())
    before.save(path)
    same = ours.replan(bags("b", "c", "d", "new"), previous=path, max_moved_bytes=0)
    assert same.plan == changed.plan


def test_replanned_plan_is_kept_in_the_file(path):
    ours = _unperturbed(keep=path)
    before = ours.plan(bags("a", "b"))
    changed = ours.replan(bags("a", "b", "c"), previous=path, max_moved_bytes=0)
    again = _unperturbed(keep=path)
    assert again.plan(bags("a", "b", "c")) == changed.sharding_plan
    assert again.last_plan == changed.plan
    assert _devices(before).items() <= _devices(changed.sharding_plan).items()


def test_every_rank_gets_the_replanned_plan(group):
    ours = _unperturbed(1)
    before = ours.search(bags("a", "b"))
    changed = ours.collective_replan(bags("b", "c"), previous=before)
    assert {change.table for change in changed.changes} == {"a", "c"}
    assert ours.last_plan == changed.plan
    with refused("file-missing", names=["nowhere.json"]):
        ours.collective_replan(bags("a"), previous="nowhere.json")
    with refused("replan-previous-type", names=["previous", None]):
        ours.replan(bags("a"), previous=None)
    with refused("replan-setting-fixed", names=["start"]):
        ours.replan(bags("b", "c"), previous=before, start=before)
    with refused("unknown-name", names=["'nonsense'", "max_moved_bytes"]):
        ours.replan(bags("a", "b"), previous=before, nonsense=1)
    with refused("file-missing", names=["nowhere.json"]):
        ours.replan(bags("a", "b"), previous="nowhere.json")


def test_replanning_moves_shards_if_the_cost_falls():
    crowded = {name: ParameterConstraints(pooling_factors=[9.0]) for name in ("a", "b", "c", "d")}
    before = _unperturbed(searcher="neuroshard", max_splits=0).search(bags("a", "b", "c", "d"))
    ours = _unperturbed(4, constraints=crowded)
    costs = []
    for limit in (0, SIZE, "1MiB"):
        changed = ours.replan(bags("a", "b", "c", "d"), previous=before, max_moved_bytes=limit)
        assert changed.moved_bytes <= (1 << 20 if limit == "1MiB" else limit)
        costs.append(ours.last_cost.total_ms)
    assert costs[0] >= costs[1] > costs[2]


def test_forced_moves_count_first_against_the_limit():
    """One of two devices is removed."""
    before = _unperturbed().search(bags("a", "b", "c", "d"))
    gone = sum(placed.shard.dim * 100 * 4 for placed in before.placements if placed.device == 1)
    with refused("replan-moves-exceed-limit", names=["max_moved_bytes", 10, gone]):
        _unperturbed(1).replan(bags("a", "b", "c", "d"), previous=before, max_moved_bytes=10)
    changed = _unperturbed(1).replan(bags("a", "b", "c", "d"), previous=before, max_moved_bytes=gone)
    assert changed.moved_bytes == gone
    assert set(map(tuple, _devices(changed.sharding_plan).values())) == {(0,)}


def test_shards_that_no_longer_fit_are_moved():
    """Two devices with two tables each, and now with memory for 1.5 tables each, become four devices."""
    before = _unperturbed(max_splits=0).search(bags("a", "b", "c", "d"))
    changed = _unperturbed(4, SIZE * 3 // 2).replan(bags("a", "b", "c", "d"), previous=before)
    assert changed.plan.violations == ()
    assert 0 < changed.moved_bytes <= 4 * SIZE


def test_replan_plans_from_nothing_if_constraints_forbid_the_previous_plan(caplog):
    """Each table may stay alone, but no two tables of one device may stay together."""
    pairs, model = (("a", "b"), ("c", "d")), bags(*"abcd")
    before = _unperturbed(rules=Constraints(together=pairs)).search(model)
    changed = _unperturbed(rules=Constraints(apart=pairs)).replan(model, previous=before)
    logged_one(caplog, "replan-from-nothing")
    ranks = {name: parameter.ranks for name, parameter in changed.sharding_plan.plan[""].items()}
    assert set(ranks["a"]).isdisjoint(ranks["b"])


def test_replan_moves_only_the_table_whose_placement_constraints_forbid(caplog):
    before = _unperturbed(rules=Constraints((TableRule("a", min_shards=2),))).search(bags("a", "b"))
    whole = {"a": ParameterConstraints(sharding_types=["table_wise"])}
    changed = _unperturbed(constraints=whole).replan(bags("a", "b"), previous=before, min_gain=1.0)
    assert "replan-from-nothing" not in logged_codes(caplog)
    assert len(changed.sharding_plan.plan[""]["a"].ranks) == 1
    assert [change.table for change in changed.changes] == ["a"]
