"""``streammiml evaluate``: figures of a model on the bags of a store."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from streammiml.measure.dry_run import dry_evaluate
from streammiml.measure.evaluate import evaluate as evaluate_model
from streammiml.measure.registry import METRICS
from streammiml.measure.score_display import ScoreDisplay
from streammiml.measure.scoring import DEFAULTS, ScoreOptions
from streammiml.verbs.options import FLAT, AsJson, Flag, ModelPath, StorePath
from streammiml.verbs.score_dry_run import print_dry_run

# Number of labels in the readable table; --json has all of them.
LABELS_SHOWN = 30
NAME_WIDTH = 24
_NOT_FIGURES = ("standard_errors", "bounds", "labelled_bags", "per_label")
_ARROWS = {"higher": "↑", "lower": "↓"}


def evaluate(
    model: ModelPath,
    store: StorePath,
    /,
    *,
    metric: Annotated[list[str] | None, Parameter(negative="")] = None,
    dry_run: Flag = False,
    json: AsJson = False,
    scoring: Annotated[ScoreOptions, FLAT] = DEFAULTS,
) -> None:
    """Score every bag of a store and compare the predictions with its labels.

    Parameters
    ----------
    metric
        Compute only this metric; may be given several times. K in precision_at_K, ndcg_at_K,
        hit_at_K and gap_at_K is any number. average_precision is per bag: a mean over bags, of the
        order of labels in a bag. macro_average_precision and macro_auc are per label: means over
        labels, of the order of bags. These two, the micro ones and gap_at_K are exact up to two
        million different scores (gap_at_K: half a million); with more, they come with bounds, so
        that 256 MiB are enough.
    dry_run
        Read and score bags for a second; print the number of tasks, and about how much memory,
        reading and time the whole store needs. Nothing is written.
    """
    if dry_run:
        planned = dry_evaluate(model, store, metrics=metric, options=scoring)
        print_dry_run(planned, json=json)
        return
    with ScoreDisplay() as display:
        figures = evaluate_model(model, store, metrics=metric, **asdict(scoring), watch=display)
    if json:
        print(json_format.dumps(figures))
        return
    for line in readable(figures):
        print(line)


def readable(figures: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a table of figures, of those that differ over labelled bags, and of labels."""
    yield from _figure_lines(figures)
    labelled = figures.get("labelled_bags", {})
    others = {
        name: value
        for name, value in labelled.items()
        if name in METRICS and value != figures[name]
    }
    if others:
        yield ""
        yield f"Over the {labelled['n_bags']:,} bags with labels:"
        yield from _figure_lines({**others, "standard_errors": labelled["standard_errors"]})
    if "per_label" in figures:
        yield ""
        yield from _label_lines(figures["per_label"])


def _figure_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    errors, bounds = figures["standard_errors"], figures.get("bounds", {})
    for name, value in figures.items():
        if name in _NOT_FIGURES:
            continue
        if isinstance(value, int):
            yield f"{name.replace('_', ' '):<{NAME_WIDTH}} {value:,}"
            continue
        number = "undefined" if value is None else f"{value:.4f}"
        spread = f" ± {errors[name]:.4f}" if name in errors else ""
        arrow = _ARROWS[METRICS[name].better] if name in METRICS else ""
        line = f"{name:<{NAME_WIDTH}} {number}{spread or ' ' * 9} {arrow}"
        if name in bounds:
            line += " between {:.6f} and {:.6f}".format(*bounds[name])
        yield line.rstrip()


def _label_lines(table: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    shown = [(str(row.get("name", row["label"])), row) for row in table[:LABELS_SHOWN]]
    width = max([NAME_WIDTH, *(len(name) for name, _ in shown)])
    head = f"{'label':<{width}} {'support':>9} {'predicted':>9} precision  recall      f1"
    yield f"{head}     auc average_precision"
    for name, row in shown:
        yield (
            f"{name:<{width}} {row['support']:>9,} {row['predicted']:>9,} "
            f"{row['precision']:>9.4f} {row['recall']:>7.4f} {row['f1']:>7.4f} "
            f"{_number(row['auc']):>7} {_number(row['average_precision']):>17}"
        )
    if len(table) > LABELS_SHOWN:
        yield f"… {len(table):,} labels in all; --json has every one"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
