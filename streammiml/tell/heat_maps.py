"""Pictures of row scores where the rows of a bag lie: maps of coordinates, and lines over time."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streammiml.measure.heat_maps import HeatMap
from streammiml.tell.charts import Shape
from streammiml.tell.png import encode_png

SIDE, MARGIN = 160.0, 7.0
"""Longer side of a map, and the space around it, in units of its SVG."""
LINE_WIDTH, LINE_HEIGHT = 300.0, 80.0
"""Size of a line over time, in units of its SVG."""
ABOVE, BELOW = (209, 36, 47), (9, 105, 218)
"""Colours of scores above and below the threshold, which suit light and dark pages."""
OPACITY_ABOVE, OPACITY_BELOW = (0.65, 1.0), (0.1, 0.55)
"""Opacity of the lowest and highest score above the threshold, and below it."""
LEVELS = 32
"""Steps of opacity above the threshold, and below it: fewer steps make smaller files."""


@dataclass(frozen=True, slots=True)
class MapPicture:
    """A map or a line as the parts of an SVG."""

    label: str
    """Name of the label."""
    description: str
    """The picture in words, for screen readers."""
    box: str
    """Left, top, width and height of the SVG."""
    cells: str | None
    """The cells of a map as the URL of an image; None for a line."""
    width: float
    height: float
    shapes: list[Shape]
    """Drawn over the cells, in this order."""
    note: str
    """Text below the picture."""


def cell_colors(margins: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(height, width, 4) Colours of cells: red above the threshold, blue below, none where empty.

    The higher a score, the less transparent its colour.
    """
    is_cell = np.isfinite(margins)
    values = np.where(is_cell, margins, 0).astype(np.float64)
    is_above = values > 0
    high, low = max(values.max(), 1e-12), min(values.min(), -1e-12)
    rank = np.rint(np.where(is_above, values / high, 1 - values / low) * LEVELS) / LEVELS
    least, most = (
        np.where(is_above, above, below)
        for above, below in zip(OPACITY_ABOVE, OPACITY_BELOW, strict=True)
    )
    out = np.zeros((*margins.shape, 4), np.uint8)
    out[..., :3] = np.where(is_above[..., None], ABOVE, BELOW)
    out[..., 3] = np.rint(255 * (least + (most - least) * rank))
    out[~is_cell] = 0
    return out


def map_picture(heat_map: HeatMap, label: str, key_place: str) -> MapPicture:
    """Draw a map, or a line if rows lie in time; ``key_place`` says where the key row lies."""
    low, high = float(np.nanmin(heat_map.margins)), float(np.nanmax(heat_map.margins))
    note = f"{high:+.3g} at {key_place}, others down to {low:+.3g}"
    n_above = int((heat_map.margins > 0).sum())
    n_cells = int(np.isfinite(heat_map.margins).sum())
    description = (
        f"{label}: scores of {heat_map.n_rows:,} rows where they lie; {n_above:,} of {n_cells:,} "
        f"cells above the threshold; {note}"
    )
    draw = _map if heat_map.grid.low.size == 2 else _line
    box, width, height, cells, shapes = draw(heat_map)
    return MapPicture(label, description, box, cells, width, height, shapes, note)


_Drawn = tuple[str, float, float, str | None, list[Shape]]


def _map(heat_map: HeatMap) -> _Drawn:
    """Cells as an image, and a ring around the key row."""
    n_lines, n_columns = heat_map.margins.shape
    unit = SIDE / max(n_lines, n_columns)
    width, height = round(n_columns * unit, 2), round(n_lines * unit, 2)
    raw = encode_png(cell_colors(heat_map.margins))
    url = "data:image/png;base64," + base64.b64encode(raw).decode()
    shapes = []
    if heat_map.key_cell is not None:
        line, column = heat_map.key_cell
        shapes = _ring((column + 0.5) * unit, (line + 0.5) * unit, max(5.0, 0.75 * unit))
    box = f"{-MARGIN:g} {-MARGIN:g} {width + 2 * MARGIN:g} {height + 2 * MARGIN:g}"
    return box, width, height, url, shapes


def _line(heat_map: HeatMap) -> _Drawn:
    """A line of margins over time, the threshold, and a ring around the key row."""
    margins = heat_map.margins[0]
    top, bottom = max(float(np.nanmax(margins)), 0.0), min(float(np.nanmin(margins)), 0.0)
    across = LINE_WIDTH / max(1, len(margins) - 1)
    up = LINE_HEIGHT / max(top - bottom, 1e-12)

    def place(cell: int) -> tuple[float, float]:
        return round(cell * across, 1), round((top - float(margins[cell])) * up, 1)

    zero = round(top * up, 1)
    places = [place(cell) for cell in np.flatnonzero(np.isfinite(margins)).tolist()]
    corners = " ".join(f"{x},{y}" for x, y in places)
    shapes = [
        Shape("line", "threshold", {"x1": 0, "x2": LINE_WIDTH, "y1": zero, "y2": zero}),
        Shape("polyline", "line c0", {"points": corners}),
    ]
    if heat_map.key_cell is not None:
        shapes += _ring(*place(heat_map.key_cell[1]), 5.0)
    box = f"{-MARGIN:g} {-MARGIN:g} {LINE_WIDTH + 2 * MARGIN:g} {LINE_HEIGHT + 2 * MARGIN:g}"
    return box, LINE_WIDTH, LINE_HEIGHT, None, shapes


def _ring(x: float, y: float, radius: float) -> list[Shape]:
    """A ring that can be seen on any colour: dark on light, or light on dark."""
    at = {"cx": round(x, 2), "cy": round(y, 2), "r": round(radius, 2)}
    return [Shape("circle", "ring halo", at), Shape("circle", "ring", at)]
