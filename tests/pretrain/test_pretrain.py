"""Networks, the training loop, and whole pretrain runs, on made-up measurements."""

import errno
import json
import re
from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest
import torch

from neuroshard.cost.loads import LoadSets, Traffic
from neuroshard.measure.store import DataDirectory
from neuroshard.measure.store.noise import fastest
from neuroshard.measure.store.sample_loads import loads_of
from neuroshard.measure.store.samples import CommSample, ComputeSample, Measurement, Repeats
from neuroshard.measure.store.splits import split_tables
from neuroshard.models import CostModels, load_bundle
from neuroshard.models.features import FeatureSet
from neuroshard.models.perceptron import perceptron
from neuroshard.models.stored import Normaliser
from neuroshard.plumbing import files
from neuroshard.stages.pretrain.examples import CommTable, ComputeTable
from neuroshard.stages.pretrain.fit_additive import Additive, Ensemble, Regression
from neuroshard.stages.pretrain.fit_set_comm import SetCommunication
from neuroshard.stages.pretrain.networks import ComputeNetwork, to_mlp
from neuroshard.stages.pretrain.paper import PaperComm, PaperCompute
from neuroshard.stages.pretrain.pretrain import Pretrain
from neuroshard.stages.pretrain.result import accuracy_of
from neuroshard.stages.pretrain.training import TrainingSettings, fit
from neuroshard.testing import LinearComm, LinearCompute, toy_tables
from neuroshard.words.collective import Collective
from neuroshard.words.fingerprint import versions
from neuroshard.words.form import Form
from tests.kit.commands import shown
from tests.kit.made_up import MACHINE, begun, measured
from tests.kit.messages import refused

TABLES = toy_tables(200)
SPLIT = split_tables(TABLES, 0)
NAMES = ("train", "train", "train", "valid", "test")
QUICK = TrainingSettings(epochs=80, batch_size=32, learning_rate=3e-3, schedule="cosine", loss="relative", patience=80)


