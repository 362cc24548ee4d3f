"""Charts: ticks that are round and reach far enough, bars that add up, lines inside their frame."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.measure.full_evaluation import BINS, PER_UNIT, Margins
from streammiml.measure.probability import UNIT, Reliability
from streammiml.tell import charts


@given(st.floats(1e-9, 1e12))
def test_ticks__are_round_even_and_reach_the_highest(most):
    ticks = charts.ticks(most, 4)
    assert ticks[0] == 0
    assert ticks[-1] >= most * (1 - 1e-6)
    assert 2 <= len(ticks) <= 7
    step = ticks[1]
    digits = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert min(abs(digits - factor) for factor in (1, 2, 2.5, 5, 10)) < 1e-3


@given(
    st.lists(
        st.lists(st.floats(0, 1e6), max_size=30).map(lambda ys: list(enumerate(ys, 1))), max_size=4
    )
)
def test_line_chart__lines_stay_inside_and_keep_their_colours(series):
    chart = charts.line_chart("x", [(str(i), points) for i, points in enumerate(series)])
    assert (chart is None) == (not any(series))
    if chart is None:
        return
    lines = [shape for shape in chart.shapes if shape.tag == "polyline"]
    drawn = [i for i, points in enumerate(series) if points]
    assert [line.style for line in lines] == [f"line c{i}" for i in drawn]
    for line in lines:
        for pair in line.attributes["points"].split():
            x, y = map(float, pair.split(","))
            assert charts.LEFT <= x <= charts.WIDTH - charts.RIGHT
            assert charts.TOP - 0.1 <= y <= charts.HEIGHT - charts.BOTTOM


def test_thinned__keeps_first_and_last():
    points = [(float(i), 0.0) for i in range(5000)]
    kept = charts.thinned(points)
    assert len(kept) == charts.MOST_POINTS
    assert (kept[0], kept[-1]) == (points[0], points[-1])


def counts(places):
    return np.bincount(np.asarray(places, np.int64), minlength=BINS)


@given(
    carried=st.lists(st.integers(0, BINS - 1), min_size=1, max_size=50),
    others=st.lists(st.integers(0, BINS - 1), max_size=50),
)
def test_histogram__bars_of_each_kind_add_up_and_none_crosses_the_threshold(carried, others):
    histogram = charts.histogram(Margins(counts(carried), counts(others)))
    assert len(histogram.bars) <= 2 * charts.BARS
    assert histogram.carried_above == np.mean(np.asarray(carried) >= BINS // 2)
    total = sum(bar.carried for bar in histogram.bars)
    right = sum(bar.carried for bar in histogram.bars if bar.x >= histogram.threshold - 0.06)
    assert math.isclose(right / total, histogram.carried_above, abs_tol=0.01)
    if others:
        # One scale for both kinds, each being shares of its own number.
        assert math.isclose(total, sum(bar.others for bar in histogram.bars), rel_tol=0.01)
    assert all(
        b.x + 1e-6 < histogram.threshold + 0.06 or b.x > histogram.threshold - 0.06
        for b in histogram.bars
    )
    assert charts.LEFT <= histogram.threshold <= charts.WIDTH - charts.RIGHT


def test_histogram__tells_the_shares_in_words():
    middle = BINS // 2
    histogram = charts.histogram(
        Margins(counts([middle, middle + PER_UNIT, 3]), counts([middle - 1, 9]))
    )
    assert histogram.description.startswith(
        "66.7% of 3 labels that bags carry score above the dummy label"
    )
    assert histogram.others_above == 0


def test_margin_chart__draws_two_bars_each_and_the_threshold_last():
    histogram = charts.histogram(Margins(counts([BINS // 2, 3]), counts([9])))
    chart = charts.margin_chart("a", histogram, "note")
    *bars, threshold = chart.shapes
    assert len(bars) == 2 * len(histogram.bars)
    for bar in bars:
        top, height = bar.attributes["y"], bar.attributes["height"]
        assert math.isclose(top + height, charts.HEIGHT - charts.BOTTOM)
        assert top >= charts.TOP - 0.01
    assert threshold.attributes["x1"] == histogram.threshold
    assert (chart.description, chart.note) == (histogram.description, "note")


def test_reliability_chart__puts_reliable_points_on_the_diagonal():
    pairs, carried = np.zeros((2, 15), int)
    pairs[[3, 9]], carried[[3, 9]] = 100, (25, 90)
    total = [0] * 15
    total[3], total[9] = 25 * UNIT, 60 * UNIT
    chart = charts.reliability_chart("a", Reliability(pairs, carried, tuple(total)), "note")
    diagonal, line, *dots = chart.shapes
    ends = diagonal.attributes

    def above(dot):
        share = (dot["cx"] - ends["x1"]) / (ends["x2"] - ends["x1"])
        return ends["y1"] + share * (ends["y2"] - ends["y1"]) - dot["cy"]

    assert above(dots[0].attributes) == pytest.approx(0, abs=0.1)
    assert above(dots[1].attributes) > 10
    assert len(line.attributes["points"].split()) == len(dots) == 2
    assert chart.description == (
        "probability 0.250: 25.0% carry the label; probability 0.600: 90.0% carry the label"
    )
