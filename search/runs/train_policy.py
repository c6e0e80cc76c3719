"""The train-policy run: trains a policy on tasks, and keeps the policy of the best training round."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from neuroshard.measure.store.run_directory import RunDirectory
from neuroshard.models import CostModels
from neuroshard.models.simulator import Simulator
from neuroshard.plans.picture import curves_png
from neuroshard.plumbing.checked import checked
from neuroshard.plumbing.errors import InfeasibleError, UserError
from neuroshard.plumbing.files import write_atomically
from neuroshard.plumbing.fitness import UseVerdict
from neuroshard.plumbing.messages import number_of
from neuroshard.plumbing.parquet import write_frame
from neuroshard.plumbing.progress import progress_bar
from neuroshard.plumbing.schema import Count, Seed
from neuroshard.plumbing.threads import torch_threads
from neuroshard.stages.search.methods.heuristics import SCORES, Greedy, Random
from neuroshard.stages.search.rl.agent import Agent, Tensors, save_agent
from neuroshard.stages.search.rl.batch import TaskBatch
from neuroshard.stages.search.rl.environment import Environment
from neuroshard.stages.search.rl.learner import Learner, Session
from neuroshard.stages.search.rl.policy import greedy, play
from neuroshard.tasks.task import Task
from neuroshard.words.fingerprint import versions
from neuroshard.words.model_choice import ModelSettings


@dataclass(frozen=True)
@checked
class TrainPolicy(ModelSettings):
    """The settings of `neuroshard train-policy`; the method `run` executes the command.

    Attributes:
        model: cost models: an installed name (`neuroshard models` lists them), analytic models of a GPU such as
            roofline:h100, or a directory that `neuroshard pretrain` wrote.
        tasks: tasks to train and validate on, all with the same numbers of tables and devices.
        num_valid: number of validation tasks, taken from the end of the list of tasks; the policy with the cheapest
            plans for these tasks after a training round is kept.
        learner: settings of the training.
        method: name of the policy in result files and reports.
        seed: seed of all random choices; the same seed gives the same policy.
        out: directory that the policy is written to; this directory must not contain a run or a policy.
    """

    model: str
    tasks: tuple[Task, ...]
    learner: Learner
    method: str
    out: str
    num_valid: Count = 20
    seed: Seed = 0

    def run(self) -> "TrainResult":
        """Train the policy round by round; keep the policy of the round with the cheapest plans for the validation
        tasks.

        Raises:
            UserError: there are too few tasks, or `out` has a run or a policy.
        """
        if not 0 < self.num_valid < len(self.tasks):
            most = len(self.tasks) - 1
            raise UserError(
                "num-valid-outside",
                f"num_valid is {self.num_valid}, and there are {number_of(len(self.tasks), 'task')}",
                limit="validation and training each need 1 task or more",
                remedy=f"Set num_valid to a number from 1 to {most}" if most > 0 else "Give 2 tasks or more",
            )
        simulator = Simulator(CostModels.of(self.choice_of(self.model)))
        for task in self.tasks:
            simulator.models.check(task)
        directory = RunDirectory(Path(self.out))
        with directory.held(marks=()):
            return self._train(directory, simulator)

    def _train(self, directory: RunDirectory, simulator: Simulator) -> "TrainResult":
        train, valid = self.tasks[: -self.num_valid], self.tasks[-self.num_valid :]
        session = Session(self.learner, train, simulator, self.seed)
        history, best = list[dict[str, Any]](), Tensors()
        references = _references(valid, simulator)
        with progress_bar() as progress:
            total = self.learner.rounds * self.learner.updates
            bar = progress.add_task(self.method, total=total)
            for number in range(self.learner.rounds):
                losses = session.round(number, lambda: progress.advance(bar))
                cost, success = _validate(session.agent, valid, simulator)
                if all(cost <= row["valid_ms"] for row in history):
                    best = {name: tensor.clone() for name, tensor in session.agent.tensors().items()}
                history.append({"round": number, "valid_ms": cost, "success": success} | losses)
                progress.update(bar, description=f"{self.method}: {cost:.2f} ms")
        session.agent.restore(best)
        result = TrainResult(directory.path, self.method, pd.DataFrame(history), references)
        facts = {"settings": self._settings(), "versions": versions()}
        shape = {"tables": len(self.tasks[0].tables), "devices": self.tasks[0].topology.num_devices}
        outcome = {"valid_ms": result.best_ms, "references_ms": references}
        save_agent(directory.path, session.agent, facts | shape | outcome)
        result.save(facts | {"cores": os.cpu_count()})
        return result

    def _settings(self) -> dict[str, Any]:
        """Return a dict that is saved with the trained policy: the settings of the training, and the digest (hash) of
        the cost models. Apart from the tasks, the policy depends only on these values.
        """
        return {
            "method": self.method,
            "model": self.choice_of(self.model).normalized.fields,
            "reads": CostModels.load(self.model).digest,
            "num_valid": self.num_valid,
            "seed": self.seed,
            "learner": repr(self.learner),
        }


def _validate(agent: Agent, tasks: Sequence[Task], simulator: Simulator) -> tuple[float, float]:
    """Return the mean cost, in ms, of the policy's plans for `tasks`, and the fraction of tasks that have a plan. The
    policy places each item (such as a table) on the most probable device. The mean is over the tasks with a plan, and
    is infinite if no task has a plan.
    """
    with torch_threads(1):
        environment = Environment(TaskBatch.of(tasks, "train-policy"), agent.costs(simulator))
        plans = environment.plans(play(agent.policy, environment, greedy).final)
    costs = [simulator.cost(plan.task, plan).total_ms for plan in plans if plan is not None]
    return float(np.mean(costs)) if costs else float("inf"), len(costs) / len(tasks)


def _references(tasks: Sequence[Task], simulator: Simulator) -> dict[str, float]:
    """Return the mean cost, in ms, of the plans that each reference method finds, as a dict by the name of the method.
    The methods are random placement and the greedy heuristics. Each mean is over the tasks for which the method finds a
    plan; a method without plans is left out.
    """
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
    """A trained policy, with its training history.

    Attributes:
        path: directory of the policy.
        method: name of the policy.
        history: one row for each round.
        references: mean cost of other methods on the validation tasks, in ms.
    """

    path: Path
    method: str
    history: pd.DataFrame
    references: dict[str, float]

    @property
    def best_ms(self) -> float:
        """The mean cost of the policy's plans for the validation tasks in the best round, in ms."""
        return float(self.history["valid_ms"].min())

    def save(self, facts: Mapping[str, Any]) -> None:
        """Write `curve.parquet`, a picture of the learning curve, and finally `run.json` with the facts."""
        write_frame(self.path / "curve.parquet", self.history)
        curve = (self.method, self.history["valid_ms"].to_numpy())
        title = f"{self.method}: plans for validation tasks"
        write_atomically(self.path / "curve.png", curves_png([curve], self.references, title))
        RunDirectory(self.path).finish("train-policy", facts)

    def show(self, console: Console) -> None:
        """Print the cost of the policy's plans, followed by the costs of the other methods' plans."""
        console.print(
            f"{self.method}: {self.best_ms:.2f} ms on the validation tasks (best of {len(self.history)} rounds)"
        )
        for name, ms in sorted(self.references.items(), key=lambda pair: pair[1]):
            console.print(f"  {name}: {ms:.2f} ms", highlight=False)
        console.print(f"policy: {self.path} (learning curve: {self.path / 'curve.png'})")
        console.print(f"use it: neuroshard search searcher={self.method} searcher.policy={self.path} ...", markup=False)
        self.verdict.show(console)

    @property
    def verdict(self) -> UseVerdict:
        """The verdict on whether the policy should be used for searches:
        the policy must find cheaper plans for the validation tasks than the other methods.
        """
        cheaper = [f"{name} {ms:.2f} ms" for name, ms in self.references.items() if ms <= self.best_ms]
        if not cheaper:
            return UseVerdict(
                True, "on the validation tasks the policy is cheaper than random placement and all heuristics"
            )
        return UseVerdict(
            False,
            f"on the validation tasks the policy costs {self.best_ms:.2f} ms, no less than {', '.join(cheaper)}",
            "train longer (learner.rounds), or search with another searcher",
        )
