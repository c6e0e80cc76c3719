"""One compute model that several machines share, and machines' numbers in it."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from neuroshard.cost.loads import LoadSets
from neuroshard.models import CostModels, load_bundle
from neuroshard.models.ensemble import ComputeEnsemble
from neuroshard.models.features import FeatureSet
from neuroshard.models.mlp import Normaliser
from neuroshard.models.shared import SharedCompute
from neuroshard.plumbing.errors import UserError
from neuroshard.records import DataDirectory, Manifest
from neuroshard.records.sample_loads import loads_of
from neuroshard.records.splits import split_tables
from neuroshard.stages.augment.comm import CommAugmentation
from neuroshard.stages.augment.compute import ComputeAugmentation
from neuroshard.stages.pretrain.across import Across, SharedExamples, SharedNetwork
from neuroshard.stages.pretrain.examples import ComputeTable
from neuroshard.stages.pretrain.fit_additive import Additive, Ensemble
from neuroshard.stages.pretrain.fit_set_comm import SetCommunication
from neuroshard.stages.pretrain.machine import Machine
from neuroshard.stages.pretrain.other_speed import Speed, scaled_compute, typical_ratio
from neuroshard.stages.pretrain.pretrain import Pretrain
from neuroshard.stages.pretrain.pretrain_across import PretrainAcross
from neuroshard.stages.pretrain.refine.refit import Refit
from neuroshard.stages.pretrain.result import predict_compute
from neuroshard.stages.pretrain.split_measurements import SplitMeasurements
from neuroshard.stages.pretrain.training import TrainingSettings
from neuroshard.tables.sources.dlrm_like import dlrm_like
from neuroshard.testing import PhysicalComputeConformance, random_ensemble, random_set_comm, toy_tables
from neuroshard.testing.devices import MADE_UP, measured_comm, measured_compute
from neuroshard.testing.devices.cpu import drawn_cpu
from neuroshard.words.fingerprint import Fingerprint

pytestmark = pytest.mark.xdist_group("across")  # its tests share models that take long to fit
TABLES = tuple(table for table in dlrm_like(num_tables=120, batch_size=4096) if table.rows >= 64)
SPLIT = split_tables(TABLES, 0)
CALLS = ComputeAugmentation(max_tables=8, max_bytes=1 << 30, any_width_share=0.5)
TRAINING = TrainingSettings(80, 64, 5e-3, "cosine", "absolute_relative", 80)
BRIEF = replace(TRAINING, epochs=3)
MEMBER = Additive((32,), TRAINING, corrections=4)
BRIEF_MEMBER = Additive((8,), BRIEF, corrections=2)


def _silent(_epoch, _loss):
    pass


def _device(seed):
    return replace(MADE_UP["cpu"], compute=drawn_cpu(np.random.default_rng(seed)))


def _calls(device, count, seed, noise=0.02):
    """Samples of the device, in the same splits of tables for every device."""
    rng = np.random.default_rng(seed)
    drawn = [CALLS.draw(SPLIT, int(rng.choice([1024, 4096])), rng) for _ in range(count)]
    return measured_compute(device, drawn, noise, rng)


def _split(measured):
    return SplitMeasurements(
        *([m for m in measured if m.split == name] for name in ("train", "valid", "test")), measured
    )


@cache
def _shared():
    """Of eight made-up machines."""
    machines = [_split(_calls(_device(seed), 200, 100 + seed)) for seed in range(8)]
    return Across(MEMBER, 2, axes=3).fit_machines(machines, [f"m{seed}" for seed in range(8)], 0, _silent)


def _error(model, measured):
    found = predict_compute(model, measured)
    return float(np.abs(found.predicted_ms / found.measured_ms - 1).mean())


@cache
def _brief():
    """Of two machines, hardly trained."""
    machines = [_split(_calls(_device(seed), 60, seed)) for seed in range(2)]
    return Across(BRIEF_MEMBER, 2, axes=2).fit_machines(machines, ["one", "other"], 0, _silent)


class TestShared(PhysicalComputeConformance):
    def make(self):
        return _brief()


class TestSharedOnAMachine(PhysicalComputeConformance):
    """Far from every machine that it was fitted to."""

    def make(self):
        numbers = np.array([1.0, -5.0])
        return ComputeEnsemble(tuple(member.at(numbers) for member in _brief().members))


def test_a_machine_s_model_is_the_network_with_its_numbers():
    features, rng = FeatureSet("physical_reuse"), np.random.default_rng(0)
    table = ComputeTable.of(_calls(_device(0), 40, 0), features)
    normaliser = Normaliser.fitted(table.features)
    torch.manual_seed(0)
    network = SharedNetwork(features.signs, (16, 8), 4, 3, torch.zeros(5))
    with torch.no_grad():
        for parameter in (network.places, network.speed, network.call):
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape)))
    member = network.member(features, normaliser, 0.7)
    examples = SharedExamples.of([table] * 5, normaliser, 1.0)
    with torch.no_grad():
        costs = network(*examples.inputs(torch.arange(200)))[:, 0].numpy().reshape(5, 40) * 0.7
    sets = loads_of([m.sample for m in _calls(_device(0), 40, 0)])
    for numbers, cost in zip(member.machines, costs, strict=True):
        assert np.allclose(member.at(numbers).predict(sets), np.maximum(cost, 0), rtol=1e-4, atol=1e-6)
    places = member.machines[:, 1:]
    assert np.allclose(places.mean(axis=0), 0, atol=1e-6)
    assert np.allclose(places.std(axis=0, ddof=1), 1)
    assert member.machines[:, 0].mean() == pytest.approx(0, abs=1e-6)


def test_what_is_fitted_goes_on_from_where_it_was():
    """The network of a member says what the member says."""
    member = _brief().members[0]
    table = ComputeTable.of(_calls(_device(5), 20, 0), member.typical.features)
    examples = table.examples(member.typical.normaliser, member.typical.scale_ms)
    with torch.no_grad():
        costs = SharedNetwork.of(member)(*examples.inputs(torch.arange(20)), torch.zeros(20, dtype=torch.int64))
    sets = loads_of([m.sample for m in _calls(_device(5), 20, 0)])
    assert np.allclose(member.typical.predict(sets), costs[:, 0].numpy() * member.typical.scale_ms, rtol=1e-4)


def test_two_machines_differ_along_one_axis():
    assert [len(member.call) for member in _brief().members] == [1, 1]


def test_the_typical_machine_has_no_numbers():
    shared = _brief()
    sets = LoadSets.of([toy_tables(4)], 256)
    zero = ComputeEnsemble(tuple(member.at(np.zeros(2)) for member in shared.members))
    assert zero.predict(sets) == shared.predict(sets) == shared.typical.predict(sets)
    assert shared.spread_ms(sets) == shared.typical.spread_ms(sets)


@pytest.mark.parametrize("seed", [20, 22, 27])
def test_a_few_samples_of_a_new_machine_tell_its_numbers(seed):
    shared, device = _shared(), _device(seed)
    measured = _split(_calls(device, 60, seed))
    few = replace(measured, train=measured.train[:20])
    test = [m for m in _calls(device, 400, 7, noise=0.0) if m.split == "test"]
    at_its_speed = scaled_compute(shared.typical, typical_ratio(predict_compute(shared, few.train)))
    found = Machine().fit(few, shared, 0, _silent)
    assert type(found) is ComputeEnsemble
    assert _error(found, test) < 0.15
    assert _error(found, test) < 0.75 * _error(at_its_speed, test)


def _log_errors(model, measured):
    found = predict_compute(model, measured)
    return np.log(found.measured_ms / found.predicted_ms)


def test_numbers_fit_no_worse_than_those_of_any_known_machine():
    shared = _shared()
    measured = _split(_calls(_device(22), 60, 53))
    found = Machine().fit(measured, shared, 0, _silent)
    for one, member in zip(found.members, shared.members, strict=True):
        known = [np.std(_log_errors(member.at(numbers), measured.train)) for numbers in member.machines]
        assert np.sqrt(np.mean(_log_errors(one, measured.train) ** 2)) < min(known) - 1e-4


def test_one_sample_says_little_but_the_speed():
    """Where a sample is expected to be far off, a machine is as fast as it says and else typical."""
    measured = _split(_calls(_device(30), 40, 1))
    one = replace(measured, train=measured.train[:1])
    shared = _shared()
    far = replace(shared, members=tuple(replace(m, machines=m.machines + 50) for m in shared.members))  # no known ones
    found = Machine(error=100.0).fit(one, far, 0, _silent)
    sets = loads_of([m.sample for m in measured.everything])
    ratios = found.predict(sets) / shared.predict(sets)
    assert ratios.max() / ratios.min() < 1.1
    of_one = predict_compute(found, one.train)
    assert of_one.predicted_ms == pytest.approx(of_one.measured_ms, rel=0.05)


def test_the_same_samples_give_the_same_numbers():
    measured = _split(_calls(_device(20), 60, 20))
    first, second = (Machine(steps=20).fit(measured, _brief(), seed, _silent) for seed in (0, 1))
    for one, other in zip(first.members, second.members, strict=True):
        assert all(np.array_equal(tensor, other.tensors()[name]) for name, tensor in one.tensors().items())
        assert one.scale_ms == other.scale_ms


def test_models_are_refined_from_a_machine_s_numbers():
    shared, device = _shared(), _device(22)
    start = CostModels(shared, random_set_comm(0), random_set_comm(1), None, name="shared")
    measured = [m for m in _calls(device, 60, 3) if m.split != "test"]
    Refit(least_train=1000).check(start)
    numbers = Refit(least_train=1000).fit(start, measured, [])
    expected = Machine().fit(_split(measured), shared, 0, _silent)
    sets = loads_of([m.sample for m in measured])
    assert np.array_equal(numbers.compute.predict(sets), expected.predict(sets))
    further = Refit(compute=replace(TRAINING, epochs=20, learning_rate=1e-3)).fit(start, measured, [])
    valid = [m for m in measured if m.split == "valid"]
    assert _error(further.compute, valid) <= _error(numbers.compute, valid)


def _write(path, seed, kind="cpu", split=SPLIT, count=80, exchanges=40):
    device, rng = _device(seed), np.random.default_rng(seed)
    directory = DataDirectory(path)
    directory.begin(Manifest(Fingerprint(kind, f"machine {seed}", 2, 1 << 30).to_json(), {}, {}, 0), TABLES)
    drawn = [CALLS.draw(split, 4096, rng) for _ in range(count)]
    directory.compute().write(0, measured_compute(device, drawn, 0.02, rng))
    if exchanges:
        swapped = [CommAugmentation().draw(3, 4096, rng) for _ in range(exchanges)]
        directory.comm().write(0, measured_comm(device, swapped, 0.02, rng))
    return str(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three machines; of the second no exchanges were measured, which are learned from the first."""
    root = tmp_path_factory.mktemp("machines")
    return [_write(root / f"m{seed}", seed, exchanges=exchanges) for seed, exchanges in enumerate((40, 0, 40))]


