"""Invalid files of policies."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from neuroshard.stages.search.rl import agent
from neuroshard.stages.search.rl.agent import load_agent
from tests.kit.messages import refused

SCALE = "policy.encoder.scale"
HEAD = "policy.head.0.weight"


@pytest.fixture
def policy(tmp_path):
    for name in ("policy.json", "policy.safetensors"):
        (tmp_path / name).write_bytes((Path(agent.__file__).parent / "policies" / "dreamshard" / name).read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        (lambda t: t | {HEAD: t[HEAD] * float("nan")}, "policy-tensor-not-finite", [HEAD]),
        (lambda t: t | {HEAD: t[HEAD].int()}, "policy-tensor-shape", [HEAD, "torch.int32"]),
        (lambda t: t | {HEAD: t[HEAD].double()}, "policy-tensor-shape", [HEAD, "torch.float64"]),
        (lambda t: t | {HEAD: t[HEAD][:1].clone()}, "policy-tensor-shape", [HEAD, "torch.float32 of shape (1, "]),
        (lambda t: t | {HEAD: torch.zeros(())}, "policy-tensor-shape", [HEAD, "torch.float32 of shape ()"]),
        (lambda t: t | {SCALE: -t[SCALE]}, "policy-tensor-not-positive", [SCALE]),
        (lambda t: t | {"costs.scale_ms": t["costs.scale_ms"] * 0}, "policy-tensor-not-positive", ["costs.scale_ms"]),
        (lambda t: {name: t[name] for name in t if name != HEAD}, "policy-tensor-names", [f"'{HEAD}'"]),
        (lambda t: t | {"policy.more": torch.zeros(1)}, "policy-tensor-names", ["'policy.more'"]),
        (lambda t: t | {"extra": torch.zeros(1)}, "policy-tensor-names", ["'extra'"]),
        (lambda t: t | {"polic.weight": torch.zeros(1)}, "policy-tensor-names", ["'polic.weight'"]),
    ],
)
def test_loading_an_agent_with_wrong_weights_is_refused(policy, change, code, names):
    load_agent(str(policy))
    file = policy / "policy.safetensors"
    save_file(change(load_file(file)), file)
    with refused(code, where=f"policy {policy}", names=names):
        load_agent(str(policy))


@pytest.mark.parametrize(
    ("path", "value", "code", "names"),
    [
        (["policy", "settings", "table"], [10**12], "value-outside-limits", ["table[0]", 10**12, 4096]),
        (["policy", "settings", "table"], "", "value-outside-limits", ["table", "''"]),
        (["policy", "settings", "head"], True, "value-outside-limits", ["head", True]),
        (["policy", "settings", "hat"], 3, "policy-settings-wrong", ["dreamshard", "'hat'"]),
        (["policy", "kind"], "dreamchart", "unknown-name", ["'dreamchart'"]),
        (["policy", "kind"], [], "value-outside-limits", ["policy.kind", []]),
        (["costs", "partial_share"], 2, "value-outside-limits", ["partial_share", 2, 1]),
        (["features"], None, "value-outside-limits", ["features", None]),
        (["format"], 1, "file-format-other", ["'neuroshard-policy-2'", 1]),
    ],
)
def test_loading_an_agent_with_a_wrong_description_is_refused(policy, path, value, code, names):
    file = policy / "policy.json"
    content = json.loads(file.read_text())
    holder = content
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    file.write_text(json.dumps(content))
    with refused(code, names=names) as caught:
        load_agent(str(policy))
    assert caught.value.message.where.startswith(f"policy {policy}")
    assert "neuroshard train-policy" in caught.value.message.remedy