def _compute(count, seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        group = SPLIT[NAMES[i % 5]]
        tables = tuple(
            group[j] for j in rng.choice(len(group), size=rng.integers(1, min(5, len(group)) + 1), replace=False)
        )
        cost = LinearCompute().predict(LoadSets.of([tables], 256))[0]
        made.append(measured(ComputeSample(tables, 256), i, cost, NAMES[i % 5], repeats=3))
    return made


def _comm(count, seed=0):
    rng = np.random.default_rng(seed)
    model = LinearComm(3)
    made = []
    for i in range(count):
        dims, starts = rng.integers(10, 300, size=(1, 3)) * 4, rng.uniform(0, 10, size=(1, 3))
        times = [model.predict(Traffic.of_columns(dims, 256), delays)[0] for delays in (starts, 0 * starts)]
        sample = CommSample.of_columns(tuple(dims[0].tolist()), tuple(starts[0].tolist()), 256)
        made.append(measured(sample, i, times, NAMES[i % 5], repeats=3))
    return made


def _collected(path):
    directory = begun(path / "data", TABLES, versions={"torch": "2.0.0"})
    failed = Measurement(_compute(1)[0].sample, 999, "train", 0, None, "MemoryError: too much")
    directory.compute().write(0, [*_compute(400), failed])
    directory.compute().write(1, [replace(m, second_pass=True) for m in _compute(10)])
    directory.comm().write(0, _comm(300))
    return path


@pytest.fixture
def data(tmp_path):
    return _collected(tmp_path)


def _fitters(training):
    """Of the papers' networks, of sets, and of sums."""
    paper = {"compute_model": PaperCompute("log", training=training), "comm_model": PaperComm(training=training)}
    additive = Additive(hidden=(32,), corrections=4, training=training, training_further=training)
    comm = SetCommunication((32,), training, parts=2, training_further=training)
    sets = {"compute_model": Ensemble(additive, members=2), "comm_model": comm}
    return paper, sets, paper | {"compute_model": Regression()}


PAPER, SETS, LINEAR = _fitters(QUICK)
BRIEF_PAPER, BRIEF_SETS, _ = _fitters(replace(QUICK, epochs=3))  # where it doesn't matter how well they fit


def _pretrain(data, out="bundle", **changes):
    return Pretrain(data=str(data / "data"), out=str(data / out), **(BRIEF_PAPER | changes))


SETS_GROUP = pytest.mark.xdist_group("sets")  # which share models that take long to fit


@pytest.fixture(scope="module")
def by_sets(tmp_path_factory):
    """Where models of sets were fitted with patience, and the result."""
    data = _collected(tmp_path_factory.mktemp("by_sets"))
    return data, _pretrain(data, **SETS).run()


@SETS_GROUP
@pytest.mark.parametrize(
    "kinds", [pytest.param(PAPER, marks=pytest.mark.slow), SETS, LINEAR], ids=["paper", "sets", "linear"]
)
def test_pretrain_fits_and_saves_models(data, by_sets, kinds):
    data, result = by_sets if kinds is SETS else (data, _pretrain(data, **kinds).run())
    models, card = load_bundle(data / "bundle")
    for name in ("compute", "forward", "backward"):
        assert result.metrics[name].test.mape < 0.2
        assert result.metrics[name].test.kendall_tau > 0.85
        assert getattr(card.metrics, name) == result.metrics[name]
    test = [m for m in _compute(400) if m.split == "test"]
    predicted = models.compute.predict(LoadSets.of([m.sample.tables for m in test], 256))
    times_ms = np.array([m.repeats.times_ms[0] for m in test])
    assert accuracy_of(predicted, times_ms).mape == pytest.approx(result.metrics["compute"].test.mape)
    assert card.data.compute_samples == {"train": 240, "valid": 80, "test": 80}
    assert card.metrics.compute.noise_p50 == 0
    assert card.versions == versions() | {"torch": "2.0.0"}  # of what was measured
    assert 0.7 < result.metrics["compute"].coverage <= 1
    assert models.ranges.devices.most == 3
    written = json.loads((data / "bundle" / "bundle.json").read_text())["card"]
    assert written["hardware"] == asdict(MACHINE)
    assert {"decile_mape", "kendall_tau", "mape", "mse", "samples"} == written["metrics"]["forward"]["test"].keys()


@SETS_GROUP
def test_fitting_further_starts_from_the_init_bundle_and_keeps_its_ranges(data, by_sets):
    start = by_sets[0] / "bundle"
    still = TrainingSettings(epochs=1, learning_rate=1e-12)
    unmoved = {
        "compute_model": Ensemble(Additive(training_further=still), members=2),
        "comm_model": SetCommunication(training_further=still),
    }
    _pretrain(
        data, "further", init=str(start), max_samples=30, min_finetune_samples=8, allow_regression=True, **unmoved
    ).run()
    (before, _), (after, card) = map(load_bundle, (start, data / "further"))
    sets = LoadSets.of([TABLES[:4], TABLES[3:5]], 256)
    dims, starts = np.array([[40.0, 80.0, 20.0]]), np.zeros((1, 3))
    traffic = Traffic.of_columns(dims, 256)
    for ratio in (
        after.compute.predict(sets) / before.compute.predict(sets),
        after.forward.predict(traffic, starts) / before.forward.predict(traffic, starts),
    ):
        assert np.allclose(ratio, ratio.flat[0], rtol=1e-4)  # the speed alone
    assert card.data.compute_samples["train"] == 30
    assert after.ranges == before.ranges  # of few samples now, but fitted to all before


@SETS_GROUP
def test_models_worse_than_their_initial_models_are_not_written(data, by_sets):
    """Training and validation samples are from a machine three times as slow, so that fitting makes models worse."""
    slow = [
        m if m.split == "test" else replace(m, repeats=m.repeats.times(3.0))
        for m in fastest(DataDirectory(data / "data").compute().each())
        if m.repeats is not None
    ]
    (data / "data" / "compute" / "part-00001.parquet").unlink()
    DataDirectory(data / "data").compute().write(0, slow)
    (data / "further").mkdir()
    further = {"init": str(by_sets[0] / "bundle"), "min_finetune_samples": 8, **BRIEF_SETS}
    with refused("pretrain-models-worse", names=[f"init={by_sets[0] / 'bundle'}", "compute"]) as caught:
        _pretrain(data, "further", **further).run()
    assert len(re.findall(r"\d+\.\d%", caught.value.message.what)) == 3  # after, before, noise
    assert "allow_regression=true" in caught.value.message.remedy
    assert not list((data / "further").iterdir())
    result = _pretrain(data, "further", allow_regression=True, **further).run()
    assert result.metrics["compute"].test.mape > 1.1 * result.before["compute"]
    assert f"{result.before['compute']:.1%}" in shown(result)
    assert (data / "further" / "bundle.json").exists()


def _several_batch_sizes(directory):
    several = [replace(m, sample=replace(m.sample, batch_size=128 * (1 + m.sample_id % 2))) for m in _compute(40)]
    directory.compute().write(0, several)


def _several_device_counts(directory):
    wider = [
        replace(
            m,
            sample=CommSample.of_columns((*m.sample.dims, 4), (*m.sample.start_ms, 0.0), 256),
            repeats=Repeats(np.concatenate([m.repeats.times_ms, m.repeats.times_ms[..., :1]], -1), np.zeros(3)),
        )
        for m in _comm(40)
    ]
    directory.comm().write(1, wider)


@pytest.mark.parametrize(
    ("measure", "values", "setting"),
    [(_several_batch_sizes, "128, 256", "features"), (_several_device_counts, "3, 4", "comm_model=set")],
)
def test_paper_networks_refuse_samples_of_several_sizes_that_set_networks_fit(data, measure, values, setting):
    measure(DataDirectory(data / "data"))
    with refused("samples-values-differ", names=[values]) as caught:
        _pretrain(data).run()
    assert setting in caught.value.message.remedy
    assert _pretrain(data, **BRIEF_SETS).run().metrics["compute"].test.samples > 0
    assert CostModels.load(data / "bundle").num_devices is None


def test_column_wise_models_do_not_depend_on_other_measurements(data):
    alone = _pretrain(data, "alone").run().metrics
    copies = [replace(m, sample=replace(m.sample, form=Form.DATA_PARALLEL, batch_size=128)) for m in _compute(40)]
    gathered = [
        replace(m, sample=CommSample((4096,) * 3, m.sample.start_ms, 64, Collective.ALL_REDUCE)) for m in _comm(40)
    ]
    DataDirectory(data / "data").compute().write(2, copies)
    DataDirectory(data / "data").comm().write(1, gathered)
    beside = _pretrain(data, "beside").run().metrics
    assert {part: beside[part] for part in alone} == alone
    assert beside.keys() - alone.keys() == {"compute.data_parallel", "backward.all_reduce"}
    assert _pretrain(data, "column_wise", calls=()).run().metrics == alone
    files = [next((data / out).glob("weights-*")) for out in ("alone", "column_wise")]
    assert files[0].name == files[1].name


PARTIAL = {name: {"train": 24, "valid": 0, "test": 8} for name in ("compute.data_parallel", "backward.all_reduce")}


@pytest.fixture
def partial(data):
    """A data set whose data-parallel calls and exchanges have no validation samples."""
    copies = [replace(m, sample=replace(m.sample, form=Form.DATA_PARALLEL)) for m in _compute(40) if m.split != "valid"]
    gathered = [
        replace(m, sample=CommSample((4096,) * 3, m.sample.start_ms, 64, Collective.ALL_REDUCE))
        for m in _comm(40)
        if m.split != "valid"
    ]
    DataDirectory(data / "data").compute().write(2, copies)
    DataDirectory(data / "data").comm().write(1, gathered)
    return data


def test_pretrain_leaves_out_parts_with_an_empty_split_unless_named(partial):
    result = _pretrain(partial).run()
    assert result.left_out == PARTIAL
    assert result.metrics.keys() == {"compute", "forward", "backward"}
    text = " ".join(shown(result).split())
    assert "compute.data_parallel" in text
    assert "train 24, valid 0, test 8" in text
    with refused("split-empty", where=str(partial / "data"), names=["valid", "data_parallel"]):
        _pretrain(partial, calls=("data_parallel",)).run()


def test_fitting_further_scales_parts_with_an_empty_split(partial):
    still = replace(QUICK, epochs=1)
    kinds = {"compute_model": Ensemble(Additive(training_further=still), 2)}
    kinds |= {"comm_model": SetCommunication(training_further=still)}
    result = _pretrain(partial, init="cpu", allow_regression=True, **kinds).run()
    assert result.left_out == {}
    assert result.metrics.keys() >= PARTIAL.keys()
    before, after = (CostModels.load(path) for path in ("cpu", partial / "bundle"))
    sample = next(
        m.sample
        for m in fastest(DataDirectory(partial / "data").compute().each())
        if m.sample.form == Form.DATA_PARALLEL
    )
    calls = loads_of([sample])
    assert after.compute.predict(calls) != pytest.approx(before.compute.predict(calls), rel=0.01)
    assert after.margins.of("compute.data_parallel") == before.margins.of("compute.data_parallel")


def test_pretraining_with_the_same_seed_gives_the_same_bundle(data):
    for out in ("a", "b"):
        _pretrain(data, out).run()
    _pretrain(data, "c", seed=1).run()
    files = [next((data / out).glob("weights-*")).read_bytes() for out in "abc"]
    assert files[0] == files[1] != files[2]


def test_pretraining_with_a_split_without_samples_is_refused(data):
    others = [m for m in _comm(300) if m.split != "test"]
    again = [replace(m, second_pass=True) for m in others[:7]]  # samples that were measured twice count once
    DataDirectory(data / "data").comm().write(0, [*others, *again])
    with refused("split-empty", where=str(data / "data"), names=["test", f"{len(others)} samples"]):
        _pretrain(data).run()


@dataclass(frozen=True)
class _OwnKind(Additive):
    """Fits a model of a class that bundles cannot store."""

    def fit(self, *_):
        return LinearCompute()


def test_own_fitter_of_models_that_bundles_cannot_store_is_refused_after_the_first_fit(data, monkeypatch):
    monkeypatch.setattr(SetCommunication, "fit", None)  # exchanges would be fitted later
    with refused("bundle-kind-unknown", names=["LinearCompute", "AdditiveCompute"]):
        _pretrain(data, compute_model=_OwnKind(training=QUICK)).run()
    assert not (data / "bundle").exists()


def test_invalid_init_bundle_is_refused_before_fitting(data):
    (data / "bundle").mkdir()
    (data / "bundle" / "bundle.json").write_text("{}")
    with refused("bundle-format-unknown", names=[data / "bundle"]):
        _pretrain(data, compute_model=None).run()
    assert [file.name for file in (data / "bundle").iterdir()] == ["bundle.json"]
    assert (data / "bundle" / "bundle.json").read_text() == "{}"


def _full_disk(monkeypatch, *full):
    """Make the disk full below some directories."""
    write = files.write_atomically

    def write_where_there_is_room(path, fill):
        if any(directory in path.parents for directory in full):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, fill)

    monkeypatch.setattr("neuroshard.plumbing.files.write_atomically", write_where_there_is_room)
    monkeypatch.setattr("neuroshard.models.bundle.write_atomically", write_where_there_is_room)


