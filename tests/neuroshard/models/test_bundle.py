import json

import numpy as np
import pytest

from neuroshard.errors import UserError
from neuroshard.models import Card, CostModels, load_bundle, save_bundle
from neuroshard.models.trust import Margin, Margins, Ranges
from neuroshard.samples import CommSample, ComputeSample
from neuroshard.testing import random_ensemble, random_models, random_set_comm, toy_tables

CARD = Card({"kind": "cpu"}, {"torch": "1"}, {"seed": 0}, {}, {"compute": {"mape": 0.1}})


@pytest.fixture
def bundle(tmp_path):
    save_bundle(tmp_path / "bundle", random_models(), CARD)
    return tmp_path / "bundle"


def test_saving_and_loading_is_exact(bundle):
    saved, (loaded, card) = random_models(), load_bundle(bundle)
    assert card == CARD
    sets = [toy_tables(n, seed=n) for n in range(1, 6)]
    assert (loaded.compute.predict(sets, 256) == saved.compute.predict(sets, 256)).all()
    dims, starts = np.arange(8.0).reshape(2, 4) * 4, np.arange(8.0).reshape(2, 4)
    for name in ("forward", "backward"):
        assert (
            getattr(loaded, name).predict(dims, starts, 256) == getattr(saved, name).predict(dims, starts, 256)
        ).all()
    assert (loaded.batch_size, loaded.num_devices) == (256, 4)


@pytest.mark.parametrize("name", ["bundle.json", "card.json", "compute.safetensors", "forward.safetensors"])
def test_a_missing_file_is_named(bundle, name):
    (bundle / name).unlink()
    with pytest.raises(UserError, match=name.split(".")[0]):
        CostModels.load(bundle)


@pytest.mark.parametrize("name", ["bundle.json", "compute.safetensors", "backward.safetensors"])
def test_a_truncated_file_is_refused(bundle, name):
    path = bundle / name
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UserError) as caught:
        CostModels.load(bundle)
    assert "\n" not in str(caught.value)


def _change(bundle, change):
    path = bundle / "bundle.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_other_features_are_refused(bundle):
    _change(bundle, lambda content: content["models"]["compute"]["settings"].update(columns=["dim", "rows"]))
    with pytest.raises(UserError, match="other features"):
        CostModels.load(bundle)
    _change(bundle, lambda content: content["models"]["compute"]["settings"].update(features="logg"))
    with pytest.raises(UserError, match="did you mean 'log'"):
        CostModels.load(bundle)


def test_unknown_kinds_are_refused(bundle):
    _change(bundle, lambda content: content["models"]["forward"].update(kind="sortd"))
    with pytest.raises(UserError, match="did you mean 'sorted'"):
        CostModels.load(bundle)


def test_networks_must_fit_the_bundle(bundle, tmp_path):
    save_bundle(tmp_path / "other", random_models(8), CARD)
    (bundle / "forward.safetensors").write_bytes((tmp_path / "other" / "forward.safetensors").read_bytes())
    with pytest.raises(UserError, match="different numbers of devices"):
        CostModels.load(bundle)
    (bundle / "compute.safetensors").write_bytes((bundle / "forward.safetensors").read_bytes())
    with pytest.raises(UserError, match="compute"):
        CostModels.load(bundle)


def test_ensembles_ranges_and_margins_are_stored_exactly(tmp_path):
    comm = random_set_comm()
    samples = [ComputeSample(toy_tables(n, seed=n), 64 * n) for n in range(1, 4)]
    ranges = Ranges.of(samples, [CommSample((8, 16), (0.0, 1.0), 64)])
    margins = Margins(Margin(0.1, 1.5), Margin(0.2, 2.0), Margin(0.3, 2.5))
    saved = CostModels(random_ensemble(), comm, comm, None, ranges, margins)
    save_bundle(tmp_path / "bundle", saved, CARD)
    loaded = CostModels.load(tmp_path / "bundle")
    assert (loaded.ranges, loaded.margins, loaded.batch_size) == (ranges, margins, None)
    sets = [toy_tables(n, seed=n) for n in range(1, 6)]
    assert (loaded.compute.predict(sets, 99) == saved.compute.predict(sets, 99)).all()
    dims, starts = np.arange(10.0).reshape(2, 5) * 4, np.arange(10.0).reshape(2, 5)
    assert (loaded.forward.predict(dims, starts, 99) == comm.predict(dims, starts, 99)).all()
