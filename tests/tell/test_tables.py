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
    areas = {"auc": 0.75, "average_precision": 0.66666 if support > 5 else None}
    return {"label": number, "support": support, "predicted": 3, **shares, **areas}


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


def test_labelled_columns__have_the_figures_that_differ_over_bags_with_labels():
    labelled = {"n_bags": 7, "one_error": 0.0, "coverage": 0.5}
    labelled["standard_errors"] = {"one_error": 0.125}
    figures = {"one_error": 0.25, "coverage": 0.5, "n_bags": 9, "macro_auc": 1.0}
    names, (column,) = tables.labelled_columns([run("a", {**figures, "labelled_bags": labelled})])
    assert names == ["one_error"]
    assert column.cells["one_error"] == tables.Cell(0.0, 0.0, pytest.approx(0.245, abs=1e-3))
    assert tables.labelled_columns([run("a", {**figures, "labelled_bags": figures})])[0] == []
    unscored = SimpleNamespace(name="b", scored=SimpleNamespace(survey=None))
    assert tables.labelled_columns([unscored]) == ([], [])


def test_metric_names__begin_with_the_figures_of_the_paper():
    figures = {"macro_f1": 0.5, "ranking_loss": 0.1, "per_label": [], "coverage": None}
    assert tables.metric_names([run("a", figures)]) == ["ranking_loss", "macro_f1"]


def test_label_tables__one_run_lists_labels_by_their_bags():
    rows = [label(0, 5, 0.11111), label(1, 9, 0.2), {**label(2, 9, 0.3), "name": "sea"}]
    (table,) = tables.label_tables([run("a", {"per_label": rows})])
    assert table.title == ""
    assert [row[0] for row in table.rows] == ["1", "sea", "0"]
    assert table.rows[-1] == ["0", 5, 3, 0.5, 0.25, 0.1111, 0.75, None]
    assert table.rows[0][-1] == 0.6667
    assert [name for name, _ in table.columns[-2:]] == ["AUROC", "Average precision"]


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