def test_a_full_disk_does_not_lose_the_training(data, tmp_path_factory, monkeypatch):
    short = {name: replace(fitter, training=TrainingSettings(epochs=1)) for name, fitter in PAPER.items()}
    _pretrain(data, **short).run()
    old, _ = load_bundle(data / "bundle")
    spare = tmp_path_factory.mktemp("spare")
    monkeypatch.setattr("tempfile.tempdir", str(spare))
    _full_disk(monkeypatch, data / "bundle")
    with refused("bundle-kept-elsewhere", names=["No space left"]) as caught:
        _pretrain(data, seed=1, **short).run()
    (kept,) = spare.iterdir()
    assert str(kept) in caught.value.message.remedy
    dims = np.array([[40.0, 80.0, 20.0]])
    costs = [
        models.forward.predict(Traffic.of_columns(dims, 256), dims)
        for models in (old, *map(CostModels.load, (data / "bundle", kept)))
    ]
    assert (costs[0] == costs[1]).all()
    assert (costs[0] != costs[2]).any()
    _full_disk(monkeypatch, data / "bundle", spare)
    with refused("bundle-lost", names=[spare]):
        _pretrain(data, seed=1, **short).run()
    assert list(spare.iterdir()) == [kept]


def test_pretrain_fits_on_one_thread_and_restores_the_number_of_threads(data):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    seen = []

    class Watched(PaperComm):
        def fit(self, *arguments):
            seen.append(torch.get_num_threads())
            return super().fit(*arguments)

    try:
        _pretrain(data, comm_model=Watched(training=TrainingSettings(epochs=1))).run()
        assert (seen, torch.get_num_threads()) == ([1, 1], 2)
    finally:
        torch.set_num_threads(before)