def _across(data, out, **changes):
    settings = {"compute_model": Across(BRIEF_MEMBER, 2, 2), "comm_model": SetCommunication((8,), BRIEF, parts=2)}
    return PretrainAcross(data=tuple(data), out=str(out), **(settings | changes))


def _machine(data, init, out, **changes):
    settings = {"compute_model": Machine(steps=5), "comm_model": Speed(), "forms": ()}
    return Pretrain(data=data, out=str(out), init=init, **(settings | changes))


def test_a_bundle_of_several_machines_becomes_one_of_another(data, tmp_path):
    result = _across(data[:2], tmp_path / "shared").run()
    assert list(result.metrics) == data[:2]
    models, card = load_bundle(tmp_path / "shared")
    assert isinstance(models.compute, SharedCompute)
    assert (models.compute.names, card.hardware, models.margins) == (tuple(data[:2]), None, None)
    assert card.training["machines"][data[0]]["test"]["mape"] == result.metrics[data[0]].test.mape
    short = {"max_samples": 10, "keep_worse": True}  # too short to be better
    _machine(data[2], str(tmp_path / "shared"), tmp_path / "machine", **short).run()
    found, card = load_bundle(tmp_path / "machine")
    assert (type(found.compute), card.hardware.device) == (ComputeEnsemble, "machine 2")
    assert card.data.compute_samples["train"] == 10
    assert found.margins is not None
    assert found.forward.scale_ms != models.forward.scale_ms
    assert np.array_equal(found.forward.network.weights[0], models.forward.network.weights[0])
    further = {
        "compute_model": Ensemble(Additive(training=BRIEF), 2), "comm_model": SetCommunication(training=BRIEF),
        "keep_worse": True,
    }  # fmt: skip
    _machine(data[2], str(tmp_path / "machine"), tmp_path / "further", **further).run()


