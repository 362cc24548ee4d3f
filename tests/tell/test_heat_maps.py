"""Pictures of row scores: colours, rings, lines."""

import numpy as np

from streammiml.measure.heat_maps import Grid, HeatMap
from streammiml.tell.heat_maps import ABOVE, BELOW, cell_colors, map_picture

MARGINS = np.array([[-4, -1, np.nan], [0.5, 2, -0.25]], np.float32)


def made_map(margins, key_cell, n_axes=2):
    grid = Grid(np.zeros(n_axes), 1.0, margins.shape)
    return HeatMap(0, grid, margins, 7, key_cell, 6)


def test_cell_colors__are_stronger_the_higher_the_score_and_empty_where_no_row_lies():
    colors = cell_colors(MARGINS)
    assert colors[0, 2].tolist() == [0, 0, 0, 0]
    above = MARGINS > 0
    assert (colors[above][:, :3] == ABOVE).all()
    assert (colors[~above & np.isfinite(MARGINS)][:, :3] == BELOW).all()
    order = np.argsort(MARGINS, axis=None)[:5]
    assert (np.diff(colors[..., 3].ravel()[order].astype(int)) > 0).all()
    assert colors[1, 1, 3] == 255


def test_cell_colors__of_one_score_or_of_equal_scores():
    for value in (-1.0, 0.0, 3.0):
        colors = cell_colors(np.full((2, 2), value, np.float32))
        assert (colors[..., 3] > 0).all()
        assert (colors == colors[0, 0]).all()


def test_map_picture__rings_the_key_cell():
    picture = map_picture(made_map(MARGINS, (1, 1)), "sea", "coords 1, 1")
    unit = picture.width / 3
    assert picture.height == round(2 * unit, 2)
    for ring in picture.shapes:
        assert (ring.attributes["cx"], ring.attributes["cy"]) == (picture.width / 2, 1.5 * unit)
    assert picture.note == "+2 at coords 1, 1, others down to -4"
    assert "2 of 5 cells above the threshold" in picture.description
    assert picture.cells.startswith("data:image/png;base64,")
    assert not map_picture(made_map(MARGINS, None), "sea", "coords none, none").shapes


def test_map_picture__over_time_is_a_line_with_a_threshold():
    margins = np.array([[-1, np.nan, 3, 1]], np.float32)
    picture = map_picture(made_map(margins, (0, 2), n_axes=1), "sea", "time 2")
    assert picture.cells is None
    threshold, line, *rings = picture.shapes
    assert threshold.attributes["y1"] == 60.0
    assert line.attributes["points"] == "0.0,80.0 200.0,0.0 300.0,40.0"
    assert [(ring.attributes["cx"], ring.attributes["cy"]) for ring in rings] == [(200.0, 0.0)] * 2
