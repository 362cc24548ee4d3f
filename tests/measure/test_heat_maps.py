"""Heat maps: each cell has the highest score of its rows, and no map grows with its bag."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streammiml as sm
from streammiml.bags.given_bags import given_block
from streammiml.errors import StreammimlError
from streammiml.measure import heat_maps as module
from streammiml.measure.heat_maps import MOST_CELLS, MOST_TIMES, grid_of, heat_maps
from tests.measure.models import made_model

MODEL = made_model()


@given(
    places=st.lists(
        st.tuples(*[st.floats(-1e9, 1e9, width=32)] * 2) | st.tuples(*[st.integers(0, 9)] * 2),
        min_size=1,
        max_size=40,
    ),
    n_axes=st.sampled_from([1, 2]),
)
def test_grid_of__has_a_cell_for_every_place_and_few_cells(places, n_axes):
    places = np.array(places, np.float64)[:, :n_axes]
    grid = grid_of(places)
    cells = grid.cells(places)
    assert cells.min() >= 0
    assert cells.max() < np.prod(grid.shape)
    assert max(grid.shape) <= (MOST_CELLS if n_axes == 2 else MOST_TIMES)
    lines, columns = np.divmod(cells, grid.shape[1])
    centers = np.column_stack([columns, lines])[:, :n_axes] * grid.pitch + grid.low
    assert np.abs(centers - places).max() <= 0.51 * grid.pitch


def test_grid_of__tiles_have_a_cell_each():
    x, y = np.meshgrid(np.arange(30) * 512, np.arange(20) * 512)
    places = np.column_stack([x.ravel(), y.ravel()]) + 77.0
    chosen = places[np.random.default_rng(0).random(len(places)) < 0.3]
    grid = grid_of(chosen)
    assert grid.pitch == 512
    assert grid.shape == (20, 30)
    assert len(np.unique(grid.cells(chosen))) == len(chosen)


@pytest.mark.parametrize("n_axes", [1, 2])
def test_heat_maps__cells_have_the_highest_margin_of_their_rows(n_axes, monkeypatch):
    # Slices of a few rows, so that cells get rows of several slices.
    monkeypatch.setattr(module, "BLOCK_BYTES", "1KiB")
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(200, 3)).astype(np.float32)
    places = rng.integers(0, 7, (200, n_axes)).astype(float)
    places[5] = np.nan
    want = sm.row_scores(MODEL, rows, [2, 0])
    margins = want.scores - want.dummy_score[0]
    maps = heat_maps(MODEL, given_block(rows), [2, 0], places, "x")
    assert [one.label for one in maps] == [2, 0]
    for i, one in enumerate(maps):
        assert one.key_row == margins[:, i].argmax()
        assert one.n_rows == 199
        cells = grid_of(places[np.isfinite(places[:, 0])]).cells(np.nan_to_num(places))
        for cell, margin in enumerate(one.margins.ravel()):
            here = (cells == cell) & np.isfinite(places[:, 0])
            assert margin == margins[here, i].max() if here.any() else np.isnan(margin)
        if one.key_row != 5:
            assert one.margins[one.key_cell] == margins[:, i].max()


def test_heat_maps__a_key_row_without_a_place_is_not_marked():
    rows = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    key = int(sm.row_scores(MODEL, rows, [1])[0].argmax())
    places = np.column_stack([np.arange(9.0), np.zeros(9)])
    places[key] = np.inf
    (one,) = heat_maps(MODEL, given_block(rows), [1], places, "x")
    assert (one.key_row, one.key_cell) == (key, None)
    assert not heat_maps(MODEL, given_block(rows), [1], np.full((9, 2), np.nan), "x")


def test_heat_maps__of_a_slide_of_100000_rows_are_small():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(100_000, 3)).astype(np.float32)
    (one,) = heat_maps(MODEL, given_block(rows), [0], rng.random((100_000, 2)) * 1e5, "x")
    assert one.margins.shape == (MOST_CELLS, MOST_CELLS)
    assert one.n_rows == 100_000


def test_heat_maps__refuse_scores_that_are_not_finite():
    rows = np.full((3, 3), 1e38, np.float32)
    with pytest.raises(StreammimlError, match=r"^x: row 0 of bag 0 has a score that is not a fin"):
        heat_maps(MODEL, given_block(rows), [0], np.zeros((3, 2)), "x")
