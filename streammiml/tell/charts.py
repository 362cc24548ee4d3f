"""Charts as lists of SVG shapes, with ticks on their axes.

The page template draws every chart in the same way, so a new kind of chart needs no change there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streammiml.measure.full_evaluation import BINS, PER_UNIT, Margins
from streammiml.measure.probability import UNIT, Reliability

I64 = NDArray[np.int64]

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 10, 34
MOST_POINTS = 400
"""Upper limit for the points of one line."""
COLORS = 6
"""Number of colours of the style sheet; runs beyond it repeat them."""
BARS = 48
"""Approximate upper limit for the bars of a histogram."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: its coordinate and its text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Shape:
    """An SVG element of a chart."""

    tag: str
    """Name of the element: ``polyline``, ``circle``, ``rect`` or ``line``."""
    style: str
    """Classes of the style sheet."""
    attributes: Mapping[str, str | float]
    """Coordinates, by the names that SVG gives them."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: axes, and the shapes between them."""

    title: str
    description: str
    """The chart in words, for screen readers."""
    x_name: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    """Empty for a chart without a vertical axis."""
    shapes: list[Shape]
    """In drawing order: later shapes cover earlier ones."""
    note: str = ""
    """Text below the chart."""
    left: int = LEFT
    """Width of the margin that holds the text of the vertical axis."""
    height: int = HEIGHT


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar for each kind of (bag, label) pair: carried labels and other labels."""

    x: float
    width: float
    carried: float
    """Height of the bar of labels that bags carry."""
    others: float
    """Height of the bar of other labels."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Distribution of margins: scores minus the dummy label's, of carried and of other labels."""

    description: str
    """The histogram in words, for screen readers."""
    bars: list[Bar]
    x_ticks: list[Tick]
    threshold: float
    """Horizontal coordinate of margin 0."""
    carried_above: float
    """Share of the carried labels above the threshold."""
    others_above: float
    """Share of the other labels above the threshold."""
    n_carried: int
    n_others: int


def line_chart(
    title: str, series: Sequence[tuple[str, Sequence[tuple[float, float]]]]
) -> Chart | None:
    """Draw one line per run over its steps; None if no run has points.

    ``series`` has the name of each run and its (step, value) pairs; values are at least 0. A run
    has the same colour in every chart.
    """
    drawn = [(i, name, thinned(points)) for i, (name, points) in enumerate(series) if points]
    if not drawn:
        return None
    x_most = max(points[-1][0] for *_, points in drawn)
    y_most = max(max(y for _, y in points) for *_, points in drawn)
    x_values, y_values = ticks(x_most, 4), ticks(y_most, 4)
    x_top, y_top = max(x_most, x_values[-1]), max(y_most, y_values[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = x / (x_top or 1), y / (y_top or 1)
        return (
            round(LEFT + across * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1),
        )

    shapes = []
    for run, _, points in drawn:
        places, color = [place(x, y) for x, y in points], f"c{run % COLORS}"
        corners = " ".join(f"{x},{y}" for x, y in places)
        shapes.append(Shape("polyline", f"line {color}", {"points": corners}))
        last_x, last_y = places[-1]
        shapes.append(Shape("circle", f"dot {color}", {"cx": last_x, "cy": last_y, "r": 3}))
    description = "; ".join(
        f"{name}: {points[0][1]:.4g} at step {points[0][0]:,.0f}, "
        f"{points[-1][1]:.4g} at step {points[-1][0]:,.0f}"
        for _, name, points in drawn
    )
    return Chart(
        title,
        description,
        "steps",
        [Tick(place(x, 0)[0], compact(x)) for x in x_values],
        [Tick(place(0, y)[1], f"{y:g}") for y in y_values],
        shapes,
    )


def ticks(most: float, about: int) -> list[float]:
    """Return about ``about`` round, evenly spaced numbers from 0 to ``most`` or just beyond."""
    if not most > 0:
        return [0.0, 1.0]
    raw = most / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(most / step - 1e-9) + 1)]


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep at most ``MOST_POINTS`` points, evenly chosen; the first and the last are kept."""
    if len(points) <= MOST_POINTS:
        return list(points)
    return [points[i] for i in np.linspace(0, len(points) - 1, MOST_POINTS).astype(int).tolist()]


def compact(number: float) -> str:
    """Shorten a number for an axis: ``12k``, ``3.5M``."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


