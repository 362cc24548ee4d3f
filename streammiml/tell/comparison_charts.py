"""Charts of a comparison: figures of all methods as dots, and seconds against bags as lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev

from streammiml.measure.registry import METRICS, spoken
from streammiml.search.comparison_table import MethodComparison, arrow
from streammiml.tell.chart_sections import ChartSection
from streammiml.tell.charts import (
    BOTTOM,
    COLORS,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Shape,
    Tick,
    compact,
    ticks,
)

ROW = 18
"""Height of the line of one method."""
NAMES = 150
"""Width of the margin for names of methods."""

Dot = tuple[str, float, float]
"""Name, value and spread."""


def criteria_section(comparison: MethodComparison) -> ChartSection:
    """One chart for each criterion; methods are sorted by their means, the best at the top."""
    charts = []
    for figure in comparison.criteria:
        sign = -1 if METRICS[figure].better == "higher" else 1
        dots = []
        for method, title in comparison.methods.items():
            values = list(comparison.values(method, figure).values())
            if values:
                spread = stdev(values) if len(values) > 1 else 0.0
                dots.append((title, fmean(values), spread))
        dots.sort(key=lambda dot: sign * dot[1])
        charts.append(dot_chart(f"{spoken(figure)} {arrow(figure)}", dots, _ours(comparison)))
    return ChartSection(
        "criteria",
        "Criteria",
        "Criteria",
        charts,
        [],
        "Dots are means over splits, lines are one standard deviation to both sides. The best "
        "method of each chart is at the top.",
    )


def rank_section(comparison: MethodComparison) -> ChartSection:
    """A chart of mean ranks; no chart if fewer than two methods have figures of all splits."""
    ranks = sorted(comparison.mean_ranks().items(), key=lambda pair: pair[1])
    dots = [(comparison.methods[method], rank, 0.0) for method, rank in ranks]
    charts = [dot_chart("Mean rank", dots, _ours(comparison))] if len(dots) > 1 else []
    return ChartSection(
        "ranks",
        "Ranks",
        "Ranks",
        charts,
        [],
        "Mean of the ranks over splits and the criteria of the paper; 1 is the best rank. Methods "
        "that lack figures of a split are left out. Splits share bags, so their ranks are not "
        "independent, and there is no critical difference.",
    )


def time_section(comparison: MethodComparison) -> ChartSection:
    """A chart of seconds to train against training bags; no chart if all cells have as many."""
    points: dict[str, dict[int, float]] = {method: {} for method in comparison.methods}
    for result in comparison.cells:
        if result.cell.n_train is not None and result.fit_seconds is not None:
            points[result.cell.method][result.n_train] = result.fit_seconds
    series = [
        (title, sorted(points[method].items())) for method, title in comparison.methods.items()
    ]
    sizes = {n_bags for by_size in points.values() for n_bags in by_size}
    charts = [log_chart("Seconds to train", series, "training bags")] if len(sizes) > 1 else []
    return ChartSection(
        "times",
        "Time",
        "Time by number of bags",
        charts,
        list(comparison.methods.values()),
        "Default settings, without a search. Both axes are logarithmic.",
    )


def _ours(comparison: MethodComparison) -> set[str]:
    reference = comparison.reference
    return set() if reference is None else {comparison.methods[reference]}


def dot_chart(title: str, dots: Sequence[Dot], highlighted: Iterable[str] = ()) -> Chart:
    """Draw each dot on a line of its own, from the top down, with its spread to both sides."""
    low = min(value - spread for _, value, spread in dots)
    high = max(value + spread for _, value, spread in dots)
    step = ticks((high - low) or abs(high) or 1.0, 3)[1]
    first, last = math.floor(low / step), math.ceil(high / step)
    last = max(last, first + 1)
    height = TOP + ROW * len(dots) + BOTTOM

    def place(value: float) -> float:
        across = (value / step - first) / (last - first)
        return round(NAMES + across * (WIDTH - NAMES - RIGHT), 1)

    shapes, names = [], []
    for number, (name, value, spread) in enumerate(dots):
        color = "c1" if name in highlighted else "c0"
        y = TOP + ROW * number + ROW / 2
        ends: Mapping[str, float] = {
            "x1": place(value - spread),
            "x2": place(value + spread),
            "y1": y,
            "y2": y,
        }
        shapes.append(Shape("line", f"spread {color}", ends))
        shapes.append(Shape("circle", f"dot {color}", {"cx": place(value), "cy": y, "r": 4}))
        names.append(Tick(y, name))
    marks = [step * number for number in range(first, last + 1)]
    return Chart(
        title,
        "; ".join(f"{name}: {value:.4g} ± {spread:.2g}" for name, value, spread in dots),
        "",
        [Tick(place(mark), f"{mark:.6g}") for mark in marks],
        names,
        shapes,
        left=NAMES,
        height=height,
    )


def log_chart(
    title: str, series: Sequence[tuple[str, Sequence[tuple[float, float]]]], x_name: str
) -> Chart:
    """Draw one line for each name over logarithmic axes; all values are above 0."""
    xs = [x for _, points in series for x, _ in points]
    ys = [y for _, points in series for _, y in points]
    x_low, x_high = math.log10(min(xs)), math.log10(max(xs))
    y_low, y_high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    y_high = max(y_high, y_low + 1)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x_low) / ((x_high - x_low) or 1)
        up = (math.log10(y) - y_low) / (y_high - y_low)
        return (
            round(LEFT + across * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1),
        )

    shapes = []
    for number, (_, points) in enumerate(series):
        style = f"c{number % COLORS}" + (" again" if number >= COLORS else "")
        places = [place(x, y) for x, y in points]
        corners = " ".join(f"{x},{y}" for x, y in places)
        shapes.append(Shape("polyline", f"line {style}", {"points": corners}))
        shapes += [Shape("circle", f"dot {style}", {"cx": x, "cy": y, "r": 3}) for x, y in places]
    return Chart(
        title,
        "; ".join(
            f"{name}: " + ", ".join(f"{y:.3g} s for {x:,.0f}" for x, y in points)
            for name, points in series
            if points
        ),
        x_name,
        [Tick(place(x, ys[0])[0], compact(x)) for x in sorted(set(xs))],
        [
            Tick(place(xs[0], 10.0**power)[1], f"{10.0**power:g}")
            for power in range(y_low, y_high + 1)
        ],
        shapes,
    )
