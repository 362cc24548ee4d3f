"""Figures side by side, curves, and the labels of a store with figures of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streammiml.measure.registry import METRICS
from streammiml.tell.charts import Chart, line_chart
from streammiml.tell.runs import RunRecord
from streammiml.tell.telling import Told

MOST_LABELS = 20_000
"""Labels of the table, those that most bags carry; a page must stay small."""
FIRST = (
    "hamming_loss",
    "one_error",
    "coverage",
    "ranking_loss",
    "average_precision",
    "key_instance_accuracy",
)
NORMAL_95 = 1.959964
"""Standard errors to each side of a mean that make an interval of 95 %."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of one column."""

    value: float | None
    low: float | None = None
    high: float | None = None
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A run, or another method that it is compared with."""

    name: str
    cells: Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class LabelTable:
    """The labels of a store, and figures of each."""

    title: str
    columns: list[tuple[str, str]]
    """Name and kind: ``text``, ``count`` or ``share``."""
    rows: list[list[Any]]
    n_labels: int
    """Of which the rows are some."""


def learning_curves(told: Sequence[Told]) -> list[Chart]:
    """Charts over steps, of all runs together."""
    wanted = (
        ("Ranking loss of held-out bags", "validation_loss"),
        ("Mean loss of a step", "loss"),
        ("Share of steps that found a wrong order", "share_of_violations"),
    )
    charts = (
        line_chart(title, [(each.name, _points(each.record, key)) for each in told])
        for title, key in wanted
    )
    return [chart for chart in charts if chart is not None]


def _points(record: RunRecord, key: str) -> list[tuple[float, float]]:
    return [(float(e["step"]), float(e[key])) for e in record.history if e.get(key) is not None]


def metric_names(told: Sequence[Told]) -> list[str]:
    """Every figure that some run has, those of the paper first."""
    known = dict.fromkeys(FIRST) | dict.fromkeys(METRICS)
    surveys = [each.seen.survey.figures for each in told if each.seen.survey is not None]
    return [name for name in known if any(isinstance(of.get(name), int | float) for of in surveys)]


def figures(told: Sequence[Told], others: Mapping[str, Mapping[str, float]]) -> list[Column]:
    """Figures of each run with intervals of 95 %, and those of others; the best are marked."""
    columns = []
    for each in told:
        found = each.seen.survey.figures if each.seen.survey is not None else {}
        errors = found.get("standard_errors", {})
        cells = {}
        for name in METRICS:
            value = found.get(name)
            if isinstance(value, int | float):
                # An error of 0 says that all bags are alike, not that the figure is certain.
                around = NORMAL_95 * errors[name] if errors.get(name) else None
                cells[name] = (
                    Cell(value)
                    if around is None
                    else Cell(value, max(0.0, value - around), min(1.0, value + around))
                )
        columns.append(Column(each.name, cells))
    columns += [
        Column(name, {key: Cell(float(value)) for key, value in found.items()})
        for name, found in others.items()
    ]
    return [Column(each.name, _marked(each, columns)) for each in columns]


def _marked(column: Column, columns: Sequence[Column]) -> dict[str, Cell]:
    """Cells of a column, the best of each figure among all columns marked."""
    out = dict(column.cells)
    for name, cell in column.cells.items():
        values = [c.cells[name].value for c in columns if name in c.cells]
        known = [value for value in values if value is not None]
        if len(columns) > 1 and len(known) > 1 and name in METRICS:
            best = max(known) if METRICS[name].better == "higher" else min(known)
            out[name] = replace(cell, is_best=cell.value == best)
    return out


def label_tables(told: Sequence[Told]) -> list[LabelTable]:
    """One table of labels if all runs saw the same bags, else one a run."""
    seen = [each for each in told if each.seen.survey is not None]
    stores = {each.seen.store.fingerprint for each in seen if each.seen.store is not None}
    if len(seen) > 1 and len(stores) == 1:
        return [_compared(seen)]
    return [_label_table(each, alone=len(told) == 1) for each in seen]


def _per_label(each: Told) -> list[dict[str, Any]]:
    assert each.seen.survey is not None, "asked only of runs that saw bags"
    found: list[dict[str, Any]] = each.seen.survey.figures["per_label"]
    return found


def _label_table(each: Told, *, alone: bool) -> LabelTable:
    rows = sorted(_per_label(each), key=lambda row: (-row["support"], row["label"]))
    names = ("support", "predicted", "precision", "recall", "f1")
    return LabelTable(
        "" if alone else each.name,
        [
            ("Label", "text"),
            ("Bags", "count"),
            ("Predicted", "count"),
            ("Precision", "share"),
            ("Recall", "share"),
            ("F1", "share"),
        ],
        [[_name_of(row), *(_short(row[name]) for name in names)] for row in rows[:MOST_LABELS]],
        len(rows),
    )


def _compared(told: Sequence[Told]) -> LabelTable:
    """F1 of each run, label by label."""
    tables = [_per_label(each) for each in told]
    order = sorted(range(len(tables[0])), key=lambda i: (-tables[0][i]["support"], i))
    return LabelTable(
        "",
        [("Label", "text"), ("Bags", "count"), *((f"F1, {each.name}", "share") for each in told)],
        [
            [
                _name_of(tables[0][i]),
                tables[0][i]["support"],
                *(_short(table[i]["f1"]) for table in tables),
            ]
            for i in order[:MOST_LABELS]
        ],
        len(order),
    )


def _name_of(row: Mapping[str, Any]) -> str:
    return str(row.get("name", row["label"]))


def _short(value: float) -> float:
    return value if isinstance(value, int) else round(value, 4)
