"""Sections of the page that hold charts: one function per section.

``TRAINING`` and ``SCORES`` list the functions in the order of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streammiml.measure.probability import BINS
from streammiml.tell.charts import Chart, line_chart, margin_chart, reliability_chart
from streammiml.tell.run_record import RunRecord
from streammiml.tell.run_summary import RunSummary

LOSSES = (
    ("Ranking loss of held-out bags", "validation_loss"),
    ("Mean loss of a step", "loss"),
    ("Share of steps that found a wrong order", "share_of_violations"),
)


@dataclass(frozen=True, slots=True)
class ChartSection:
    """Charts under one heading."""

    id: str
    link: str
    """Text of the link to the section."""
    heading: str
    charts: list[Chart]
    legend: list[str]
    """Names of the colours, in their order."""
    note: str = ""


def learning_curves(runs: Sequence[RunSummary]) -> ChartSection:
    """Draw losses over steps, one chart per kind of loss, with all runs in it."""
    curves = (
        line_chart(title, [(run.name, _points(run.record, key)) for run in runs])
        for title, key in LOSSES
    )
    legend = [run.name for run in runs] if len(runs) > 1 else []
    return ChartSection(
        "curves", "Learning", "Learning", [chart for chart in curves if chart is not None], legend
    )


def _points(record: RunRecord, key: str) -> list[tuple[float, float]]:
    """(step, value) pairs of the history lines that have a value under this key."""
    entries = (entry for entry in record.history if entry.get(key) is not None)
    return [(float(entry["step"]), float(entry[key])) for entry in entries]


def margin_histograms(runs: Sequence[RunSummary]) -> ChartSection:
    """Draw the scores of carried and of other labels against the threshold, one chart per run."""
    charts = []
    for run in runs:
        bars, model = run.scored.margins, run.record.model
        if bars is None or model is None:
            continue
        note = (
            f"{bars.description}. The bars of each kind add up to 1; the outermost bars include "
            "all scores beyond them."
        )
        if model.rule.name != "dummy":
            note += f" This model predicts by the rule {model.rule.name} instead."
        charts.append(margin_chart(run.name if len(runs) > 1 else "", bars, note))
    return ChartSection(
        "margins",
        "Scores",
        "Scores against the threshold",
        charts,
        ["labels that the bag carries", "other labels"],
        "The dummy label is a threshold that was learned together with the labels: labels that "
        "score above it are predicted. Labels that bags carry should be right of the line, other "
        "labels left of it.",
    )


def reliability_pictures(runs: Sequence[RunSummary]) -> ChartSection:
    """Draw how often labels of a probability are carried, one chart per calibrated model."""
    charts = []
    for run in runs:
        model, survey = run.record.model, run.scored.survey
        if model is None or survey is None or survey.reliability is None:
            continue
        figures = survey.figures
        note = (
            f"Expected calibration error {figures['expected_calibration_error']:.4f}, Brier score "
            f"{figures['brier_score']:.4f}, over {int(survey.reliability.pairs.sum()):,} pairs of "
            "a bag and a label."
        )
        title = run.name if len(runs) > 1 else ""
        charts.append(reliability_chart(title, survey.reliability, note))
    return ChartSection(
        "probabilities",
        "Probabilities",
        "Reliability of the probabilities",
        charts,
        [],
        "A point stands for all pairs of a bag and a label whose probability is in one of "
        f"{BINS} bins: to the right, their mean probability; upwards, the share of them where the "
        "bag carries the label. Points of reliable probabilities lie on the diagonal; points of "
        "few pairs scatter.",
    )


SectionMaker = Callable[[Sequence[RunSummary]], ChartSection]
TRAINING: tuple[SectionMaker, ...] = (learning_curves,)
"""Sections before the tables of labels."""
SCORES: tuple[SectionMaker, ...] = (margin_histograms, reliability_pictures)
"""Sections after the tables of labels."""


def chart_sections(
    makers: Sequence[SectionMaker], runs: Sequence[RunSummary]
) -> list[ChartSection]:
    """Make the sections that have a chart."""
    return [section for make in makers if (section := make(runs)).charts]