def histogram(margins: Margins) -> Histogram:
    """Bin the margins of carried and of other labels; each kind of bars adds up to 1.

    The range covers nearly all margins and at least one unit on each side of the threshold.
    """
    both = margins.carried + margins.others
    # The range leaves out the outermost thousandths, which the first and the last bar include:
    # otherwise a single pair could stretch the range.
    ends = np.searchsorted(np.cumsum(both), [0.001 * both.sum(), 0.999 * both.sum()])
    low = min(int(ends[0]), BINS // 2 - PER_UNIT)
    high = max(int(ends[1]) + 1, BINS // 2 + PER_UNIT)
    per_bar = next(1 << power for power in range(12) if (high - low) >> power <= BARS)
    # A bar ends at the threshold, so that no bar lies on both sides of it.
    first = -(-(BINS // 2 - low) // per_bar)
    count = first + -(-(high - BINS // 2) // per_bar)
    shares = [_bars(counts, first, count, per_bar) for counts in margins]
    top = max(max(heights.max() for heights in shares), 1e-12)
    wide = WIDTH - LEFT - RIGHT
    tall = HEIGHT - TOP - BOTTOM
    bars = [
        Bar(
            round(LEFT + i * wide / count, 2),
            round(wide / count, 2),
            round(float(a) / top * tall, 2),
            round(float(b) / top * tall, 2),
        )
        for i, (a, b) in enumerate(zip(*shares, strict=True))
    ]
    left, right = -first * per_bar / PER_UNIT, (count - first) * per_bar / PER_UNIT

    def place(value: float) -> float:
        return round(LEFT + (value - left) / (right - left) * wide, 1)

    step = ticks(right - left, 6)[1]
    marks = np.arange(math.ceil(left / step), math.floor(right / step) + 1) * step
    above = [_share_above(counts) for counts in margins]
    n_carried, n_others = (int(counts.sum()) for counts in margins)
    return Histogram(
        f"{above[0]:.1%} of {n_carried:,} labels that bags carry score above the dummy label, and "
        f"{above[1]:.2%} of {n_others:,} that they do not carry",
        bars,
        [Tick(place(float(mark)), f"{mark:g}") for mark in marks],
        place(0.0),
        above[0],
        above[1],
        n_carried,
        n_others,
    )


def margin_chart(title: str, bars: Histogram, note: str) -> Chart:
    """Draw the bars of a histogram and a line at the threshold."""
    floor = HEIGHT - BOTTOM
    shapes = []
    for bar in bars.bars:
        for color, height in (("c1", bar.others), ("c0", bar.carried)):
            box = {"x": bar.x, "width": bar.width, "y": floor - height, "height": height}
            shapes.append(Shape("rect", f"bar {color}", box))
    ends = {"x1": bars.threshold, "x2": bars.threshold, "y1": TOP, "y2": floor}
    shapes.append(Shape("line", "threshold", ends))
    axis = "score minus the dummy label's score"
    return Chart(title, bars.description, axis, bars.x_ticks, [], shapes, note)


def reliability_chart(title: str, sums: Reliability, note: str = "") -> Chart:
    """Draw the share of carried labels over the mean probability of each bin, and the diagonal."""
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = x * (right - LEFT), y * (floor - TOP)
        return round(LEFT + across, 1), round(floor - up, 1)

    bins = [
        (total / (UNIT * n_pairs), n_carried / n_pairs)
        for n_pairs, n_carried, total in zip(
            sums.pairs.tolist(), sums.carried.tolist(), sums.total, strict=True
        )
        if n_pairs
    ]
    places = [place(*point) for point in bins]
    (x1, y1), (x2, y2) = place(0, 0), place(1, 1)
    shapes = [Shape("line", "threshold", {"x1": x1, "y1": y1, "x2": x2, "y2": y2})]
    corners = " ".join(f"{x},{y}" for x, y in places)
    shapes.append(Shape("polyline", "line c0", {"points": corners}))
    shapes += [Shape("circle", "dot c0", {"cx": x, "cy": y, "r": 3}) for x, y in places]
    marks = [0.0, 0.25, 0.5, 0.75, 1.0]
    return Chart(
        title,
        "; ".join(f"probability {x:.3f}: {y:.1%} carry the label" for x, y in bins),
        "probability",
        [Tick(place(x, 0)[0], f"{x:g}") for x in marks],
        [Tick(place(0, y)[1], f"{y:g}") for y in marks],
        shapes,
        note,
    )


def _bars(counts: I64, first: int, count: int, per_bar: int) -> NDArray[np.float64]:
    """Share of all pairs in each bar; the outermost bars include the pairs beyond them."""
    start = BINS // 2 - first * per_bar
    place = np.clip((np.arange(BINS) - start) // per_bar, 0, count - 1)
    return np.bincount(place, counts, minlength=count) / max(int(counts.sum()), 1)


def _share_above(counts: I64) -> float:
    """Share of the pairs whose margin is not below 0."""
    return float(counts[BINS // 2 :].sum() / max(int(counts.sum()), 1))
