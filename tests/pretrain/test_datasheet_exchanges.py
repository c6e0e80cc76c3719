"""Models of a machine with measured kernels, and with exchanges from a datasheet."""

import numpy as np
import pytest

from neuroshard import CostModels, Simulator, Task, Topology
from neuroshard.cost.cost import BACKWARD, COMPUTE, FORWARD, INPUT
from neuroshard.models import load_bundle
from neuroshard.models.comm_models import SetComm
from neuroshard.models.datasheets import exchanges_of
from neuroshard.models.interface import Coverage
from neuroshard.models.roofline import RooflineComm
from neuroshard.models.trust import DATASHEET
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.pieces import by_part
from neuroshard.stages.pretrain.pretrain import Pretrain
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.words.collective import Collective, name_of
from neuroshard.words.form import Form
from tests.kit.made_up import BRIEF_SETS, collected
from tests.kit.messages import refused
from tests.kit.plans import DATA_PARALLEL, laid_out, whole

SHEET = "roofline:h100"
H100 = CostModels.load(SHEET)
BATCH_SIZE = 1024
TABLES = tuple(dlrm_like(num_tables=80, batch_size=BATCH_SIZE))
EVERY = tuple(name_of(one) for one in Collective)


def _collected(path, exchanges=0, sharding_types=tuple(Form)):
    drawn = ComputeAugmentation(max_tables=5, max_bytes=1 << 28, sharding_types=sharding_types, sharers=(2, 4))
    swapped = CommAugmentation(num_devices=(4,), collectives=EVERY)
    return collected(path, TABLES, (120, drawn), (exchanges, swapped), BATCH_SIZE, 2).path


def _pretrain(data, out, **settings):
    return Pretrain(str(data), str(out), **(BRIEF_SETS | settings)).run()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Fitted to kernels alone."""
    root = tmp_path_factory.mktemp("sheet")
    _pretrain(_collected(root / "data"), root / "bundle", exchanges=SHEET)
    return root / "bundle"


def _tasks():
    """With exchanges on a host and between hosts."""
    for devices, per_host in ((4, None), (4, 2), (16, None)):
        yield Task(TABLES[:8], Topology(devices, 1 << 36, devices_per_host=per_host), BATCH_SIZE)


def test_bundle_with_datasheet_exchanges_predicts_datasheet_times(bundle):
    models = CostModels.load(bundle)
    assert models.forms == {*Form}
    rng = np.random.default_rng(0)
    for task in _tasks():
        devices = task.topology.num_devices
        traffic = laid_out(
            task, range(devices), range(task.topology.domain_size), DATA_PARALLEL, *range(1, 4), 2, 3
        ).traffic
        starts = rng.uniform(0, 5, size=(1, devices))
        for name in (FORWARD, BACKWARD, INPUT):
            one, other = (getattr(its, name).predict(traffic, starts) for its in (models, H100))
            assert (one == other).all(), name
            assert one.max() > starts.max() - starts.min(), name


def test_unmeasured_exchanges_have_datasheet_margins_and_no_ranges(bundle):
    models, card = load_bundle(bundle)
    margin = exchanges_of(SHEET)[1]
    assert margin.factor > 1
    assert 0 < margin.relative < 0.3
    assert [models.margins.of(name) for name in (FORWARD, BACKWARD, INPUT)] == [margin] * 3
    assert models.margins.compute != margin
    assert (models.ranges.devices, models.ranges.columns_on_a_device) == (None, None)
    assert (card.metrics.forward, card.metrics.backward) == (None, None)
    assert card.metrics.others.keys() == {"compute.row_wise", "compute.data_parallel"}
    assert card.metrics.compute.test.samples > 0
    for task in _tasks():
        warnings = Simulator(CostModels.load(bundle)).warnings(whole(task))
        assert not [one for one in warnings if one.where.startswith(("devices", "columns on a device"))]


def test_cost_caveat_says_that_only_exchanges_are_from_a_datasheet(bundle):
    task = Task(TABLES[:8], Topology(4, 1 << 36), BATCH_SIZE)
    told = [Simulator(models).cost(task, whole(task)).caveat for models in (CostModels.load(bundle), H100)]
    assert all(DATASHEET in one for one in told)
    assert [one.startswith(DATASHEET) for one in told] == [False, True]  # in part, as a whole
    assert [one.count(str(Coverage.COVERED)) for one in told] == [1, 2]  # of exchanges, and of kernels


def test_exchanges_fitted_to_measurements_replace_those_of_the_datasheet(bundle, tmp_path):
    data = _collected(tmp_path / "data", exchanges=400)
    _pretrain(data, tmp_path / "fitted", init=str(bundle), allow_regression=True)
    models, card = load_bundle(tmp_path / "fitted")
    kinds = {name: type(model) for name, model in by_part(models).items()}
    assert RooflineComm not in kinds.values()
    assert {SetComm} == {kind for name, kind in kinds.items() if not name.startswith(COMPUTE)}
    assert models.forms == {*Form}
    assert models.ranges.devices.most == 4
    assert card.metrics.forward.test.samples > 0
    assert models.margins.forward != exchanges_of(SHEET)[1]


@pytest.mark.parametrize(
    ("exchanges", "settings", "code", "names"),
    [
        (1, {"exchanges": SHEET}, "exchanges-already-measured", [f"exchanges={SHEET}"]),
        (0, {"exchanges": "cpu"}, "exchanges-not-datasheet", ["cpu", "roofline:h100"]),
        (0, {"exchanges": "roofline:h1000"}, "unknown-name", ["'h1000'"]),
        (0, {}, "split-empty", ["train", "exchanges"]),
    ],
)
def test_pretraining_with_wrong_sources_of_exchanges_is_refused(tmp_path, exchanges, settings, code, names):
    data = _collected(tmp_path / "data", exchanges, sharding_types=(Form.COLUMN_WISE,))
    with refused(code, names=names):
        _pretrain(data, tmp_path / "models", **settings)
    assert not (tmp_path / "models" / "bundle.json").exists()
