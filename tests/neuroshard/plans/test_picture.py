"""Pictures of plans and curves: text with markup, and many devices."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neuroshard import CostModels, Simulator, Task, Topology, UserError
from neuroshard.bundles import known_names
from neuroshard.cost.cost import Cost, Part, When
from neuroshard.plans.picture import canvas, curves_png, label, plan_png
from tests.kit.costs import cost_of
from tests.kit.messages import check
from tests.kit.plans import DATA_PARALLEL, laid_out, tables, whole

PNG = b"\x89PNG"
HOSTILE = [
    "$x^2$",
    "$",
    "$\\frac{1",
    "a_b^c\\d",
    "[bold]",
    "_hidden",
    "two\nlines",
    "\ud800",
    "名前",
    "x" * 1000,
    "",
    "{%",
]


@pytest.fixture
def figures(monkeypatch):
    """Every figure that is saved."""
    saved = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *given, **named: saved.append(self) or save(self, *given, **named)
    )
    return saved


def _plan(num_devices):
    some = tables([f"t{i}" for i in range(num_devices)], 10, 4)
    task = Task(some, Topology(num_devices, 1 << 20), 2 * num_devices)
    return whole(task), cost_of(*[np.linspace(1, 2, num_devices)] * 3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "text", [*HOSTILE[::3], *(pytest.param(text, marks=pytest.mark.slow) for text in HOSTILE[1::3] + HOSTILE[2::3])]
)
def test_titles_with_dollar_signs_are_drawn_as_text(text, figures):
    assert plan_png(*_plan(2), text).startswith(PNG)
    assert curves_png([("one", np.array([2.0, 1.0]))], {}, text).startswith(PNG)
    assert figures[0].get_suptitle() == figures[1].axes[0].get_title() == label(text)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("texts", [HOSTILE[::2], HOSTILE[1::2]])
def test_curve_names_with_dollar_signs_are_drawn_as_text(texts, figures):
    curves, baselines = [(text, np.array([2.0, 1.0])) for text in texts], dict.fromkeys(texts, 1.5)
    assert curves_png(curves, baselines, "title").startswith(PNG)
    (axes,) = figures[0].axes
    assert {shown.get_text() for shown in axes.get_legend().get_texts()} == set(map(label, texts))


def test_labels_are_short_and_shown_in_legends():
    assert label("neuroshard") == "neuroshard"
    assert len(label("x" * 1000)) < 60
    assert label(" a\n b ") == "a b"
    assert not label("_hidden").startswith("_")


def test_canvas_restores_matplotlib_settings_afterwards():
    """The settings of a picture do not outlast it."""
    from matplotlib import rcParams

    with canvas(1, 1):
        assert not rcParams["text.parse_math"]
    assert rcParams["text.parse_math"]


@pytest.mark.parametrize(
    "num_devices", [1, 16, 17, 1000, *(pytest.param(many, marks=pytest.mark.slow) for many in (4, 128))]
)
def test_plan_picture_draws_device_numbers_without_overlap(num_devices, figures):
    assert plan_png(*_plan(num_devices), "title").startswith(PNG)
    for axes in figures[0].axes:
        numbers = axes.get_xticklabels()
        boxes = sorted((text.get_window_extent() for text in numbers if text.get_text()), key=lambda box: box.x0)
        assert 1 <= len(boxes) <= 20
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_plan_picture_of_many_devices_has_one_shape_per_part(figures):
    """A bar per device and part would be thousands of shapes, which are slow to draw."""
    plan_png(*_plan(1000), "title")
    assert sum(len(axes.patches) for axes in figures[0].axes) == 4


def test_memory_is_drawn_by_sharding_type(figures):
    plan = laid_out(Task(tables("abc", 100, 64), Topology(2, 1 << 20), 64), [0, 1], DATA_PARALLEL, 1)
    plan_png(plan, cost_of(*[np.ones(2)] * 3), "mixed")
    memory = figures[0].axes[1]
    assert [text.get_text() for text in memory.get_legend().get_texts()] == ["column_wise", "row_wise", "data_parallel"]
    tops = [
        max(bar.get_y() + bar.get_height() for bar in memory.patches if bar.get_x() + 0.35 == device)
        for device in (0, 1)
    ]
    np.testing.assert_allclose(tops, np.array(plan.device_bytes) / 2**30)
    plan_png(*_plan(2), "columns alone")
    assert figures[1].axes[1].get_legend() is None


def test_curves_picture_of_many_runs_has_no_legend(figures):
    curves = [(f"run {i}", np.array([3.0, 2.0])) for i in range(30)]
    curves_png(curves, {})
    assert figures[0].axes[0].get_legend() is None
    curves_png(curves[:3], {})
    assert len(figures[1].axes[0].get_legend().get_texts()) == 3


@pytest.mark.filterwarnings("error")
def test_plans_that_cost_nothing_are_drawn(figures):
    plan_png(_plan(2)[0], cost_of(*[np.zeros(2)] * 3), "free")
    assert isinstance(figures[0].axes[0], Axes)


IN_STEPS = {"framework": "torchrec"}
SETTINGS = {}, IN_STEPS, IN_STEPS | {"dense_ms": 8}, IN_STEPS | {"exchange_dtype": "fp16/bf16"}


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", known_names())
def test_plans_are_drawn_by_every_installed_model(name, settings, figures):
    """Each part that counts has its own colour."""
    try:
        simulator = Simulator(CostModels.load(name, **settings))
    except UserError as error:
        assert "dense_ms" in settings
        check(error.message, "models-ignore-dense-ms", names=["dense_ms=8"])  # models that don't count host time
        return
    task = Task(tables(["a", "b"], 1000, 16), Topology(2, 1 << 30), 65536 if name.startswith("h100") else 4096)
    plan = whole(task)
    cost = simulator.cost(task, plan)
    assert plan_png(plan, cost, name).startswith(PNG)
    bars = figures[0].axes[0].containers
    assert len(bars) == len(cost.counted)
    assert len({its.patches[0].get_facecolor() for its in bars}) == len(bars)


@pytest.mark.parametrize("count", [1, 5, 30])
@pytest.mark.parametrize("when", When)
def test_plan_picture_draws_any_number_of_parts_in_distinct_colours(when, count, figures):
    plan, cost = _plan(2)
    cost = Cost((*cost.parts, *(Part(f"part {number}", when, np.ones(2)) for number in range(count))))
    assert plan_png(plan, cost, "title").startswith(PNG)
    colors = [its.patches[0].get_facecolor() for its in figures[0].axes[0].containers]
    assert len(colors) == count + 3
    assert all(one != other for one, other in pairwise(colors))
