"""How long an epoch takes: packed batches beside a loop over samples, on the same made-up measurements."""

import time
from dataclasses import replace

import numpy as np
import torch

from neuroshard.stages.pretrain.examples import ComputeExamples
from neuroshard.stages.pretrain.networks import ComputeNetwork
from neuroshard.stages.pretrain.training import TrainingSettings, fit

_SAMPLES, _VALID, _FEATURES, _EPOCHS = 6400, 800, 21, 20


def main() -> None:
    torch.manual_seed(0)
    count = torch.from_numpy(np.random.default_rng(0).integers(1, 16, size=_SAMPLES))
    features = torch.randn(int(count.sum()), _FEATURES)
    examples = ComputeExamples(features, count.cumsum(0) - count, count, torch.rand(_SAMPLES, 1))
    ends: list[float] = [time.perf_counter()]
    network = ComputeNetwork(_FEATURES, (128, 32), 64)
    valid = replace(examples, first=examples.first[:_VALID], count=count[:_VALID], targets=examples.targets[:_VALID])
    fit(network, examples, valid, TrainingSettings(epochs=_EPOCHS), 0, lambda *_: ends.append(time.perf_counter()))
    packed = np.diff(ends)
    start = time.perf_counter()
    _loop_over_samples(network, examples)
    loop = time.perf_counter() - start
    print(f"epoch of {_SAMPLES} samples with validation on {_VALID}: packed {np.median(packed):.3f} s")
    print(f"({packed.min():.3f} to {packed.max():.3f} s over {_EPOCHS}), loop over samples {loop:.2f} s, ")
    print(f"ratio {loop / np.median(packed):.1f}")


def _loop_over_samples(network: ComputeNetwork, examples: ComputeExamples) -> None:
    """One epoch in which every sample's tables go through the network by themselves."""
    optimizer = torch.optim.Adam(network.parameters())
    for chosen in torch.randperm(_SAMPLES).split(512):
        outputs = [
            network.head(network.table(examples.features[first : first + count]).sum(0))
            for first, count in zip(examples.first[chosen].tolist(), examples.count[chosen].tolist(), strict=True)
        ]
        loss = ((torch.stack(outputs) - examples.targets[chosen]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
