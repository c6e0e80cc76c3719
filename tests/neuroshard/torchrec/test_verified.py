"""Plans that are measured before a job gets them."""

import logging
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest

from neuroshard.plumbing.errors import UserError
from neuroshard.searching.searcher import Found
from neuroshard.stages.search.runs.in_parts import InParts
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
rows = {"a": 1000, "b": 500, "c": 20}
kind = dict(embedding_dim=16)
tables = [EmbeddingBagConfig(name=n, num_embeddings=its, feature_names=[n], **kind) for n, its in rows.items()]
model = EmbeddingBagCollection(tables, device=torch.device("meta"))
planner = NeuroShardPlanner(Topology(2, "cpu"), batch_size=64, verify="mirrored", finalists=2, passes=2)
print(len(planner.plan(model).plan[""]), "tables are planned")
"""


@dataclass(frozen=True)
class _TakesTheLast:
    """Takes the last finalist, and says so."""

    finalists: int = 3

    def decided(self, searcher, task, simulator):
        """The last one of so many."""
        found = searcher.find(task, simulator)
        return replace(found, plan=searcher.finalists(found.plan, simulator, self.finalists)[-1], remark="the last one")


class _TakesNone:
    def decided(self, searcher, task, simulator) -> Found:
        """Fail the test."""
        raise AssertionError("nothing is to be measured")


def _planner(**settings):
    return planner(2, searcher="neuroshard", **settings)


def test_the_verifiers_plan_is_taken(caplog):
    caplog.set_level(logging.INFO, "neuroshard")
    model, verified, predicted = bags("a", "b", "c", "d"), _planner(verify=_TakesTheLast()), _planner()
    taken = verified.search(model)
    assert taken.placements != predicted.search(model).placements
    assert "the last one" in caplog.text
    assert verified.last_cost.total_ms >= predicted.last_cost.total_ms


def test_a_kept_plan_is_not_measured_again(tmp_path):
    model, path = bags("a", "b", "c", "d"), tmp_path / "plan.json"
    first = _planner(verify=_TakesTheLast(), keep=path)
    planned = first.plan(model)
    again = _planner(verify=_TakesTheLast(), keep=path)
    assert again.plan(model).plan.keys() == planned.plan.keys()
    assert again.last_plan.placements == first.last_plan.placements
    kept = path.read_bytes()
    _planner(verify=_TakesTheLast(finalists=1), keep=path).plan(model)
    assert path.read_bytes() != kept


def test_what_is_changed_after_a_plan_is_not_measured():
    model = bags("a", "b")
    before = _planner().search(model)
    assert _planner(verify=_TakesNone()).replan(bags("a", "b", "c"), previous=before).plan.task.tables[2].name == "c"


@pytest.mark.parametrize(
    ("pipeline", "steps"),
    [("none", "none"), ("sparse_dist", "sparse_dist"), ("semi_sync", "sparse_dist"), (None, "sparse_dist")],
)
@pytest.mark.parametrize("verify", ["torchrec", "mirrored"])
def test_steps_are_measured_with_the_exchange_of_indices_where_costs_count_it(verify, pipeline, steps):
    finder = _planner(verify=verify, models="cpu", pipeline=pipeline)._finder
    assert finder.verifier.means.protocol.pipeline == steps
    assert finder.simulator.count_input == (steps == "none")


def test_kernels_and_exchanges_have_no_pipeline():
    assert _planner(verify="hardware", models="cpu", pipeline="none")._finder.verifier.means == InParts()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"verify": "mirored", "models": "cpu"}, "did you mean 'mirrored'"),
        ({"verify": "mirrored"}, "models by their name or path"),
        ({"verify": "mirrored", "models": "cpu", "passes": 1}, "passes"),
        ({"verify": "mirrored", "models": "cpu", "finalists": 0}, "finalists"),
    ],
)
def test_what_cannot_be_asked(settings, said):
    with pytest.raises(UserError, match=said):
        _planner(**settings)


@pytest.mark.slow
def test_a_script_without_a_guard_is_not_run_again_by_what_measures(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the job begins", "3 tables are planned"]
    assert "INFO:neuroshard.torchrec.finder:measured" in done.stderr
