"""What a policy's files may not hold."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from neuroshard.plumbing.errors import UserError
from neuroshard.stages.search.rl import agent
from neuroshard.stages.search.rl.agent import load_agent

HEAD = "policy.head.0.weight"


@pytest.fixture
def policy(tmp_path):
    for name in ("policy.json", "policy.safetensors"):
        (tmp_path / name).write_bytes((Path(agent.__file__).parent / "policies" / "dreamshard" / name).read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t | {HEAD: t[HEAD] * float("nan")}, f"tensor {HEAD} holds numbers that are not finite"),
        (lambda t: t | {HEAD: t[HEAD].int()}, f"tensor {HEAD} is torch.int32"),
        (lambda t: t | {HEAD: t[HEAD].double()}, f"tensor {HEAD} is torch.float64"),
        (lambda t: t | {HEAD: t[HEAD][:1].clone()}, f"tensor {HEAD} is torch.float32 of shape"),
        (lambda t: t | {HEAD: torch.zeros(())}, f"tensor {HEAD} is torch.float32 of shape"),
        (lambda t: t | {"policy.encoder.scale": -t["policy.encoder.scale"]}, "encoder.scale must be positive"),
        (lambda t: t | {"costs.scale_ms": t["costs.scale_ms"] * 0}, "costs.scale_ms must be positive"),
        (lambda t: {name: t[name] for name in t if name != HEAD}, f"'{HEAD}' is missing, or of another agent"),
        (lambda t: t | {"policy.more": torch.zeros(1)}, "'policy.more' is missing, or of another agent"),
    ],
)
def test_wrong_weights_are_one_line(policy, change, message):
    load_agent(str(policy))
    file = policy / "policy.safetensors"
    save_file(change(load_file(file)), file)
    with pytest.raises(UserError, match=message):
        load_agent(str(policy))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["policy", "settings", "table"], [10**12], r"table\[0\]=1000000000000 must be a whole number of at most 4096"),
        (["policy", "settings", "table"], "", "table='' must be a list"),
        (["policy", "settings", "head"], True, "head=True must be a whole number"),
        (["policy", "settings", "hat"], 3, "settings of the dreamshard policy.*'hat'"),
        (["policy", "kind"], "dreamchart", "unknown kind of policy 'dreamchart'; did you mean 'dreamshard'"),
        (["policy", "kind"], [], r"policy.kind=\[\] must be text"),
        (["costs", "partial_share"], 2, "partial_share=2 must be a number of at most"),
        (["features"], None, "features=None must be a list"),
        (["format"], 1, "not of format 'neuroshard-policy-2' but 1"),
    ],
)
def test_wrong_descriptions_are_one_line(policy, path, value, message):
    file = policy / "policy.json"
    content = json.loads(file.read_text())
    holder = content
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        load_agent(str(policy))
