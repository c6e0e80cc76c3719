import json

import numpy as np
import pytest

from neuroshard.errors import UserError
from neuroshard.models import Card, CostModels, load_bundle, save_bundle
from neuroshard.testing import random_models, toy_tables

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
        assert (getattr(loaded, name).predict(dims, starts) == getattr(saved, name).predict(dims, starts)).all()
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


def _change(bundle, **fields):
    path = bundle / "bundle.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_other_features_are_refused(bundle):
    _change(bundle, columns=["dim", "rows"])
    with pytest.raises(UserError, match="other features"):
        CostModels.load(bundle)
    _change(bundle, features="logg")
    with pytest.raises(UserError, match="did you mean 'log'"):
        CostModels.load(bundle)


def test_networks_must_fit_the_bundle(bundle):
    _change(bundle, num_devices=8)
    with pytest.raises(UserError, match="8 devices"):
        CostModels.load(bundle)
    (bundle / "compute.safetensors").write_bytes((bundle / "forward.safetensors").read_bytes())
    with pytest.raises(UserError, match="compute"):
        CostModels.load(bundle)
