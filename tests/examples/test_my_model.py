"""The code of the page docs/tutorials/my_model.md trains a model; only the machine is replaced."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.processes import PATIENCE_S

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "my_model.md"
HERE = {  # what of the page is another machine's
    "local_world_size=8, hbm_cap_bytes=80 << 30)": 'ddr_cap_bytes=1 << 30), kernel_config=KernelConfig("cpu")',
    'models="my-gpus"': 'models="cpu"',
}
BEFORE = """
import os
import torch
from torch import distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import KernelConfig

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "LOCAL_WORLD_SIZE": "1"}
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
world_size, BATCH_SIZE, device = 1, 256, torch.device("cpu")
config = EmbeddingBagConfig(name="t", num_embeddings=50, embedding_dim=8, feature_names=["f"])
model = torch.nn.ModuleDict(
    {"tables": EmbeddingBagCollection([config], device=torch.device("meta")), "over": torch.nn.Linear(8, 1)}
)
sharders = [EmbeddingBagCollectionSharder(fused_params={"learning_rate": 0.1})]
lengths = torch.full((BATCH_SIZE,), 3)
batches = loader = [KeyedJaggedTensor(["f"], torch.randint(50, (3 * BATCH_SIZE,)), lengths=lengths) for _ in range(2)]
steps = []


def train_step(model, optimizer, batch):
    loss = model.module["over"](model.module["tables"](batch).values()).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    steps.append(loss.item())

"""
AFTER = """
table = planner.last_plan.task.tables[0]
print("steps", len(steps), "lookups", table.pooling_factor, "made for", table.reuse_batch_size)
"""


@pytest.mark.slow
@pytest.mark.xdist_group("measures")
def test_python_code_of_the_my_model_page_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for there, here in HERE.items():
        assert there in code
        code = code.replace(there, here)
    command = [sys.executable, "-c", BEFORE + code + AFTER]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("steps 2 lookups 3.0 made for 256\n")
    assert (tmp_path / "plan.json").exists()
    assert "--- Planner Statistics ---" in done.stderr
    assert "1 tables on 1 devices" in done.stderr
    assert "WARNING:torchrec" not in done.stderr
