"""Tables of a page: figures of all runs side by side, and figures of each label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streammiml.measure.registry import METRICS, PAPER_FIGURES
from streammiml.tell.run_summary import RunSummary

MOST_LABELS = 20_000
"""Upper limit for the rows of a label table, so that a page stays small."""
NORMAL_95 = 1.959964
"""Half the width of a 95 % interval, in standard errors."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of one run: its value and its interval."""

    value: float | None
    low: float | None = None
    high: float | None = None
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """The figures of a run, or of another method that it is compared with."""

    name: str
    cells: Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class LabelTable:
    """The labels of a store, with figures of each."""

    title: str
    columns: list[tuple[str, str]]
    """Name and kind of each column: ``text``, ``count`` or ``share``."""
    rows: list[list[Any]]
    """The labels that most bags carry, at most ``MOST_LABELS`` of them; None is undefined."""
    n_labels: int
    """Number of all labels."""


def metric_names(runs: Sequence[RunSummary]) -> list[str]:
    """Names of the figures that at least one run has; figures of the paper come first."""
    known = dict.fromkeys(PAPER_FIGURES) | dict.fromkeys(METRICS)
    measured = [run.scored.survey.figures for run in runs if run.scored.survey is not None]
    return [
        name
        for name in known
        if any(isinstance(figures.get(name), int | float) for figures in measured)
    ]


def figure_columns(
    runs: Sequence[RunSummary], others: Mapping[str, Mapping[str, float]]
) -> list[FigureColumn]:
    """Figures of each run with intervals of 95 %, and of other methods; the best are marked."""
    columns = []
    for run in runs:
        figures = run.scored.survey.figures if run.scored.survey is not None else {}
        columns.append(FigureColumn(run.name, _cells(figures)))
    columns += [
        FigureColumn(name, {key: Cell(float(value)) for key, value in figures.items()})
        for name, figures in others.items()
    ]
    return [FigureColumn(column.name, _marked(column, columns)) for column in columns]


def labelled_columns(runs: Sequence[RunSummary]) -> tuple[list[str], list[FigureColumn]]:
    """Figures of each run over the bags with labels; names of those that differ from all bags."""
    scored = [run for run in runs if run.scored.survey is not None]
    columns, differing = [], set()
    for run in scored:
        assert run.scored.survey is not None, "chosen above"
        figures = run.scored.survey.figures
        labelled = figures.get("labelled_bags", {})
        columns.append(FigureColumn(run.name, _cells(labelled)))
        differing |= {name for name, value in labelled.items() if value != figures.get(name)}
    names = [name for name in metric_names(runs) if name in differing]
    return names, [FigureColumn(column.name, _marked(column, columns)) for column in columns]


def _cells(figures: Mapping[str, Any]) -> dict[str, Cell]:
    """Figures with intervals of 95 %, by name."""
    errors = figures.get("standard_errors", {})
    cells = {}
    for name in METRICS:
        value = figures.get(name)
        if isinstance(value, int | float):
            # A standard error of 0 means that all bags are alike, not that the figure is exact.
            half = NORMAL_95 * errors[name] if errors.get(name) else None
            cells[name] = (
                Cell(value)
                if half is None
                else Cell(value, max(0.0, value - half), min(1.0, value + half))
            )
    return cells


def _marked(column: FigureColumn, columns: Sequence[FigureColumn]) -> dict[str, Cell]:
    """Cells of a column; a cell with the best value of all columns is marked."""
    out = dict(column.cells)
    for name, cell in column.cells.items():
        values = [compared.cells[name].value for compared in columns if name in compared.cells]
        known = [value for value in values if value is not None]
        if len(columns) > 1 and len(known) > 1 and name in METRICS:
            best = max(known) if METRICS[name].better == "higher" else min(known)
            out[name] = replace(cell, is_best=cell.value == best)
    return out


def label_tables(runs: Sequence[RunSummary]) -> list[LabelTable]:
    """Make one table of labels if all runs scored the same bags, else one per run."""
    scored = [run for run in runs if run.scored.survey is not None]
    stores = {run.scored.store.fingerprint for run in scored if run.scored.store is not None}
    if len(scored) > 1 and len(stores) == 1:
        return [_compared(scored)]
    return [_label_table(run, alone=len(runs) == 1) for run in scored]


def _per_label(run: RunSummary) -> list[dict[str, Any]]:
    assert run.scored.survey is not None, "called only for runs that scored bags"
    rows: list[dict[str, Any]] = run.scored.survey.figures["per_label"]
    return rows


def _label_table(run: RunSummary, *, alone: bool) -> LabelTable:
    """Figures of each label for one run; the table has a title unless the run is alone."""
    rows = sorted(_per_label(run), key=lambda row: (-row["support"], row["label"]))
    names = ("support", "predicted", "precision", "recall", "f1", "auc", "average_precision")
    return LabelTable(
        "" if alone else run.name,
        [
            ("Label", "text"),
            ("Bags", "count"),
            ("Predicted", "count"),
            ("Precision", "share"),
            ("Recall", "share"),
            ("F1", "share"),
            ("AUROC", "share"),
            ("Average precision", "share"),
        ],
        [
            [_label_name(row), *(_rounded(row[name]) for name in names)]
            for row in rows[:MOST_LABELS]
        ],
        len(rows),
    )


def _compared(runs: Sequence[RunSummary]) -> LabelTable:
    """F1 of each label, one column per run."""
    tables = [_per_label(run) for run in runs]
    order = sorted(range(len(tables[0])), key=lambda i: (-tables[0][i]["support"], i))
    return LabelTable(
        "",
        [("Label", "text"), ("Bags", "count"), *((f"F1, {run.name}", "share") for run in runs)],
        [
            [
                _label_name(tables[0][i]),
                tables[0][i]["support"],
                *(_rounded(table[i]["f1"]) for table in tables),
            ]
            for i in order[:MOST_LABELS]
        ],
        len(order),
    )


def _label_name(row: Mapping[str, Any]) -> str:
    return str(row.get("name", row["label"]))


def _rounded(value: float | None) -> float | None:
    return round(value, 4) if isinstance(value, float) else value
