"""Tables of a page: intervals, the best figure of each row, and labels by their number of bags."""

from types import SimpleNamespace

import pytest

from streammiml.tell import tables


def run(name, figures, *, fingerprint="f"):
    """A run with these figures, as far as the tables look at one."""
    survey = SimpleNamespace(figures=figures)
    return SimpleNamespace(
        name=name,
        scored=SimpleNamespace(survey=survey, store=SimpleNamespace(fingerprint=fingerprint)),
    )


def label(number, support, f1):
    shares = {"precision": 0.5, "recall": 0.25, "f1": f1}
    return {"label": number, "support": support, "predicted": 3, **shares}


def test_figure_columns__have_intervals_within_0_and_1_and_mark_the_best():
    first = run("a", {"ranking_loss": 0.01, "standard_errors": {"ranking_loss": 0.01}})
    second = run("b", {"ranking_loss": 0.03, "standard_errors": {"ranking_loss": 0.0}})
    columns = tables.figure_columns([first, second], {"other": {"ranking_loss": 0.02}})
    assert [column.name for column in columns] == ["a", "b", "other"]
    cells = [column.cells["ranking_loss"] for column in columns]
    assert cells[0].low == 0.0
    assert cells[0].high == pytest.approx(0.0296, abs=1e-4)
    # A standard error of 0 gives no interval.
    assert (cells[1].low, cells[1].high) == (None, None)
    assert [cell.is_best for cell in cells] == [True, False, False]


def test_metric_names__begin_with_the_figures_of_the_paper():
    figures = {"macro_f1": 0.5, "ranking_loss": 0.1, "per_label": [], "coverage": None}
    assert tables.metric_names([run("a", figures)]) == ["ranking_loss", "macro_f1"]


def test_label_tables__one_run_lists_labels_by_their_bags():
    rows = [label(0, 5, 0.11111), label(1, 9, 0.2), {**label(2, 9, 0.3), "name": "sea"}]
    (table,) = tables.label_tables([run("a", {"per_label": rows})])
    assert table.title == ""
    assert [row[0] for row in table.rows] == ["1", "sea", "0"]
    assert table.rows[-1] == ["0", 5, 3, 0.5, 0.25, 0.1111]


def test_label_tables__runs_on_the_same_bags_are_compared_and_others_are_not():
    first = run("a", {"per_label": [label(0, 5, 0.1)]})
    second = run("b", {"per_label": [label(0, 5, 0.2)]})
    (table,) = tables.label_tables([first, second])
    assert table.rows == [["0", 5, 0.1, 0.2]]
    elsewhere = run("c", {"per_label": [label(0, 4, 0.2)]}, fingerprint="g")
    assert [table.title for table in tables.label_tables([first, elsewhere])] == ["a", "c"]


def test_label_tables__keep_the_labels_of_the_most_bags(monkeypatch):
    monkeypatch.setattr(tables, "MOST_LABELS", 2)
    rows = [label(number, number, 0.5) for number in range(5)]
    (table,) = tables.label_tables([run("a", {"per_label": rows})])
    assert [row[0] for row in table.rows] == ["4", "3"]
    assert table.n_labels == 5
