"""Sheets of heat maps for ``explain``: for each label, where the rows of its typical bags score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from streammiml.bags.coordinates import places_of, where
from streammiml.bags.kept_columns import KeptColumn
from streammiml.bags.views import Bags
from streammiml.measure.heat_maps import HeatMap, heat_maps
from streammiml.model import Model
from streammiml.tell.contact_sheets import SHEETS, grid, name_of, save
from streammiml.tell.heat_maps import cell_colors

BAGS_SHOWN = 4
"""Upper limit for the bags on a sheet: those with the highest scores on the label."""
INCHES = 2.6
"""Width and height of a map in inches."""


def draw_maps(
    summary: Mapping[str, Any],
    folder: Path,
    *,
    model: Model,
    store: Bags,
    columns: Sequence[KeptColumn],
) -> int:
    """Draw ``heat_maps-LABEL.png`` for each label that is predicted; return the number.

    ``summary`` is what ``explain_store`` returned; ``columns`` say where rows lie. A bag is read
    once for all its labels, and no two bags are held at the same time.
    """
    labels = sorted(summary["labels"], key=lambda label: (-label["n_bags"], label["label"]))
    drawn = [label for label in labels[:SHEETS] if label["n_bags"]]
    bags_of = {label["label"]: typical_bags(label) for label in drawn}
    maps: dict[tuple[int, int], tuple[HeatMap, str]] = {}
    for bag in sorted({bag for bags in bags_of.values() for bag in bags}):
        wanted = [label for label, bags in bags_of.items() if bag in bags]
        block = store.read(bag, bag + 1)
        places = places_of(columns, block.kept)
        for one in heat_maps(model, block, wanted, places, store.name):
            maps[one.label, bag] = one, where(columns, block, one.key_row)
    n_drawn = 0
    for label in drawn:
        number = label["label"]
        shown = [(bag, *maps[number, bag]) for bag in bags_of[number] if (number, bag) in maps]
        if shown:
            figure = map_sheet(name_of(label), store, shown)
            save(figure, folder / f"heat_maps-{number:04d}.png")
            n_drawn += 1
    return n_drawn


def typical_bags(label: Mapping[str, Any]) -> list[int]:
    """Bags with the highest scores on a label, of all its sub-concepts."""
    typical = [entry for concept in label["subconcepts"] for entry in concept["typical"]]
    typical.sort(key=lambda entry: (-entry["score"], entry["bag"]))
    return [entry["bag"] for entry in typical[:BAGS_SHOWN]]


def map_sheet(name: str, store: Bags, shown: Sequence[tuple[int, HeatMap, str]]) -> Figure:
    """Draw the maps of one label side by side: bag, map, and where its key row lies."""
    figure, cells = grid(1, len(shown), inches=INCHES)
    figure.set_layout_engine("constrained")
    for cell, (bag, heat_map, key_place) in zip(cells[0], shown, strict=True):
        draw = draw_map if heat_map.grid.low.size == 2 else draw_line
        draw(cell, heat_map)
        low, high = np.nanmin(heat_map.margins), np.nanmax(heat_map.margins)
        cell.set_title(
            f"{store.bag_ids(bag, bag + 1)[0]}\n{high:+.3g} at {key_place}, down to {low:+.3g}",
            fontsize=6,
        )
    is_line = shown[0][1].grid.low.size == 1
    colors = "dashes at the threshold" if is_line else "red above the threshold, blue below"
    figure.suptitle(f"{name}: {colors}", fontsize=9)
    return figure


def draw_map(cell: Any, heat_map: HeatMap) -> None:
    """Draw the cells of a map, and a ring around the key row; y grows downwards."""
    cell.imshow(cell_colors(heat_map.margins), interpolation="nearest")
    if heat_map.key_cell is not None:
        line, column = heat_map.key_cell
        cell.plot(column, line, "o", fillstyle="none", color="black", markersize=9)


def draw_line(cell: Any, heat_map: HeatMap) -> None:
    """Draw margins over time, the threshold, and a ring around the key row."""
    margins = heat_map.margins[0]
    times = heat_map.grid.low[0] + np.arange(len(margins)) * heat_map.grid.pitch
    is_cell = np.isfinite(margins)
    cell.plot(times[is_cell], margins[is_cell], linewidth=1)
    cell.axhline(0, color="black", linewidth=0.7, linestyle="--")
    cell.set_axis_on()
    cell.tick_params(labelsize=6)
    if heat_map.key_cell is not None:
        at = heat_map.key_cell[1]
        cell.plot(times[at], margins[at], "o", fillstyle="none", color="black", markersize=9)
