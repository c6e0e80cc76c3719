"""The compiled greedy placement puts every shard on the device where the version in NumPy puts it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import neuroshard as ns
from neuroshard.stages.search.published._greedy_jit import place_all_greedily
from neuroshard.stages.search.published.device_room import DeviceRoom
from neuroshard.stages.search.published.greedy import DeviceScore, Placements, place_greedily
from neuroshard.stages.search.published.grid import GridSearch, GridSettings, caps_of
from neuroshard.stages.search.published.shard_table import PlacementRules, ShardTable, evenly_split, least_score
from neuroshard.stages.search.space.costed_space import CostedSpace
from neuroshard.stages.search.space.fixed_load import FixedLoad
from neuroshard.testing import toy_tables

SEEDS = st.integers(0, 2**32 - 1)


def _rules(rng, num_items, num_devices):
    """Draw rules: some items are not allowed on some devices, some exclude each other, some need two devices."""
    pairs = {tuple(sorted(rng.choice(num_items, 2, replace=False).tolist())) for _ in range(num_items // 3)}
    rivals = [sorted({b for a, b in pairs if a == i} | {a for a, b in pairs if b == i}) for i in range(num_items)]
    return PlacementRules(
        allowed=rng.random((num_items, num_devices)) < 0.9,
        min_shards=rng.integers(1, 3, num_items),
        max_shards=np.full(num_items, num_devices),
        min_width=np.ones(num_items, dtype=np.int64),
        rival_first=np.array([0, *map(len, rivals)]).cumsum(),
        rivals=np.array([rival for some in rivals for rival in some], dtype=np.int64),
    )


def _shards(rng, rules, score):
    """Draw shards with whole vectors and bytes, so that sums are exact in any order; some vectors lower the score."""
    num_items = len(rules.min_shards)
    full_width = rng.integers(2, 6, num_items)
    first, count = np.concatenate([[0], (full_width + 1).cumsum()[:-1]]), int((full_width + 1).sum())
    empty = np.isin(np.arange(count), first)
    vectors = rng.integers(-(rng.random() < 0.5), 9, (count, len(score.bias))).astype(np.float32)
    vectors[empty] = 0
    size_bytes = np.where(empty, 0, rng.integers(1, 50, count))
    units = (np.arange(count) - np.repeat(first, full_width + 1)).astype(np.float64)
    least = least_score(vectors, _Head(score))
    return ShardTable(rules, first, size_bytes, size_bytes, units, vectors, np.zeros(count), least)


class _Head:
    def __init__(self, score):
        self.bias, self.weight, self.offset, self.scale_ms = score.bias, score.weight, -score.floor, 1.0


def _score(rng, width):
    bias, weight = rng.integers(-3, 4, width), rng.integers(-1, 4, width)
    return DeviceScore(bias.astype(np.float32), weight.astype(np.float32), width, float(rng.integers(-2, 3)))


def _compiled(shards, rows, caps, memory_bytes, fixed_score, score):
    """Return the devices (M, S) of the shards under each cap, and whether all shards fit."""
    item = shards.item[rows]
    shape = (1, len(caps), len(memory_bytes))
    outcome = Placements(
        np.stack([item, rows - shards.first[item]], axis=-1)[None],
        np.empty((1, len(caps), len(rows)), dtype=np.int64),
        np.empty(shape),
        np.empty(shape),
        np.empty(shape[:2], dtype=np.bool_),
        np.empty(shape[:2], dtype=np.bool_),
    )
    room = DeviceRoom.empty(shards, memory_bytes)
    place_all_greedily(outcome, caps, memory_bytes, fixed_score, room, shards, score)
    assert not room.widths.any()
    return outcome


@settings(max_examples=300)
@given(SEEDS)
def test_compiled_and_numpy_versions_choose_the_same_devices(seed):
    rng = np.random.default_rng(seed)
    num_items, num_devices = int(rng.integers(2, 9)), int(rng.integers(1, 6))
    score = _score(rng, int(rng.integers(1, 5)))
    shards = _shards(rng, _rules(rng, num_items, num_devices), score)
    item = rng.permutation(np.repeat(np.arange(num_items), rng.integers(1, 3, num_items)))
    rows = shards.first[item] + rng.integers(1, shards.full_width[item] // 2 + 1)
    memory_bytes = rng.integers(20, 200, num_devices)
    fixed_score = rng.integers(0, 20, num_devices).astype(np.float64) * (rng.random() < 0.5)
    total = int(shards.sent_units[rows].sum())
    caps = np.unique([total // num_devices, total * 3 // (2 * num_devices), total])
    ours = _compiled(shards, rows, caps, memory_bytes, fixed_score, score)
    for number, cap in enumerate(caps.tolist()):
        expected = place_greedily(shards, rows, cap, memory_bytes, fixed_score, score)
        assert ours.fits[0, number] == (expected is not None)
        if expected is not None:
            assert ours.devices[0, number].tolist() == expected.tolist()
            sent = np.bincount(expected, shards.sent_units[rows], minlength=num_devices)
            assert ours.sent_units[0, number].tolist() == sent.tolist()


def test_place_greedily_scores_devices_by_the_counted_entries_only():
    rules = PlacementRules(
        np.ones((2, 2), dtype=np.bool_),
        np.ones(2, dtype=np.int64),
        np.full(2, 2),
        np.ones(2, dtype=np.int64),
        np.zeros(3, dtype=np.int64),
        np.empty(0, dtype=np.int64),
    )
    vectors = np.array([[0, 0], [0, 9], [0, 0], [0, 9]], dtype=np.float32)
    zeros, units = np.zeros(4, dtype=np.int64), np.array([0.0, 1.0, 0.0, 1.0])
    shards = ShardTable(rules, np.array([0, 2]), zeros, zeros, units, vectors, np.zeros(4), np.zeros(4))
    rows, memory_bytes, fixed_score = np.array([1, 3]), np.array([1, 1]), np.zeros(2)
    for counted, devices in ((1, [0, 0]), (2, [0, 1])):
        score = DeviceScore(np.zeros(2, np.float32), np.ones(2, np.float32), counted, 0.0)
        assert place_greedily(shards, rows, 2, memory_bytes, fixed_score, score).tolist() == devices
        assert (
            _compiled(shards, rows, np.array([2]), memory_bytes, fixed_score, score).devices[0, 0].tolist() == devices
        )


@pytest.mark.parametrize("models", ["cpu", "h100", "roofline:h100"])
def test_compiled_and_numpy_versions_choose_the_same_devices_with_installed_models(models):
    """The bias of a model alone may have a score below 0, so that an empty device has the lowest score."""
    simulator = ns.Simulator(ns.CostModels.load(models))
    for seed in range(12):
        rng = np.random.default_rng(seed)
        tables = toy_tables(int(rng.integers(3, 20)), seed)
        task = ns.Task(tables, ns.Topology(int(rng.choice([2, 4, 8])), "64GiB"), 1024)
        problem = CostedSpace.checked(FixedLoad.empty(task), simulator).problem
        shards, score = GridSearch(problem, GridSettings()).by_whole
        splits = evenly_split(shards, np.minimum(rng.integers(1, 3, len(tables)), shards.full_width))
        rows, memory_bytes = rng.permutation(splits), problem.memory_bytes
        caps = caps_of(shards.total_sent_units, problem.num_devices, GridSettings())
        ours = _compiled(shards, rows, caps, memory_bytes, problem.fixed_ms, score)
        for number, cap in enumerate(caps.tolist()):
            expected = place_greedily(shards, rows, cap, memory_bytes, problem.fixed_ms, score)
            assert ours.fits[0, number] == (expected is not None)
            if expected is not None:
                assert ours.devices[0, number].tolist() == expected.tolist()
