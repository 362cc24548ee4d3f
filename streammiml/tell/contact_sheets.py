"""Contact sheets of image rows: typical rows of each sub-concept, and key instances of bags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from streammiml.bags.views import Bags
from streammiml.measure.predict import predict_bags
from streammiml.measure.prediction_folder import atomic_file
from streammiml.model import Model

INCH = 0.8
"""Side of a cell in inches."""
SHEETS = 50
"""Upper limit for the labels that get a sheet: the labels predicted for the most bags."""
EXAMPLES = 8
"""Upper limit for the bags on the sheet of key instances."""
ROWS_SHOWN = 16
"""Upper limit for the rows shown of a bag."""


def draw_sheets(
    summary: Mapping[str, Any], folder: Path, *, model: Model, store: Bags, shape: tuple[int, ...]
) -> int:
    """Draw ``subconcepts-LABEL.png`` for each label and ``key_instances.png``; return the number.

    ``summary`` is what ``explain_store`` returned; a row of the store is an image of ``shape``.
    """
    labels = sorted(summary["labels"], key=lambda label: (-label["n_bags"], label["label"]))
    drawn = [label for label in labels[:SHEETS] if label["n_bags"]]
    for label in drawn:
        sheet = subconcept_sheet(label, store, shape)
        save(sheet, folder / f"subconcepts-{label['label']:04d}.png")
    examples = examples_of(drawn)
    if examples:
        names = [name_of(label) for label in summary["labels"]]
        save(key_sheet(examples, names, model, store, shape), folder / "key_instances.png")
    return len(drawn) + bool(examples)


def subconcept_sheet(label: Mapping[str, Any], store: Bags, shape: tuple[int, ...]) -> Figure:
    """Draw one line of key instances per sub-concept, the most typical first."""
    concepts = sorted(label["subconcepts"], key=lambda sub: (-sub["n_bags"], sub["subconcept"]))
    width = max(len(concept["typical"]) for concept in concepts)
    figure, cells = grid(len(concepts), width)
    for line, concept in zip(cells, concepts, strict=True):
        for cell, entry in zip(line, concept["typical"], strict=False):
            show(cell, row_of(store, entry["bag"], entry["row"]), shape)
        title = f"{concept['subconcept']}: {concept['share']:.0%} of {label['n_bags']:,} bags"
        line[0].set_title(title, loc="left", fontsize=7)
    figure.suptitle(name_of(label), fontsize=9)
    return figure


def examples_of(labels: list[Any]) -> list[int]:
    """Choose the most typical bag of each label, in the order of the labels, each bag once."""
    bags = (label["subconcepts"][0]["typical"][0]["bag"] for label in labels)
    return list(dict.fromkeys(bags))[:EXAMPLES]


def key_sheet(
    bags: list[int], names: list[str], model: Model, store: Bags, shape: tuple[int, ...]
) -> Figure:
    """Draw one line of rows per bag; key instances have a frame and the names of their labels."""
    block = store.read_bags(bags, kept=False)
    predictions = predict_bags(model, block)
    lines = [block.rows_of(i)[:ROWS_SHOWN] for i in range(len(bags))]
    figure, cells = grid(len(lines), max(map(len, lines)))
    for i, (bag, rows) in enumerate(zip(bags, lines, strict=True)):
        labels, keys = predictions.labels[i].tolist(), predictions.key_instances[i].tolist()
        names_by_row: dict[int, list[str]] = {}
        for label, key in zip(labels, keys, strict=True):
            names_by_row.setdefault(key, []).append(names[label])
        for number, row in enumerate(rows):
            show(cells[i, number], row, shape)
            if number in names_by_row:
                frame(cells[i, number], ", ".join(names_by_row[number]))
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
    """Draw a red frame around a cell, with a title."""
    cell.set_title(title, fontsize=7)
    cell.set_axis_on()
    cell.set(xticks=[], yticks=[])
    for side in cell.spines.values():
        side.set(color="tab:red", linewidth=2)


def grid(n_lines: int, n_columns: int, inches: float = INCH) -> tuple[Figure, Any]:
    """Make a figure of square cells without axes; return the figure and (lines, columns) cells."""
    width = max(inches * n_columns, 3 * INCH)
    figure = Figure(figsize=(width, inches * n_lines * 1.3 + 0.4), dpi=100)
    FigureCanvasAgg(figure)
    cells = figure.subplots(n_lines, n_columns, squeeze=False)
    for cell in cells.flat:
        cell.set_axis_off()
    return figure, cells


def show(cell: Any, row: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Draw a row as an image: grey for one channel, else in colour.

    Colours are stretched to the range between the lowest and the highest value of the row.
    """
    picture = np.asarray(row, np.float64).reshape(shape)
    if len(shape) == 3:
        low, high = picture.min(), picture.max()
        picture = (picture - low) / max(high - low, 1e-12)
    cell.imshow(picture, cmap="gray_r" if len(shape) == 2 else None, interpolation="nearest")


def row_of(store: Bags, bag: int, row: int) -> NDArray[Any]:
    """Read one row of a store."""
    values: NDArray[Any] = store.read(bag, bag + 1, kept=False).rows_of(0)[row]
    return values


def name_of(label: Mapping[str, Any]) -> str:
    """Name of a label, or its number if labels have no names."""
    return str(label["label"] if label["name"] is None else label["name"])


def save(figure: Figure, path: Path) -> None:
    """Write a PNG without matplotlib's version, so that every version writes the same bytes."""
    with atomic_file(path) as file:
        figure.savefig(file, format="png", metadata={"Software": None})