def test_the_same_seed_gives_the_same_bundle(data, tmp_path):
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        _across(data, tmp_path / out, seed=seed).run()
    names = [next((tmp_path / out).glob("weights-*")).name for out in "abc"]
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": ("one",)}, "give two data directories or more"),
        ({"data": "one"}, "give two data directories or more"),
        ({"data": ("one", "one")}, "give two data directories or more"),
        ({"init": "cpu"}, "leave init and forms out"),
        ({"forms": ("rows",)}, "leave init and forms out"),
        ({"host_tiers": "roofline:h100"}, "leave host_tiers out"),
        ({"compute_model": Ensemble()}, "choose compute_model=across"),
    ],
)
def test_what_is_not_for_several_machines_is_refused(changes, message):
    settings = {"data": ("one", "other"), "out": "out", "compute_model": Across(), "comm_model": SetCommunication()}
    with pytest.raises(UserError, match=message) as error:
        PretrainAcross(**(settings | changes))
    assert "\n" not in str(error.value)


def test_machines_of_two_kinds_are_refused(data, tmp_path):
    gpu = _write(tmp_path / "gpu", 5, kind="cuda")
    with pytest.raises(UserError, match=r"gpu was measured on cuda, .*m0 on cpu; machines that share"):
        _across([data[0], gpu], tmp_path / "out").run()


