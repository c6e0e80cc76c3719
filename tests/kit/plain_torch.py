"""Outputs and gradients of a kernel call computed by plain PyTorch, to compare with the measured kernels."""

import torch

from neuroshard.measure.kernels._inputs import Inputs
from neuroshard.measure.store.samples import ComputeSample


def plain_torch(
    sample: ComputeSample, weights: list[torch.Tensor], inputs: Inputs
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the output of a call, a row per sample if pooled and else per lookup, and the gradient of each table."""
    found, size = [weight.clone().requires_grad_() for weight in weights], sample.batch_size
    of_features = [its for one, its in zip(sample.tables, found, strict=True) for _ in range(one.features)]
    outputs = []
    for i, its in enumerate(of_features):
        offsets = inputs.offsets[size * i : size * (i + 1) + 1]
        indices = inputs.indices[offsets[0] : offsets[-1]]
        bags = offsets[:-1] - offsets[0] if sample.call.pooled else torch.arange(len(indices), device=indices.device)
        outputs.append(torch.nn.functional.embedding_bag(indices, its, bags, mode="sum"))
    output = torch.cat(outputs, dim=1 if sample.call.pooled else 0)
    output.backward(inputs.gradient)
    return output.detach(), [its.grad for its in found]
