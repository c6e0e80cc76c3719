"""Models of kernels that are faster if no table of the call is wide."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuroshard import Table, zipf_reuse
from neuroshard.cost.loads import Loads, LoadSets
from neuroshard.models.compute_models import AdditiveCompute
from tests.kit.random_models import random_by_widest

BATCH_SIZE = 256
MODEL = random_by_widest().members[0]
WIDTHS = MODEL.kernel_widths
PLAIN = AdditiveCompute(*(getattr(MODEL, field.name) for field in fields(AdditiveCompute)))


@st.composite
def _tables(draw, dims):
    rows, pooling = draw(st.integers(2, 100_000)), draw(st.floats(0.5, 60))
    reuse = zipf_reuse(rows, BATCH_SIZE * pooling, 1.0)
    return Table(f"t{rows}", rows, draw(dims), pooling, reuse)


NARROW = _tables(st.integers(1, WIDTHS[-1] // 4).map(lambda quarter: 4 * quarter))
WIDE = _tables(st.sampled_from([WIDTHS[-1] + 4, 128, 512]))


def _cost_ms(model, *sets):
    return model.predict(LoadSets.of(sets, BATCH_SIZE))


def _saved_share(tables):
    """Return the saved share: each width that no table exceeds saves its share of the cost left by larger widths."""
    widest = max(table.dim for table in tables)
    return 1 - np.prod([1 - share for width, share in zip(WIDTHS, MODEL.saved, strict=True) if widest <= width])


@given(st.lists(NARROW, min_size=1, max_size=8))
def test_set_of_narrow_tables_saves_the_shares_of_wider_kernel_widths(tables):
    own_ms = PLAIN.embed(Loads.of(tables, BATCH_SIZE))[:, 0].sum() * MODEL.scale_ms
    cost_ms, as_wide_ms = (_cost_ms(model, tables)[0] for model in (MODEL, PLAIN))
    assert cost_ms < as_wide_ms
    assert cost_ms == pytest.approx(as_wide_ms - own_ms * _saved_share(tables), rel=1e-4)


@given(st.lists(NARROW, max_size=8), WIDE)
def test_set_with_a_wide_table_has_no_savings_by_width(narrow, wide):
    assert _cost_ms(MODEL, [*narrow, wide]) == _cost_ms(PLAIN, [*narrow, wide])


@given(st.lists(NARROW, min_size=1, max_size=8), NARROW | WIDE)
def test_additional_table_never_lowers_the_cost_of_a_set(tables, more):
    before_ms, after_ms = _cost_ms(MODEL, tables, [*tables, more])
    assert after_ms >= before_ms * (1 - 1e-5)
