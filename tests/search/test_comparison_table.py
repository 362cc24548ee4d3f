"""The table of a comparison: t-tests, marks, ranks, and what it says of missing figures."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.search.cells import CellResult, MethodCell
from streammiml.search.comparison_table import (
    MethodComparison,
    mark,
    mean_seconds,
    paired_p_value,
    short,
    two_sided_t,
    with_spread,
)

METHODS = {"mimlfast": "Ours", "mimlfast-best": "Best", "a": "Method A", "b": "Method B"}


def result(method, split, loss=None, *, n_train=None, reason=None, **figures):
    measured = {} if loss is None else {"hamming_loss": loss, "ranking_loss": loss, **figures}
    return CellResult(
        cell=MethodCell(method, split, n_train),
        figures=measured,
        n_train=n_train or 20,
        n_test=10,
        fit_seconds=None if loss is None else 2.0,
        state="measured" if reason is None else "over the time limit",
        reason=reason,
    )


def comparison(losses, *, more=(), n_splits=4):
    cells = [
        result(name, split, loss)
        for name, values in losses.items()
        for split, loss in enumerate(values)
    ]
    return MethodComparison(METHODS, n_splits, [*cells, *more])


def test_two_sided_t__known_values():
    assert two_sided_t(1.0, 1) == pytest.approx(0.5)
    assert two_sided_t(math.sqrt(2), 2) == pytest.approx(1 - math.sqrt(0.5))
    # Critical values of printed tables, at 95 %.
    for freedom, t in ((1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (29, 2.045)):
        assert two_sided_t(t, freedom) == pytest.approx(0.05, abs=2e-4)


@given(st.floats(0, 50), st.integers(1, 200))
def test_two_sided_t__agrees_with_scipy(t, freedom):
    stats = pytest.importorskip("scipy.stats")
    assert two_sided_t(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), abs=1e-10)
    assert two_sided_t(-t, freedom) == two_sided_t(t, freedom)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=30))
def test_paired_p_value__agrees_with_scipy(pairs):
    stats = pytest.importorskip("scipy.stats")
    ours, theirs = np.array(pairs).T
    differences = (ours - theirs).tolist()
    if np.std(differences) > 1e-6:
        want = stats.ttest_rel(ours, theirs).pvalue
        assert paired_p_value(differences) == pytest.approx(want, abs=1e-9)


def test_paired_p_value__of_differences_without_spread():
    assert paired_p_value([0.0, 1e-17, 0.0]) == 1.0
    assert paired_p_value([0.1, 0.1, 0.1]) == 0.0


def test_mark__says_on_common_splits_who_is_better():
    ours = {0: 0.1, 1: 0.2, 2: 0.3, 7: 9.0}
    theirs = {0: 0.2, 1: 0.31, 2: 0.4, 8: 0.0}
    assert mark(ours, theirs, higher_is_better=False) == "●"
    assert mark(ours, theirs, higher_is_better=True) == "○"
    assert mark(theirs, ours, higher_is_better=False) == "○"
    noisy = {0: 0.0, 1: 0.5, 2: 0.2}
    assert mark(ours, noisy, higher_is_better=False) == ""
    two = {0: 0.2, 1: 0.3}
    assert mark(ours, two, higher_is_better=False) == "", "two splits are too few"


def test_comparison__tests_against_the_mode_of_ours_with_most_splits():
    values = [0.1, 0.2, 0.15, 0.12]
    worse = [value + 0.1 + 0.001 * i for i, value in enumerate(values)]
    tested = comparison({"mimlfast": worse, "mimlfast-best": values, "a": worse})
    assert tested.reference == "mimlfast-best"
    assert [tested.mark(name, "ranking_loss") for name in METHODS] == ["●", "", "●", ""]
    assert comparison({"mimlfast": worse, "mimlfast-best": values[:2]}).reference == "mimlfast"
    alone = comparison({"a": values, "b": worse})
    assert alone.reference is None
    assert "significantly" not in alone.markdown()


def test_comparison__ranks_are_means_and_ties_share_them():
    ranked = comparison({"a": [0.1, 0.2], "b": [0.1, 0.1], "mimlfast": [0.3]}, n_splits=2)
    # Two criteria of the paper; the third method lacks a split.
    assert ranked.mean_ranks() == {"a": (1.5 + 2) / 2, "b": (1.5 + 1) / 2}


def test_comparison__markdown_has_figures_marks_reasons_and_seconds():
    over = "over the time limit of 10min"
    more = [
        result("b", 0, reason=over),
        result("b", 2, reason=over),
        result("b", 0, reason=over, n_train=500),
        result("a", 0, 0.9, n_train=7),
    ]
    text = comparison(
        {"mimlfast": [0.1, 0.2, 0.15, 0.12], "a": [0.2, 0.3, 0.26, 0.22]}, more=more
    ).markdown()
    lines = text.splitlines()
    assert lines[0] == "|  | Ours | Best | Method A | Method B |"
    assert lines[2] == "| hamming loss ↓ | .143±.043 | N/A | .245±.044 ● | N/A |"
    assert "| splits | 4 | 0 | 4 | 0 |" in lines
    assert f"- Method B: N/A in 2 splits (0, 2) and with 500 training bags: {over}" in lines
    assert "| seconds to fit | 2 | N/A | 2 | N/A |" in lines


def test_entry__is_none_where_nothing_was_measured():
    table = comparison({"a": [0.5], "mimlfast": [0.25, 0.75]})
    assert table.entry("a", "ranking_loss") == {"mean": 0.5, "std": None, "splits": 1, "mark": ""}
    assert table.entry("b", "ranking_loss")["mean"] is None
    assert table.entry("mimlfast", "ranking_loss")["std"] == pytest.approx(math.sqrt(0.125))


def test_texts__of_numbers():
    assert (short(0.1234), short(0.00567), short(1.5)) == (".123", ".0057", "1.500")
    assert with_spread({0: 0.005, 4: 0.007}, "●") == ".0060±.0014 ●"
    assert (with_spread({3: 0.25}), with_spread({})) == (".250", "–")
    assert (mean_seconds({0: 1.0, 1: 2.0}), mean_seconds({}), mean_seconds({0: 1e-5})) == (
        "1.5",
        "N/A",
        "0",
    )
