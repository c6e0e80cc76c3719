"""Learning: toy tasks with known optimum, repeatable trainings, and saved policies."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neuroshard import InfeasibleError, Simulator
from neuroshard.layouts import place_column_wise
from neuroshard.models.bundle import Card, save_bundle
from neuroshard.stages.search.methods.heuristics import Random
from neuroshard.stages.search.methods.learned import PolicySearch
from neuroshard.stages.search.rl import policies
from neuroshard.stages.search.rl.agent import load_agent
from neuroshard.stages.search.rl.batch import TaskBatch
from neuroshard.stages.search.rl.environment import Environment
from neuroshard.stages.search.rl.learner import Session
from neuroshard.stages.search.rl.policy import greedy, play
from neuroshard.stages.search.runs.train_policy import TrainPolicy, TrainResult
from neuroshard.testing import linear_models, random_models, toy_task
from tests.kit.commands import shown
from tests.kit.messages import refused
from tests.kit.searches import best_ms, ms_of
from tests.search.rl.toys import NETWORK, autoshard, dreamshard, task

POLICIES = Path(policies.__file__).parent
# Best on two devices: the 9 beside the 1 and the 2, the rest together.
KNOWN = [task(lookups) for lookups in ([9, 5, 4, 2, 1], [5, 9, 1, 4, 2], [2, 1, 9, 5, 4], [4, 5, 2, 1, 9])]


def _best_ms(one, simulator):
    """Over all placements."""
    alone = [[place_column_wise(one, [(index, 8, device)]) for device in range(2)] for index in range(len(one.tables))]
    return best_ms(one, alone, simulator)


@pytest.mark.parametrize(
    "learner",
    [
        dreamshard(rounds=30, episodes=16),
        pytest.param(autoshard(rounds=40, episodes=16), marks=pytest.mark.slow),
        pytest.param(
            replace(dreamshard(rounds=25, episodes=16), cost_network=replace(NETWORK, placements=40, steps=60)),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["dreamshard on models", "autoshard on models", "dreamshard on its own cost network"],
)
def test_learner_finds_the_known_optimum(learner):
    simulator = Simulator(linear_models(2))
    session = Session(learner, KNOWN, simulator, seed=1)
    for number in range(learner.rounds):
        session.round(number, lambda: None)
    costs = session.agent.costs(simulator)
    environment = Environment(TaskBatch.of(KNOWN, "test"), costs)
    plans = environment.plans(play(session.agent.policy, environment, greedy).final)
    randomly = [Random(seed).find(one, simulator).plan for one in KNOWN for seed in range(8)]
    learned, random = (
        np.mean([ms_of(plan, simulator) / _best_ms(plan.task, simulator) for plan in some])
        for some in (plans, randomly)
    )
    assert learned < 1.05
    assert random > 1.15


def _run(tmp_path, name="run", **settings):
    tasks = tuple(toy_task(6, 2, seed=seed) for seed in range(8))
    given = {"learner": dreamshard(NETWORK), "num_valid": 3, "seed": 5} | settings
    return TrainPolicy(
        model=str(tmp_path / "models"), tasks=tasks, method="dreamshard", out=str(tmp_path / name), **given
    )


@pytest.fixture
def models(tmp_path):
    save_bundle(tmp_path / "models", random_models(2), Card())


def _files(tmp_path, name):
    return [(tmp_path / name / file).read_bytes() for file in ("policy.safetensors", "policy.json", "curve.parquet")]


@pytest.mark.parametrize(
    "learner", [*(pytest.param(one(NETWORK), marks=pytest.mark.slow) for one in (dreamshard, autoshard)), dreamshard()]
)
def test_training_repeats_bit_for_bit_even_after_an_interrupted_run(tmp_path, models, learner, monkeypatch):
    _run(tmp_path, learner=learner).run()
    killed = _run(tmp_path, "killed", learner=learner)
    play_round = Session.round

    def dies(self, number, on_update):
        if number == 2:
            raise KeyboardInterrupt
        return play_round(self, number, on_update)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Session, "round", dies)
        killed.run()
    assert not (tmp_path / "killed").exists()
    killed.run()
    _run(tmp_path, "other", learner=learner, seed=6).run()
    assert _files(tmp_path, "killed") == _files(tmp_path, "run")
    assert _files(tmp_path, "other")[0] != _files(tmp_path, "run")[0]


def test_training_run_saves_a_usable_policy_and_refuses_to_overwrite_one(tmp_path, models):
    result = _run(tmp_path).run()
    assert (tmp_path / "run" / "curve.png").stat().st_size > 1000
    assert list(result.history["round"]) == [0, 1, 2, 3]
    assert result.history["cost_loss"].iloc[-1] < result.history["cost_loss"].iloc[0]
    assert "random" in result.references
    plan = PolicySearch(str(tmp_path / "run"), samples=4).find(toy_task(9, 2), Simulator(linear_models(2))).plan
    assert plan.fits
    left = _files(tmp_path, "run")
    for name in ("run.json", "policy.json"):
        with refused("out-other-contents", names=[tmp_path / "run", name]):
            _run(tmp_path, seed=6).run()
        assert _files(tmp_path, "run") == left
        (tmp_path / "run" / "run.json").unlink(missing_ok=True)
    with refused("num-valid-outside", names=["num_valid", 8, 7]):
        _run(tmp_path, num_valid=8).run()


@pytest.mark.parametrize(("best", "fit"), [(3.0, True), (4.0, False), (5.0, False)])
def test_a_training_ends_with_the_policys_fitness_for_use(best, fit):
    result = TrainResult(
        Path("run"), "toy", pd.DataFrame({"valid_ms": [9.0, best]}), {"random": 8.0, "dim_greedy": 4.0}
    )
    assert result.verdict.fit is fit
    assert ("dim_greedy 4.00 ms" in result.verdict.reason) is not fit
    assert shown(result).rstrip().splitlines()[-1] == str(result.verdict)


def test_loading_a_damaged_policy_is_refused(tmp_path, models):
    _run(tmp_path).run()
    policy = tmp_path / "run" / "policy.safetensors"
    policy.write_bytes(policy.read_bytes()[:500])
    with refused("policy-file-damaged", names=[tmp_path / "run"]):
        load_agent(str(tmp_path / "run"))
    policy.unlink()
    with refused("file-missing", where=f"policy {tmp_path / 'run'}", names=[policy]):
        load_agent(str(tmp_path / "run"))
    with refused("file-missing", names=[tmp_path / "nowhere", "autoshard, dreamshard"]):
        load_agent(str(tmp_path / "nowhere"))


def test_installed_policies_record_their_models_and_beat_their_references():
    for name in ("dreamshard", "autoshard"):
        card = json.loads((POLICIES / name / "policy.json").read_text())["card"]
        assert card["settings"]["model"] == {"name": "cpu"}
        assert card["valid_ms"] < min(card["references_ms"].values())


def test_policy_without_an_allowed_device_reports_that():
    tight = task([5, 4, 3], memory_bytes=int(1.5 * 1000 * 8 * 4))
    with refused("policy-search-stuck", where="policy dreamshard", kind=InfeasibleError):
        PolicySearch("dreamshard", samples=8).find(tight, Simulator(linear_models(2)))


def test_further_samples_never_worsen_the_plan():
    simulator = Simulator(linear_models())
    for seed in range(4):
        searchers = PolicySearch("dreamshard"), PolicySearch("dreamshard", samples=16)
        alone, more = (ms_of(one.find(toy_task(12, seed=seed), simulator).plan, simulator) for one in searchers)
        assert more <= alone
    with refused("value-outside-limits", names=["samples", -1]):
        PolicySearch("dreamshard", samples=-1)