def test_features_that_never_vary_are_left_out():
    normaliser = Normaliser.fitted(np.array([[7.0, 1.0], [7.0, 2.0], [7.0, 3.0]]))
    assert np.allclose(normaliser(np.array([[12.0, 2.0], [-12.0, 3.0]])), [[0, 0], [0, 1.2247]], atol=1e-4)


def test_packed_inputs_contain_the_features_of_the_chosen_sets():
    table = ComputeTable.of(_compute(20), FeatureSet("log"))
    normaliser = Normaliser.fitted(table.features)
    examples = table.examples(normaliser, 2.0)
    ends = table.counts.cumsum()
    chosen = [7, 3, 12]
    features, segments, count = examples.inputs(torch.tensor(chosen))
    assert count.tolist() == [table.counts[i] for i in chosen]
    for position, i in enumerate(chosen):
        expected = normaliser(table.features[ends[i] - table.counts[i] : ends[i]])
        assert np.allclose(features[segments == position].numpy(), expected)
    assert np.allclose(examples.targets[chosen, 0].numpy() * 2.0, table.cost_ms[chosen])


def test_exported_and_trained_networks_predict_equally():
    torch.manual_seed(0)
    table = ComputeTable.of(_compute(20), FeatureSet("paper"))
    examples = table.examples(Normaliser.fitted(table.features), 1.0)
    network = ComputeNetwork(table.features.shape[1], (128, 32), 64)
    features, segments, count = examples.inputs(torch.arange(20))
    trained = network(features, segments, count).detach().numpy()
    sums = np.zeros((20, 32), dtype=np.float32)
    np.add.at(sums, segments.numpy(), to_mlp(network.table)(features.numpy()))
    assert np.allclose(to_mlp(network.head)(sums), trained, atol=1e-5)


