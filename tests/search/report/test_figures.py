"""Figures of a report: axes and legends."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from neuroshard.stages.search.report.figures import comparison_bars, scatter, sensitivity_curve


@pytest.fixture
def axes(monkeypatch):
    """Record the axes of each saved figure."""
    saved = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *given, **named: saved.append(self.axes[0]) or save(self, *given, **named)
    )
    return saved


def _curve(values):
    relative = np.linspace(0.1, -0.1, len(values))
    return pd.DataFrame({"value": np.array(values, dtype=float), "relative": relative, "relative_ci": np.nan})


@pytest.mark.parametrize(
    ("values", "scale"),
    [([1, 2, 3, 5, 10], "linear"), ([50, 100, 3200], "log"), ([0, 1, 1000], "linear"), ([-1e18, 1e18], "linear"),
     (range(1, 101), "log"), (range(100), "linear"), ([1e-18, 1e18], "log")],
)  # fmt: skip
def test_sensitivity_curve_labels_the_swept_values(axes, values, scale):
    sensitivity_curve(_curve(list(values)), "$x$_y")
    shown = [text.get_text() for text in axes[0].get_xticklabels(which="both") if text.get_text()]
    assert axes[0].get_xscale() == scale
    assert axes[0].get_xlabel() == "$x$_y"
    assert 2 <= len(shown) <= 12
    assert {float(text) for text in shown} <= {float(value) for value in values}


def test_figures_cut_many_methods_and_drop_the_legend_above_10(axes):
    many = pd.DataFrame({"method": [f"m{i}" for i in range(200)], "mean_ms": np.arange(200.0), "ci_ms": np.nan})
    comparison_bars(many, "cost")
    assert len(axes[0].get_yticks()) == 40
    measured = pd.DataFrame({"method": [f"m{i}" for i in range(11)], "predicted_ms": 1.0, "measured_ms": 2.0})
    scatter(measured)
    assert axes[1].get_legend() is None
    scatter(measured[:10])
    assert len(axes[2].get_legend().get_texts()) == 10
