"""The figures of host tiers fitted to made-up measurements."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard import CostModels, Tier, TierAssignment
from neuroshard.measure.store.sample_loads import loads_of
from neuroshard.measure.store.samples import ComputeSample
from neuroshard.measure.store.splits import split_tables
from neuroshard.models.host_tiers import HostTiers
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.fit import fit_host_tiers
from neuroshard.stages.pretrain.pretrain import Pretrain
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.words.form import COLUMN_WISE_CALL, Call, Form
from tests.kit.devices import MADE_UP
from tests.kit.made_up import BRIEF_SETS, collected, measured
from tests.kit.messages import refused

DEVICE = MADE_UP["gpu"]
TABLES = dlrm_like(num_tables=120, batch_size=4096)
TRUTH = HostTiers(0.4, 25.0, 2.0, 0.15)


def _write(path):
    """Columns in device memory, and exchanges."""
    drawn = ComputeAugmentation(max_tables=6, max_bytes=1 << 30)
    swapped = CommAugmentation(max_start_ms=DEVICE.max_start_ms)
    return collected(path, TABLES, (200, drawn), (100, swapped), device=DEVICE)


def _measured(samples, noise, seed=0, first=0):
    rng = np.random.default_rng(seed)
    cost = TRUTH.predict(loads_of(samples)) * rng.lognormal(0, noise, len(samples))
    return [
        measured(sample, first + i, ms, ("train", "valid", "test")[i % 3], repeats=3)
        for i, (sample, ms) in enumerate(zip(samples, cost, strict=True))
    ]


def _drawn(tiers, count, seed=0, tables=None):
    augmentation = ComputeAugmentation(max_bytes=4 << 30, tiers=tiers)
    split, rng = split_tables(tables or dlrm_like(num_tables=200, batch_size=65536), 0), np.random.default_rng(seed)
    return [augmentation.draw(split, 65536, rng) for _ in range(count)]


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_fit_host_tiers_recovers_the_figures_of_measurements(noise):
    samples = [sample for sample, _ in _drawn(("uvm_caching",), 300)]
    found = fit_host_tiers(_measured(samples, noise))
    assert found.link_ms_per_gb == pytest.approx(25.0, rel=0.01 + 2 * noise)
    assert found.cache_lookup_ns == pytest.approx(2.0, rel=0.01 + 4 * noise)
    assert found.call_ms == pytest.approx(0.15, rel=0.01 + 4 * noise)
    loads = loads_of([sample for sample, _ in _drawn(("uvm_caching",), 50, seed=1)])
    assert found.predict(loads) == pytest.approx(TRUTH.predict(loads), rel=0.01 + noise)


def test_fit_host_tiers_without_caches_has_no_cost_per_cache_lookup():
    samples = [sample for sample, _ in _drawn(("uvm",), 200)]
    found = fit_host_tiers(_measured(samples, 0.0))
    assert found.cache_lookup_ns == 0
    assert found.link_ms_per_gb == pytest.approx(25.0, rel=0.01)
    assert found.call_ms == pytest.approx(0.15, rel=0.01)


def test_pretrain_fits_host_tiers_to_measurements(tmp_path):
    """Beside networks of columns; with metrics, and refused where a tier that is named wasn't measured."""
    directory = _write(tmp_path / "data")
    drawn = _drawn(("uvm_caching", "uvm_caching", "uvm"), 240, tables=TABLES)
    its = [
        replace(one, split=split)
        for one, (_, split) in zip(_measured([s for s, _ in drawn], 0.03, first=200), drawn, strict=True)
    ]
    directory.compute().write(1, its)
    result = Pretrain(str(tmp_path / "data"), str(tmp_path / "bundle"), **BRIEF_SETS).run()
    models = CostModels.load(tmp_path / "bundle")
    behind, in_host = Call(Form.COLUMN_WISE, tier=Tier.UVM_CACHING), Call(Form.COLUMN_WISE, tier=Tier.UVM)
    assert models.compute.calls == {COLUMN_WISE_CALL, behind, in_host}
    assert models.compute.of_call(behind).link_ms_per_gb == pytest.approx(25.0, rel=0.2)
    for part in ("compute.uvm_caching_column_wise", "compute.uvm_column_wise"):
        assert result.metrics[part].test.mape < 0.1
    with refused("split-empty", where=str(tmp_path / "data"), names=["train", "sequence tables in tier uvm"]):
        Pretrain(str(tmp_path / "data"), str(tmp_path / "no"), **BRIEF_SETS, calls=("uvm_sequence_column_wise",)).run()


def test_datasheet_link_is_used_for_unmeasured_host_tiers(tmp_path):
    _write(tmp_path / "data")
    Pretrain(str(tmp_path / "data"), str(tmp_path / "bundle"), **BRIEF_SETS, host_tiers="roofline:h100").run()
    found = CostModels.load(tmp_path / "bundle").compute
    on_device, behind = (
        ComputeSample(TABLES[:3], 4096, tier_assignment=home)
        for home in (TierAssignment(), TierAssignment(Tier.UVM_CACHING, 1.0))
    )
    lookups = sum(4096 * table.pooling_factor for table in TABLES[:3])
    costs = found.predict(loads_of([on_device, behind]))
    assert costs[1] - costs[0] == pytest.approx(0.12 + 2.43e-6 * lookups, rel=0.01)