def test_comm_table_subtracts_waiting_time_from_transfers():
    table, dims = CommTable.of(_comm(10), 0), np.array([m.sample.dims for m in _comm(10)])
    assert np.allclose(table.transfer_ms, 0.002 * dims.max(axis=1, keepdims=True))
    assert (CommTable.of(_comm(10), 1).features[:, 3:] == 0).all()


def test_the_best_epoch_is_kept_and_patience_ends_the_run():
    torch.manual_seed(0)
    table = CommTable.of(_comm(60), 0)
    examples = table.examples(Normaliser.fitted(table.features), 1.0)
    network = perceptron((6, 8, 3))
    seen = []
    settings = TrainingSettings(epochs=300, batch_size=16, learning_rate=0.1, patience=5)
    fit(network, [examples, examples], settings, 0, lambda epoch, loss: seen.append(loss))
    assert len(seen) < 300
    assert int(np.argmin(seen)) == len(seen) - 6
    with torch.no_grad():
        loss = ((network(*examples.all_inputs) - examples.targets) ** 2).mean()
    assert float(loss) == pytest.approx(min(seen))


def test_regression_recovers_linear_costs(data):
    result = _pretrain(data, compute_model=Regression()).run()
    assert result.metrics["compute"].test.mape < 1e-3
    model = CostModels.load(data / "bundle").compute
    assert (model.weight >= 0).all()
    assert np.allclose(*(some.predict(LoadSets.of([TABLES[:3]], 256)) for some in (model, LinearCompute())), rtol=1e-2)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        *((TrainingSettings, its) for its in ({"loss": "mae"}, {"epochs": 0}, {"schedule": "linear"})),
        (TrainingSettings, {"learning_rate": -1.0}),
        (SetCommunication, {"parts": 0}),
        (SetCommunication, {"hidden": ()}),
        (Additive, {"corrections": 4097}),
        (Additive, {"hidden": (0,)}),
        (Ensemble, {"members": 1}),
        (PaperCompute, {"head": 0}),
        (PaperCompute, {"table": (32, "a")}),
        (PaperComm, {"hidden": (4097,)}),
    ],
)
def test_training_settings_outside_limits_are_refused(kind, setting):
    with refused("unknown-name" if setting.keys() <= {"loss", "schedule"} else "value-outside-limits", names=setting):
        kind(**setting)


@SETS_GROUP
def test_a_starting_model_of_another_kind_is_refused_before_anything_is_fitted(data, by_sets, monkeypatch):
    """The communication model is checked too."""
    monkeypatch.setattr(Ensemble, "fit", lambda *_: pytest.fail("fitted"))
    mixed = BRIEF_SETS | {"comm_model": BRIEF_PAPER["comm_model"]}
    with refused("init-model-kind", names=["forward", by_sets[0] / "bundle"]):
        _pretrain(data, "wrong", init=str(by_sets[0] / "bundle"), **mixed).run()
