"""Optimizers that see the whole gradient of a table update rows as FBGEMM's kernels do."""

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch import nn

from neuroshard.torchrec.row_updates import RULES, RowSettings


def _reference(weights, gradients, settings):
    """Train rows one after the other, like FBGEMM's CUDA kernels."""
    kind, mode, rate = settings.optimizer, settings.weight_decay_mode, settings.lr
    rows, decay = weights.double().clone(), settings.weight_decay
    mean, square = torch.zeros_like(rows), torch.zeros_like(rows)
    for step, gradient in enumerate(gradients, start=1):
        for row in range(len(rows)):
            w, g = rows[row].clone(), gradient[row].double()
            if not g.any():
                continue
            if kind is EmbOptimType.EXACT_ROWWISE_ADAGRAD:
                square[row] += (g + decay * w * (mode is WeightDecayMode.L2)).square().mean()
                multiplier = rate / (square[row].sqrt() + settings.eps)
                lost = {WeightDecayMode.L2: multiplier * decay, WeightDecayMode.DECOUPLE: rate * decay}.get(mode, 0)
                rows[row] = (1 - lost) * w - multiplier * g
                continue
            mean[row] = settings.beta1 * mean[row] + (1 - settings.beta1) * g
            new = g.square() if kind is EmbOptimType.ADAM else g.square().mean()
            square[row] = settings.beta2 * square[row] + (1 - settings.beta2) * new
            direction = mean[row] / (1 - settings.beta1**step)
            direction /= (square[row] / (1 - settings.beta2**step)).sqrt() + settings.eps
            rows[row] -= rate * (direction + decay * w)
    return rows.float()


@pytest.mark.parametrize("mode", [WeightDecayMode.L2, WeightDecayMode.DECOUPLE])
@pytest.mark.parametrize("kind", [it for it in RULES if it not in (EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD)])
def test_row_updates_leave_rows_without_lookups_and_match_the_reference(kind, mode):
    settings = RowSettings(kind, mode, lr=0.1, eps=1e-3, weight_decay=0.2, beta1=0.8, beta2=0.95)
    gradients = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(0))
    for step, row in [(0, 0), (1, 0), (2, 1), (3, 1), (1, 2), (4, 2)]:
        gradients[step, row] = 0
    gradients[:, 3] = 0
    weights = torch.linspace(-1, 1, 24).view(6, 4)
    trained, state = weights.clone(), RULES[kind].initial_state(weights)
    for gradient in gradients:
        RULES[kind].step(trained, gradient, state, settings)
    torch.testing.assert_close(trained, _reference(weights, gradients, settings))
    assert torch.equal(trained[3], weights[3])
    assert not any(torch.equal(trained[row], weights[row]) for row in (0, 1, 2, 4, 5))


def test_adam_row_update_equals_torch_adamw_if_every_row_is_looked_up():
    weights = torch.linspace(-1, 1, 24).view(6, 4)
    ours, theirs = weights.clone(), nn.Parameter(weights.clone())
    adam = torch.optim.AdamW([theirs], lr=0.1, eps=1e-3, weight_decay=0.2)
    rule, settings = RULES[EmbOptimType.ADAM], RowSettings(EmbOptimType.ADAM, lr=0.1, eps=1e-3, weight_decay=0.2)
    state = rule.initial_state(ours)
    for gradient in torch.randn(4, 6, 4, generator=torch.Generator().manual_seed(0)):
        rule.step(ours, gradient, state, settings)
        theirs.grad = gradient
        adam.step()
    torch.testing.assert_close(ours, theirs.detach())
