"""Trained agents and their files. An agent is a policy, with the cost network that predicts the
costs in the policy's input.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from neuroshard.models.simulator import Simulator
from neuroshard.models.stored import within
from neuroshard.plumbing.errors import UserError, check_name
from neuroshard.plumbing.files import digest_of, read_json, regular_file, write_atomically, write_json
from neuroshard.plumbing.schema import of_format, parse, shown
from neuroshard.stages.search.rl.batch import FEATURES
from neuroshard.stages.search.rl.cost_network import CostNetwork, CostNetworkSettings, PlacementCosts, SimulatorCosts
from neuroshard.stages.search.rl.policy import AutoShardPolicy, DreamShardPolicy, Policy

_FORMAT = "neuroshard-policy-2"
_INSTALLED = Path(__file__).resolve().parent / "policies"
_POSITIVE = (".scale", ".scale_ms")  # divisors of features, and the unit of costs
_POLICIES: dict[str, Any] = {kind.kind: kind for kind in (DreamShardPolicy, AutoShardPolicy)}

_TRAIN_AGAIN = "Train the policy again with `neuroshard train-policy`"

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Agent:
    """A policy, and the cost network that predicts the costs in the policy's input. Without a cost network, the
    simulator predicts these costs.
    """

    policy: Policy
    network: CostNetwork | None

    def costs(self, simulator: Simulator) -> PlacementCosts:
        """Return the object that predicts the costs in the policy's input: the cost network, or the
        simulator's cost models.
        """
        return SimulatorCosts(simulator) if self.network is None else self.network

    def tensors(self) -> Tensors:
        """Return all weights and buffers of the policy and the cost network as a dict by name. The method `restore`
        loads this dict into an agent.
        """
        networks = {"policy": self.policy} | ({} if self.network is None else {"costs": self.network})
        return {f"{name}.{key}": value for name, net in networks.items() for key, value in net.state_dict().items()}

    def restore(self, tensors: Tensors) -> None:
        """Load weights and buffers into the policy and, if there is one, the cost network of this agent. The dict
        `tensors` must have the names and shapes that the method `tensors` of this agent returns.

        Raises:
            UserError: the weights belong to another agent, or are not finite.
        """
        expected = self.tensors()
        if strange := expected.keys() ^ tensors.keys():
            name = min(strange)
            raise UserError(
                "policy-tensor-names",
                f"tensor {shown(name)} is {'missing' if name in expected else 'not part of this policy'}",
                remedy=_TRAIN_AGAIN,
            )
        for name, wanted in expected.items():
            _check_like(name, tensors[name], wanted)
            if name.endswith(_POSITIVE) and not (tensors[name] > 0).all():
                raise UserError(
                    "policy-tensor-not-positive",
                    f"tensor {name!r} has values that are not positive",
                    limit="all values of this tensor must be above 0",
                    remedy=_TRAIN_AGAIN,
                )
        self.policy.load_state_dict(within(tensors, "policy"))
        if self.network is not None:
            self.network.load_state_dict(within(tensors, "costs"))

    def description(self) -> dict[str, Any]:
        """Return a JSON-ready description of the agent's networks, without weights: kinds,
        settings and table features.
        """
        return {
            "policy": {"kind": self.policy.kind, "settings": self.policy.settings},
            "features": list(FEATURES.columns),
            "costs": None if self.network is None else asdict(self.network.settings),
        }

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> "Agent":
        """Build an agent with untrained networks from a description, which the method `description` of another agent
        returned. The description has the kinds and settings of the networks, and the table features that the networks
        read. Raise UserError if this version of the package cannot build the networks.
        """
        read = parse(dict(description), _Description, "policy")
        kind = read.policy.kind
        check_name("kind of policy", kind, _POLICIES)
        if read.features != FEATURES.columns:
            raise UserError(
                "policy-features-differ",
                "the policy was trained with other table features than this version of neuroshard has",
                remedy=_TRAIN_AGAIN,
            )
        try:
            policy = _POLICIES[kind](**read.policy.settings)
        except TypeError as error:
            raise UserError(
                "policy-settings-wrong",
                f"the settings of the policy {kind!r} are wrong",
                limit=str(error),
                remedy=_TRAIN_AGAIN,
            ) from None
        return cls(policy, None if read.costs is None else CostNetwork(read.costs))


@dataclass(frozen=True)
class _PolicyKind:
    kind: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class _Description:
    policy: _PolicyKind
    features: tuple[str, ...]
    costs: CostNetworkSettings | None
    card: dict[str, Any] | None = None


def _check_like(name: str, tensor: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raise UserError if a tensor from a file differs from the tensor `wanted` in shape or type, or has
    numbers that are not finite.
    """
    if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
        raise UserError(
            "policy-tensor-shape",
            f"tensor {name!r} is {tensor.dtype} of shape {tuple(tensor.shape)}",
            limit=f"the policy needs {wanted.dtype} of shape {tuple(wanted.shape)}",
            remedy=_TRAIN_AGAIN,
        )
    if not torch.isfinite(tensor).all():
        raise UserError(
            "policy-tensor-not-finite", f"tensor {name!r} has values that are not finite", remedy=_TRAIN_AGAIN
        )


def save_agent(path: Path, agent: Agent, card: Mapping[str, Any]) -> None:
    """Save an agent in the directory `path`: first the weights in `policy.safetensors`, then the rest in `policy.json`.
    The rest is the description of the networks and the model card, which documents how the agent was trained.
    """
    weights = {name: tensor.contiguous() for name, tensor in agent.tensors().items()}
    write_atomically(path / "policy.safetensors", save(weights))
    write_json(path / "policy.json", {"format": _FORMAT, **agent.description(), "card": dict(card)})


def agent_digest(name: str) -> str:
    """Return a digest of the files of an agent; `name` is the name or directory that `load_agent` takes."""
    path = _path_of(name)
    return digest_of(path / "policy.json", path / "policy.safetensors")


def _path_of(name: str) -> Path:
    """Return the directory of an installed policy if `name` is installed; otherwise `name` as a path."""
    return _INSTALLED / name if name in installed_policies() else Path(name)


def load_agent(name: str) -> Agent:
    """Return the agent of an installed policy, or the agent in a directory that `neuroshard train-policy` wrote.

    Raises:
        UserError: there is no such policy, or its files are damaged or of another version.
    """
    path = _path_of(name)
    content = read_json(path / "policy.json", f"policy (installed: {', '.join(installed_policies())})")
    try:
        agent = Agent.described(of_format(content, _FORMAT, "policy.json"))
        agent.restore(load_file(regular_file(path / "policy.safetensors", "weights")))
    except UserError as error:
        raise error.at(f"policy {path}").changed(remedy=_TRAIN_AGAIN) from None
    except (OSError, SafetensorError) as error:
        raise UserError(
            "policy-file-damaged", f"a file of the policy in '{path}' is damaged", limit=str(error), remedy=_TRAIN_AGAIN
        ) from None
    return agent


def installed_policies() -> list[str]:
    """Return the names of the policies that are installed with the package."""
    return sorted(entry.parent.name for entry in _INSTALLED.glob("*/policy.json"))
