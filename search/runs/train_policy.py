"""The train-policy run: a learner, training tasks, checkpoints after every round."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.models.stored import within
from neuroshard.plans.picture import curves_png
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.plumbing.files import regular_file, write_atomically
from neuroshard.plumbing.parquet import write_frame
from neuroshard.plumbing.progress import progress_bar
from neuroshard.plumbing.schema import Count, Seed
from neuroshard.plumbing.threads import torch_threads
from neuroshard.records.run_directory import RunDirectory
from neuroshard.stages.search.methods.heuristics import SCORES, Greedy, Random
from neuroshard.stages.search.rl.agent import Agent, Tensors, save_agent
from neuroshard.stages.search.rl.batch import TaskBatch
from neuroshard.stages.search.rl.environment import Environment
from neuroshard.stages.search.rl.learner import Learner, Session
from neuroshard.stages.search.rl.policy import greedy, play
from neuroshard.tasks.task import Task
from neuroshard.words.fingerprint import versions

_CHECKPOINT = "checkpoint.safetensors"
_TOLD = "history"  # with the digest before it: several texts would stand in any order in the file


@dataclass(frozen=True)
@checked
class TrainPolicy:
    """Everything `neuroshard train-policy` needs.

    Attributes:
        model: the simulator: installed (`neuroshard models`), or a bundle that neuroshard pretrain wrote.
        tasks: of equally many tables and devices; the last `num_valid` say which round's policy is kept.
        num_valid: of the tasks, the last ones: they say which round's policy is kept.
        learner: how it is trained.
        method: its name in results.
        seed: fixes everything that is not measured.
        out: directory for the policy; a run that was stopped resumes there.
    """

    model: str
    tasks: tuple[Task, ...]
    learner: Learner
    method: str
    out: str
    num_valid: Count = 20
    seed: Seed = 0

    def run(self) -> "TrainResult":
        """Train the policy, round by round; that of the best round on the validation tasks is kept.

        Raises:
            UserError: too few tasks, or `out` holds another run.
        """
        if not 0 < self.num_valid < len(self.tasks):
            raise UserError(
                f"num_valid={self.num_valid} must lie in 1..{len(self.tasks) - 1}, there are {len(self.tasks)} tasks"
            )
        simulator = Simulator(CostModels.load(self.model))
        for task in self.tasks:
            simulator.models.check(task)
        directory = RunDirectory(Path(self.out))
        with directory.held():
            return self._train(directory, simulator)

    def _train(self, directory: RunDirectory, simulator: Simulator) -> "TrainResult":
        train, valid = self.tasks[: -self.num_valid], self.tasks[-self.num_valid :]
        session = Session(self.learner, train, simulator, self.seed)
        directory.begin(self._settings(), self.tasks)  # nothing is left where no session can be had
        path = directory.path
        history, best = _restored(path, session)
        references = _references(valid, simulator)
        with progress_bar() as progress:
            total = self.learner.rounds * self.learner.updates
            bar = progress.add_task(self.method, total=total, completed=len(history) * self.learner.updates)
            for number in range(len(history), self.learner.rounds):
                losses = session.round(number, lambda: progress.advance(bar))
                cost, success = _validate(session.agent, valid, simulator)
                known = [row["valid_ms"] for row in history]
                history.append({"round": number, "valid_ms": cost, "success": success} | losses)
                if not known or cost <= min(known):
                    best = {name: tensor.clone() for name, tensor in session.agent.tensors().items()}
                _checkpoint(path, session, history, best)
                progress.update(bar, description=f"{self.method}: {cost:.2f} ms")
        session.agent.restore(best)
        result = TrainResult(path, self.method, pd.DataFrame(history), references)
        facts = {"settings": self._settings(), "versions": versions()}
        shape = {"tables": len(self.tasks[0].tables), "devices": self.tasks[0].topology.num_devices}
        outcome = {"valid_ms": result.best_ms, "references_ms": references}
        save_agent(path, session.agent, facts | shape | outcome)
        result.save(facts | {"cores": os.cpu_count()})
        return result

    def _settings(self) -> dict[str, Any]:
        """Collect what a policy depends on, besides the tasks."""
        return {
            "method": self.method,
            "model": self.model,
            "reads": CostModels.load(self.model).digest,
            "num_valid": self.num_valid,
            "seed": self.seed,
            "learner": repr(self.learner),
        }


def _restored(path: Path, session: Session) -> tuple[list[dict[str, Any]], Tensors]:
    """Restore the session from a checkpoint; return history and best weights of its rounds, none without one."""
    file = path / _CHECKPOINT
    if not file.exists():
        return [], {}
    try:
        with safe_open(regular_file(file, "checkpoint"), framework="pt") as opened:
            digest, _, history = (opened.metadata() or {}).get(_TOLD, "").partition(" ")
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # no mapping
        if digest != _digest(history, tensors):
            raise UserError("its digest is missing, or of other contents")
        session.restore(within(tensors, "session"))
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{file} is damaged ({error}); delete {path} and train again") from None
    return json.loads(history), within(tensors, "best")


def _checkpoint(path: Path, session: Session, history: list[dict[str, Any]], best: Tensors) -> None:
    tensors = {f"session.{name}": tensor for name, tensor in session.tensors().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    # One tensor may stand under two names: safetensors wants each to have memory of its own.
    own = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    told = json.dumps(history)
    write_atomically(path / _CHECKPOINT, save(own, {_TOLD: f"{_digest(told, own)} {told}"}))


def _digest(history: str, tensors: Tensors) -> str:
    """Compute the digest that a checkpoint is sealed with."""
    return sha256(history.encode() + save(tensors)).hexdigest()


def _validate(agent: Agent, tasks: Sequence[Task], simulator: Simulator) -> tuple[float, float]:
    """Cost the likeliest plans by the simulator: their mean, ms, over tasks that have one, and the share of those."""
    with torch_threads(1):
        environment = Environment(TaskBatch.of(tasks, "train-policy"), agent.costs(simulator))
        plans = environment.plans(play(agent.policy, environment, greedy).final)
    costs = [simulator.cost(plan.task, plan).total_ms for plan in plans if plan is not None]
    return float(np.mean(costs)) if costs else float("inf"), len(costs) / len(tasks)


def _references(tasks: Sequence[Task], simulator: Simulator) -> dict[str, float]:
    """Compute mean costs, ms, of random placement and of every heuristic, over the tasks that each solves."""
    mean_ms = {}
    for name, searcher in {"random": Random(), **{f"{score}_greedy": Greedy(score) for score in SCORES}}.items():
        costs = []
        for task in tasks:
            try:
                costs.append(simulator.cost(task, searcher.find(task, simulator).plan).total_ms)
            except InfeasibleError:
                continue
        if costs:
            mean_ms[name] = float(np.mean(costs))
    return mean_ms


@dataclass(frozen=True, eq=False)
class TrainResult:
    """A trained policy: where it is, how it came to be.

    Attributes:
        history: one row for each round.
        references: mean cost of other methods on the validation tasks, ms.
    """

    path: Path
    method: str
    history: pd.DataFrame
    references: dict[str, float]

    @property
    def best_ms(self) -> float:
        """The mean cost on the validation tasks in the best round, ms."""
        return float(self.history["valid_ms"].min())

    def save(self, facts: Mapping[str, Any]) -> None:
        """Write `curve.parquet`, a picture of the learning curve, and last `run.json` with the facts."""
        write_frame(self.path / "curve.parquet", self.history)
        curve = (self.method, self.history["valid_ms"].to_numpy())
        title = f"{self.method}: plans for validation tasks"
        write_atomically(self.path / "curve.png", curves_png([curve], self.references, title))
        RunDirectory(self.path).finish("train-policy", facts)

    def show(self, console: Console) -> None:
        """Print the outcome beside the other methods."""
        console.print(
            f"{self.method}: {self.best_ms:.2f} ms on the validation tasks (best of {len(self.history)} rounds)"
        )
        for name, ms in sorted(self.references.items(), key=lambda pair: pair[1]):
            console.print(f"  {name}: {ms:.2f} ms", highlight=False)
        console.print(f"policy: {self.path} (learning curve: {self.path / 'curve.png'})")
        console.print(f"use it: neuroshard search searcher={self.method} searcher.policy={self.path} ...", markup=False)
