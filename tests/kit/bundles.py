"""Bundles in tests: models that use every field of a bundle, and functions that read and write the files."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.numpy

from neuroshard.measure.store.samples import CommSample, ComputeSample
from neuroshard.models import CostModels
from neuroshard.models.compute_models import ComputeEnsemble
from neuroshard.models.trust import Margin, Margins, Range, Ranges
from neuroshard.testing import toy_tables
from tests.kit.random_models import random_by_widest, random_ensemble, random_set_comm


def newer_models() -> CostModels:
    """Make cost models with an ensemble of two kinds, exchange models for any number of devices, ranges and margins."""
    samples = [ComputeSample(toy_tables(n, seed=n), 64 * n) for n in range(1, 4)]
    ranges = Ranges.of(samples, [CommSample.of_columns((8, 16), (0.0, 1.0), 64)])
    ranges = replace(ranges, others={"compute.row_wise": (Range("rows", 0.0, 1.0),)})
    margins = Margins(Margin(0.1, 1.5), Margin(0.2, 2.0), Margin(0.3, 2.5))
    compute = ComputeEnsemble((random_ensemble().members[0], random_by_widest().members[1]))
    return CostModels(compute, random_set_comm(), random_set_comm(1), None, ranges, margins)


def parts_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the description and the tensors of a bundle."""
    (weights,) = path.glob("weights-*.safetensors")
    return json.loads((path / "bundle.json").read_text()), safetensors.numpy.load(weights.read_bytes())


def write_parts(path: Path, described: dict[str, Any], tensors: dict[str, Any] | bytes) -> None:
    """Replace all files of a directory by a bundle with a correct hash; `tensors` may be the content of a file."""
    for file in path.iterdir():
        file.unlink()
    stored = tensors if isinstance(tensors, bytes) else safetensors.numpy.save(tensors)
    digest = hashlib.sha256(stored).hexdigest()
    (path / f"weights-{digest}.safetensors").write_bytes(stored)
    if isinstance(described.get("weights"), str):
        described["weights"] = digest
    (path / "bundle.json").write_text(json.dumps(described))