def test_a_machine_without_samples_is_refused(data, tmp_path):
    nothing = _write(tmp_path / "nothing", 5, count=0)
    with pytest.raises(UserError, match="nothing holds no compute samples for the train split"):
        _across([data[0], nothing], tmp_path / "out").run()
    assert not (tmp_path / "out" / "bundle.json").exists()


def test_tables_to_test_with_on_one_machine_are_not_trained_on_on_another(data, tmp_path):
    other = _write(tmp_path / "other", 5, split=split_tables(TABLES, 1))
    with pytest.raises(UserError, match=r"is in the (train|valid|test) and in the (train|valid|test) split"):
        _across([data[0], other], tmp_path / "out").run()


def test_numbers_are_of_a_shared_model_only(data, tmp_path):
    with pytest.raises(UserError, match="init=BUNDLE of neuroshard pretrain experiment=pretrain_across"):
        _machine(data[0], None, tmp_path / "out", comm_model=SetCommunication(training=BRIEF)).run()
    with pytest.raises(UserError, match="kind 'ensemble', and Machine goes on from 'shared' only"):
        _machine(data[0], "cpu", tmp_path / "out").run()
    with pytest.raises(UserError, match="comm_model=speed multiplies models that there are"):
        _machine(data[0], None, tmp_path / "out", compute_model=Ensemble(BRIEF_MEMBER, 2)).run()


def test_one_machine_has_nothing_to_share(data, tmp_path):
    with pytest.raises(UserError, match="fitted to several machines: neuroshard pretrain experiment=pretrain_across"):
        Pretrain(data[0], str(tmp_path / "out"), Across(), SetCommunication(training=BRIEF)).run()


@pytest.mark.parametrize("axes", [0, 65, 1.5, True])
def test_the_number_of_axes_is_checked(axes):
    with pytest.raises(UserError, match=r"across: axes=.* must be a whole number from 1 to 64"):
        Across(axes=axes)


def test_features_that_do_not_show_the_batch_size_are_refused():
    machines = [_split(_calls(_device(seed), 20, seed)) for seed in range(2)]
    with pytest.raises(UserError, match="features=paper don't show the batch size"):
        Across(Additive((8,), BRIEF, features="paper"), 2).fit_machines(machines, ["a", "b"], 0, _silent)


def test_a_plain_ensemble_has_no_axes():
    with pytest.raises(UserError, match="goes on from 'shared' only"):
        Machine().fit(_split(_calls(_device(0), 20, 0)), random_ensemble(), 0, _silent)
