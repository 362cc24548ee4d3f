"""Heat maps: the row scores of a bag on a label, in the cells of a grid that its rows lie in.

The grid has as many cells as the rows have places, up to a limit; a cell has the highest score of
its rows, as a bag has. So the memory for a map does not depend on the number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.config import parse_size
from streammiml.measure.row_records import check_finite_rows, rows_at_once
from streammiml.measure.scoring import BLOCK_BYTES
from streammiml.model import Model
from streammiml.scorer import RowScorer

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

MOST_CELLS = 160
"""Upper limit for the cells along the longer side of a map."""
LEAST_CELLS = 8
"""Cells along the longer side of a map of few rows that do not lie on a grid."""
MOST_TIMES = 400
"""Upper limit for the cells of a time line."""


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Cells of one size that cover the places of the rows of a bag."""

    low: F64
    """(1 or 2,) Lowest coordinates: x and y, or a time."""
    pitch: float
    """Width and height of a cell, in the units of the coordinates."""
    shape: tuple[int, int]
    """Height and width in cells; the height of a time line is 1."""

    def cells(self, places: F64) -> I64:
        """(rows,) Number of the cell of each place, line by line from the top left."""
        columns = np.rint((places - self.low) / self.pitch).astype(np.int64)
        lines = columns[:, 1] if columns.shape[1] == 2 else 0
        return lines * self.shape[1] + columns[:, 0]


def grid_of(places: F64) -> Grid:
    """Lay a grid over ``places`` (rows ≥ 1, 1 or 2), which are finite.

    If the places lie on a grid of at most ``MOST_CELLS`` cells a side, each place has a cell.
    Otherwise, cells are larger: about as many as suit the number of rows.
    """
    low, high = places.min(axis=0), places.max(axis=0)
    extent = float((high - low).max())
    if not extent > 0:
        return Grid(low, 1.0, (1, 1))
    steps = np.concatenate([np.diff(np.unique(axis)) for axis in places.T])
    # Smaller steps are errors of rounding.
    step = float(steps[steps > extent * 1e-9].min())
    most = MOST_CELLS if places.shape[1] == 2 else MOST_TIMES
    suitable = 4 * math.isqrt(len(places)) if places.shape[1] == 2 else len(places)
    if extent / step > most - 1:
        step = extent / (min(most, max(LEAST_CELLS, suitable)) - 1)
    width, *height = (np.rint((high - low) / step).astype(int) + 1).tolist()
    return Grid(low, step, (height[0] if height else 1, width))


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """Scores of the rows of a bag on a label, where the rows lie."""

    label: int
    grid: Grid
    margins: NDArray[np.float32]
    """(height, width) Highest score of the rows in each cell, minus the dummy's score of the bag;
    NaN where no row lies. Margins above 0 speak for the label."""
    key_row: int
    """Row of the bag that gives the bag its score."""
    key_cell: tuple[int, int] | None
    """Line and column of the key row; None if its coordinates are not finite."""
    n_rows: int
    """Rows on the map: those whose coordinates are finite."""


def heat_maps(
    model: Model, block: BagBlock, labels: Sequence[int], places: F64, name: str
) -> list[HeatMap]:
    """Map the row scores of a block of one bag on some labels.

    ``places`` (rows, 1 or 2) are the coordinates of its rows. The result is empty if no coordinates
    are finite. ``name`` names the store, for the message if a score is not finite.
    """
    n_labels, scorer = len(labels), RowScorer(model, labels)
    is_placed: Any = np.isfinite(places).all(axis=1)
    if not is_placed.any() or not n_labels:
        return []
    grid = grid_of(places[is_placed])
    cells = np.full(len(places), -1)
    cells[is_placed] = grid.cells(places[is_placed])
    best = np.full((n_labels, math.prod(grid.shape)), -np.inf, np.float32)
    top, keys = np.full(n_labels + 1, -np.inf, np.float32), np.zeros(n_labels + 1, np.int64)
    for start, scores in scorer.scores(block, rows_at_once(n_labels, parse_size(BLOCK_BYTES))):
        values: Any = scores.value
        rows = np.arange(start, start + len(values))
        check_finite_rows(values, np.zeros(len(values), np.int64), rows, name)
        shown = is_placed[rows]
        for i in range(n_labels):
            np.maximum.at(best[i], cells[rows[shown]], values[shown, i])
        highest = values.argmax(axis=0)
        tops = values[highest, np.arange(n_labels + 1)]
        keys = np.where(tops > top, start + highest, keys)
        top = np.maximum(top, tops)
    margins = np.where(np.isfinite(best), best - top[-1], np.float32(np.nan))
    return [
        HeatMap(
            int(label),
            grid,
            margins[i].reshape(grid.shape),
            int(keys[i]),
            divmod(int(cells[keys[i]]), grid.shape[1]) if is_placed[keys[i]] else None,
            int(is_placed.sum()),
        )
        for i, label in enumerate(labels)
    ]
