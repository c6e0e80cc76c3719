"""A trained agent: a policy, and the costs that it was trained to look at; as files."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from neuroshard.errors import UserError, unknown_name
from neuroshard.files import read_json, write_atomically, write_json
from neuroshard.search.rl.autoshard import AutoShardPolicy
from neuroshard.search.rl.batch import FEATURES
from neuroshard.search.rl.cost_network import CostNetwork, CostNetworkSettings
from neuroshard.search.rl.costs import PlacementCosts, SimulatorCosts
from neuroshard.search.rl.dreamshard import DreamShardPolicy
from neuroshard.search.rl.features import TableEncoder
from neuroshard.search.rl.policy import Policy
from neuroshard.simulator import Simulator

_FORMAT = "neuroshard-policy-1"
_INSTALLED = Path(__file__).resolve().parent / "policies"
_POLICIES: dict[str, Any] = {kind.kind: kind for kind in (DreamShardPolicy, AutoShardPolicy)}

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Agent:
    """A policy with the cost network that it looks at; without one it looks at the simulator's models."""

    policy: Policy
    network: CostNetwork | None

    def costs(self, simulator: Simulator) -> PlacementCosts:
        """What it looks at."""
        return SimulatorCosts(simulator) if self.network is None else self.network

    @property
    def encoders(self) -> list[TableEncoder]:
        """What looks at tables."""
        return [self.policy.encoder] + ([] if self.network is None else [self.network.encoder])

    def tensors(self) -> Tensors:
        """All weights."""
        networks = {"policy": self.policy} | ({} if self.network is None else {"costs": self.network})
        return {f"{name}.{key}": value for name, net in networks.items() for key, value in net.state_dict().items()}

    def restore(self, tensors: Tensors) -> None:
        """Take weights that `tensors` gave.

        Raises:
            ValueError: they are another agent's.
        """
        try:
            self.policy.load_state_dict(part(tensors, "policy"))
            if self.network is not None:
                self.network.load_state_dict(part(tensors, "costs"))
        except RuntimeError as error:
            raise ValueError(error) from None

    def description(self) -> dict[str, Any]:
        """What isn't a tensor."""
        return {
            "policy": {"kind": self.policy.kind, "settings": self.policy.settings},
            "features": list(FEATURES.columns),
            "costs": None if self.network is None else asdict(self.network.settings),
        }

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> "Agent":
        """An untrained agent of that description."""
        kind, settings = description["policy"]["kind"], description["policy"]["settings"]
        if kind not in _POLICIES:
            raise unknown_name("kind of policy", kind, _POLICIES)
        if description["features"] != list(FEATURES.columns):
            raise UserError("made for other table features; train it again with neuroshard train-policy")
        costs = description["costs"]
        network = None if costs is None else CostNetwork(CostNetworkSettings(**costs))
        return cls(_POLICIES[kind](**settings), network)


def part(tensors: Tensors, name: str) -> Tensors:
    """The tensors whose names begin with `name`, without that beginning."""
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}


def save_agent(path: Path, agent: Agent, card: Mapping[str, Any]) -> None:
    """Write `policy.safetensors`, then `policy.json` with the card: where the agent comes from."""
    tensors = {name: tensor.contiguous() for name, tensor in agent.tensors().items()}
    write_atomically(path / "policy.safetensors", partial(save_file, tensors))
    write_json(path / "policy.json", {"format": _FORMAT, **agent.description(), "card": dict(card)})


def load_agent(name: str) -> Agent:
    """The agent of an installed policy, or in a directory that `neuroshard train-policy` wrote.

    Raises:
        UserError: there is none, or its files are damaged or of another version.
    """
    path = _INSTALLED / name if name in installed_policies() else Path(name)
    file = path / "policy.safetensors"
    try:
        content = read_json(path / "policy.json", f"policy (installed: {', '.join(installed_policies())})")
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise UserError(f"{path} is not a policy of format {_FORMAT!r}; train one with neuroshard train-policy")
        agent = Agent.described(content)
        agent.restore(load_file(file))
    except FileNotFoundError:
        raise UserError(f"policy {path} lacks {file.name}; train it again with neuroshard train-policy") from None
    except UserError:
        raise
    except (
        OSError,
        SafetensorError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RuntimeError,
        MemoryError,
    ) as error:
        raise UserError(f"policy {path} is damaged ({error}); train it again") from None
    return agent


def installed_policies() -> list[str]:
    """Names that `load_agent` takes."""
    return sorted(entry.parent.name for entry in _INSTALLED.glob("*/policy.json"))
