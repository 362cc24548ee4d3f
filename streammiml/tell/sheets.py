"""Contact sheets of rows that are images: what falls into each sub-concept, and key instances."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from streammiml.bags.views import Bags
from streammiml.measure.folder import written_whole
from streammiml.measure.predict import predict_bags
from streammiml.model import Model

INCH = 0.8
SHEETS = 50
"""Labels that get a sheet, those of the most bags."""
EXAMPLES = 8
"""Bags on the sheet of key instances."""
ROWS_SHOWN = 16


def draw_sheets(
    said: Mapping[str, Any], folder: Path, *, model: Model, store: Bags, shape: tuple[int, ...]
) -> int:
    """Draw ``subconcepts-LABEL.png`` of each label and ``key_instances.png``; how many there are.

    ``said`` is what ``explain_store`` returned; a row of the store is an image of ``shape``.
    """
    labels = sorted(said["labels"], key=lambda one: (-one["n_bags"], one["label"]))
    drawn = [label for label in labels[:SHEETS] if label["n_bags"]]
    for label in drawn:
        sheet = subconcept_sheet(label, store, shape)
        save(sheet, folder / f"subconcepts-{label['label']:04d}.png")
    examples = examples_of(drawn)
    if examples:
        names = [name_of(label) for label in said["labels"]]
        save(key_sheet(examples, names, model, store, shape), folder / "key_instances.png")
    return len(drawn) + bool(examples)


def subconcept_sheet(label: Mapping[str, Any], store: Bags, shape: tuple[int, ...]) -> Figure:
    """A line of key rows for each sub-concept that holds bags, the most typical first."""
    concepts = sorted(label["subconcepts"], key=lambda one: (-one["n_bags"], one["subconcept"]))
    width = max(len(each["typical"]) for each in concepts)
    figure, cells = grid(len(concepts), width)
    for line, concept in zip(cells, concepts, strict=True):
        for cell, entry in zip(line, concept["typical"], strict=False):
            show(cell, row_of(store, entry["bag"], entry["row"]), shape)
        title = f"{concept['subconcept']}: {concept['share']:.0%} of {label['n_bags']:,} bags"
        line[0].set_title(title, loc="left", fontsize=7)
    figure.suptitle(name_of(label), fontsize=9)
    return figure


def examples_of(labels: list[Any]) -> list[int]:
    """The most typical bag of each label, those of the most frequent labels first."""
    found = (of["subconcepts"][0]["typical"][0]["bag"] for of in labels)
    return list(dict.fromkeys(found))[:EXAMPLES]


def key_sheet(
    bags: list[int], names: list[str], model: Model, store: Bags, shape: tuple[int, ...]
) -> Figure:
    """A line of rows for each bag; a key row has a frame and the names of its labels."""
    block = store.read_bags(bags)
    found = predict_bags(model, block)
    lines = [block.rows_of(i)[:ROWS_SHOWN] for i in range(len(bags))]
    figure, cells = grid(len(lines), max(map(len, lines)))
    for i, (bag, rows) in enumerate(zip(bags, lines, strict=True)):
        said: dict[int, list[str]] = {}
        for label, key in zip(
            found.labels[i].tolist(), found.key_instances[i].tolist(), strict=True
        ):
            said.setdefault(key, []).append(names[label])
        for number, row in enumerate(rows):
            show(cells[i, number], row, shape)
            if number in said:
                frame(cells[i, number], ", ".join(said[number]))
        cells[i, 0].annotate(
            store.bag_ids(bag, bag + 1)[0],
            (-0.1, 0.5),
            xycoords="axes fraction",
            fontsize=7,
            ha="right",
            va="center",
        )
    return figure


def frame(cell: Any, title: str) -> None:
    """Mark a cell."""
    cell.set_title(title, fontsize=7)
    cell.set_axis_on()
    cell.set(xticks=[], yticks=[])
    for side in cell.spines.values():
        side.set(color="tab:red", linewidth=2)


def grid(n_lines: int, n_columns: int) -> tuple[Figure, Any]:
    """A figure of square cells without axes, and the cells (lines, columns)."""
    figure = Figure(figsize=(INCH * max(n_columns, 3), INCH * n_lines * 1.3 + 0.4), dpi=100)
    FigureCanvasAgg(figure)
    cells = figure.subplots(n_lines, n_columns, squeeze=False)
    for cell in cells.flat:
        cell.set_axis_off()
    return figure, cells


def show(cell: Any, row: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Draw a row; one channel in grey, three in colour between its lowest and highest value."""
    picture = np.asarray(row, np.float64).reshape(shape)
    if len(shape) == 3:
        low, high = picture.min(), picture.max()
        picture = (picture - low) / max(high - low, 1e-12)
    cell.imshow(picture, cmap="gray_r" if len(shape) == 2 else None, interpolation="nearest")


def row_of(store: Bags, bag: int, row: int) -> NDArray[Any]:
    """One row of a store."""
    found: NDArray[Any] = store.read(bag, bag + 1).rows_of(0)[row]
    return found


def name_of(label: Mapping[str, Any]) -> str:
    """A label's name, or its number."""
    return str(label["label"] if label["name"] is None else label["name"])


def save(figure: Figure, path: Path) -> None:
    """Write a PNG that says nothing of when and by what it was made."""
    with written_whole(path) as file:
        figure.savefig(file, format="png", metadata={"Software": None})
