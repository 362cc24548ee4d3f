"""Charts of a comparison: dots and lines inside their frames, sorted, with all that is known."""

import pytest

pytest.importorskip("jinja2", reason="pages need jinja2")

from streammiml.tell import charts
from streammiml.tell.comparison_charts import (
    NAMES,
    criteria_section,
    dot_chart,
    log_chart,
    rank_section,
    time_section,
)
from tests.search.test_comparison_table import comparison, result


def dots_of(chart):
    return [shape for shape in chart.shapes if shape.tag == "circle"]


@pytest.mark.parametrize(
    "dots",
    [
        [("a", 0.5, 0.1), ("b", 0.7, 0.0)],
        [("a", 0.0, 0.0)],
        [("a", 123.4, 0.0)],
        [("a", -3.0, 5.0), ("b", 1e-9, 0.0), ("c", 4.0, 0.5)],
        [(str(i), 0.9 + i / 1000, 0.01) for i in range(12)],
    ],
)
def test_dot_chart__stays_inside_and_keeps_proportions(dots):
    chart = dot_chart("x", dots)
    assert [tick.text for tick in chart.y_ticks] == [name for name, _, _ in dots]
    for shape in chart.shapes:
        places = [value for name, value in shape.attributes.items() if "x" in name]
        assert all(NAMES - 0.1 <= x <= charts.WIDTH - charts.RIGHT + 0.1 for x in places)
        heights = [value for name, value in shape.attributes.items() if "y" in name]
        assert all(charts.TOP <= y <= chart.height - charts.BOTTOM for y in heights)
    marks = [(tick.at, float(tick.text)) for tick in chart.x_ticks]
    (x0, low), (x1, high) = marks[0], marks[-1]
    for shape, (_, value, _) in zip(dots_of(chart), dots, strict=True):
        want = x0 + (value - low) / (high - low) * (x1 - x0)
        assert shape.attributes["cx"] == pytest.approx(want, abs=0.2)


def test_criteria_section__puts_the_best_at_the_top_and_marks_ours():
    section = criteria_section(
        comparison(
            {"mimlfast": [0.1, 0.2], "a": [0.1, 0.2], "b": [0.5]},
            more=[result("a", 2, 0.3, average_precision=0.9)],
        )
    )
    by_title = {chart.title: chart for chart in section.charts}
    losses = by_title["ranking loss ↓"]
    assert [tick.text for tick in losses.y_ticks] == ["Ours", "Method A", "Method B"]
    assert [shape.style for shape in dots_of(losses)] == ["dot c1", "dot c0", "dot c0"]
    assert [tick.text for tick in by_title["average precision ↑"].y_ticks] == ["Method A"]
    assert "Method A: 0.2 ± 0.1" in losses.description


def test_rank_section__needs_two_methods_with_all_splits():
    two = comparison({"a": [0.1, 0.2], "b": [0.2, 0.1], "mimlfast": [0.3]}, n_splits=2)
    [chart] = rank_section(two).charts
    assert [tick.text for tick in chart.y_ticks] == ["Method A", "Method B"]
    assert rank_section(comparison({"a": [0.1], "b": []}, n_splits=1)).charts == []


def test_time_section__needs_two_sizes():
    sizes = [result("a", 0, 0.1, n_train=size) for size in (10, 100)]
    [chart] = time_section(comparison({"a": [0.1]}, more=sizes)).charts
    assert [tick.text for tick in chart.x_ticks] == ["10", "100"]
    assert chart.description == "Method A: 2 s for 10, 2 s for 100"
    assert time_section(comparison({"a": [0.1]}, more=sizes[:1])).charts == []


def test_log_chart__places_by_powers_of_ten_and_shows_more_lines_than_colours():
    lines = [(str(i), [(10, 0.1), (100, 1.0), (1000, 10.0)]) for i in range(charts.COLORS + 1)]
    chart = log_chart("x", [*lines, ("none", [])], "bags")
    shapes = [shape for shape in chart.shapes if shape.tag == "polyline"]
    assert [shape.style for shape in shapes[-2:]] == ["line c0 again", "line c1 again"]
    points = [[*map(float, pair.split(","))] for pair in shapes[0].attributes["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert (x1 - x0, y0 - y1) == pytest.approx((x2 - x1, y1 - y2), abs=0.2)
    assert charts.LEFT <= x0 < x2 <= charts.WIDTH - charts.RIGHT
    assert charts.TOP <= y2 < y0 <= charts.HEIGHT - charts.BOTTOM
    assert [tick.text for tick in chart.y_ticks] == ["0.1", "1", "10"]
