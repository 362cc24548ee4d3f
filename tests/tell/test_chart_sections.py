"""Sections of charts: which charts they hold, and that empty sections are left out."""

from types import SimpleNamespace

import numpy as np

from streammiml.measure.full_evaluation import BINS, Margins
from streammiml.measure.probability import UNIT, Reliability
from streammiml.tell import chart_sections
from streammiml.tell.charts import histogram

HISTORY = [{"step": 10, "loss": 2.0, "validation_loss": None}, {"step": 20, "loss": 1.0}]


def run(name, *, history=(), margins=None, rule="dummy", survey=None):
    """A run, with the attributes that the sections read."""
    model = SimpleNamespace(rule=SimpleNamespace(name=rule))
    return SimpleNamespace(
        name=name,
        record=SimpleNamespace(history=list(history), model=model),
        scored=SimpleNamespace(margins=margins, survey=survey),
    )


def bars():
    counts = np.bincount([BINS // 2], minlength=BINS)
    return histogram(Margins(counts, counts))


def test_learning_curves__leave_out_losses_that_no_run_has():
    section = chart_sections.learning_curves([run("a", history=HISTORY)])
    assert [chart.title for chart in section.charts] == ["Mean loss of a step"]
    assert "2 at step 10, 1 at step 20" in section.charts[0].description
    assert section.legend == []


def test_learning_curves__of_several_runs_name_their_colours():
    section = chart_sections.learning_curves([run("a", history=HISTORY), run("b")])
    assert section.legend == ["a", "b"]


def test_margin_histograms__name_runs_and_rules_where_they_matter():
    (chart,) = chart_sections.margin_histograms([run("a", margins=bars())]).charts
    assert chart.title == ""
    assert chart.note.endswith("beyond them.")
    runs = [run("a", margins=bars(), rule="top-r"), run("b"), run("c", margins=bars())]
    first, second = chart_sections.margin_histograms(runs).charts
    assert (first.title, second.title) == ("a", "c")
    assert first.note.endswith("This model predicts by the rule top-r instead.")


def test_reliability_pictures__show_calibrated_models():
    sums = Reliability(
        np.eye(1, 15, 4, dtype=int)[0] * 10,
        np.eye(1, 15, 4, dtype=int)[0] * 3,
        (0,) * 4 + (3 * UNIT,) + (0,) * 10,
    )
    figures = {"expected_calibration_error": sums.error(), "brier_score": 0.21}
    calibrated = SimpleNamespace(reliability=sums, figures=figures)
    others = SimpleNamespace(reliability=None, figures={})
    section = chart_sections.reliability_pictures(
        [run("a", survey=calibrated), run("b", survey=others)]
    )
    (chart,) = section.charts
    assert chart.title == "a"
    assert chart.description == "probability 0.300: 30.0% carry the label"
    assert chart.note.startswith("Expected calibration error 0.0000, Brier score 0.2100, over 10 p")
    assert chart_sections.reliability_pictures([run("a")]).charts == []


def test_chart_sections__without_charts_are_left_out():
    makers = (*chart_sections.TRAINING, *chart_sections.SCORES)
    assert chart_sections.chart_sections(makers, [run("a")]) == []
    sections = chart_sections.chart_sections(makers, [run("a", history=HISTORY, margins=bars())])
    assert [section.id for section in sections] == ["curves", "margins"]
