"""``streammiml evaluate``: figures of a model on the bags of a store."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from streammiml.measure.evaluate import evaluate as evaluate_model
from streammiml.measure.registry import METRICS
from streammiml.measure.scoring import DEFAULTS, ScoreOptions
from streammiml.verbs.options import FLAT, AsJson, ModelPath, StorePath
from streammiml.verbs.progress import ScoreDisplay

# Number of labels in the readable table; --json has all of them.
LABELS_SHOWN = 30
NAME_WIDTH = 24
_ARROWS = {"higher": "↑", "lower": "↓"}


def evaluate(
    model: ModelPath,
    store: StorePath,
    /,
    *,
    metric: Annotated[list[str] | None, Parameter(negative="")] = None,
    json: AsJson = False,
    scoring: Annotated[ScoreOptions, FLAT] = DEFAULTS,
) -> None:
    """Score every bag of a store and compare the predictions with its labels.

    Parameters
    ----------
    metric
        Compute only this metric; may be given several times. K in precision_at_K and
        ndcg_at_K is any number.
    """
    with ScoreDisplay() as display:
        figures = evaluate_model(model, store, metrics=metric, **asdict(scoring), watch=display)
    if json:
        print(json_format.dumps(figures))
        return
    for line in readable(figures):
        print(line)


def readable(figures: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a table of figures, then of a table of labels."""
    errors = figures["standard_errors"]
    for name, value in figures.items():
        if name in ("standard_errors", "per_label"):
            continue
        if isinstance(value, int):
            yield f"{name.replace('_', ' '):<{NAME_WIDTH}} {value:,}"
            continue
        number = "undefined" if value is None else f"{value:.4f}"
        spread = f" ± {errors[name]:.4f}" if name in errors else ""
        arrow = _ARROWS[METRICS[name].better] if name in METRICS else ""
        yield f"{name:<{NAME_WIDTH}} {number}{spread or ' ' * 9} {arrow}".rstrip()
    table = figures.get("per_label")
    if table is None:
        return
    shown = [(str(row.get("name", row["label"])), row) for row in table[:LABELS_SHOWN]]
    width = max([NAME_WIDTH, *(len(name) for name, _ in shown)])
    yield ""
    yield f"{'label':<{width}} {'support':>9} {'predicted':>9} precision  recall      f1"
    for name, row in shown:
        yield (
            f"{name:<{width}} {row['support']:>9,} {row['predicted']:>9,} "
            f"{row['precision']:>9.4f} {row['recall']:>7.4f} {row['f1']:>7.4f}"
        )
    if len(table) > LABELS_SHOWN:
        yield f"… {len(table):,} labels in all; --json has every one"
