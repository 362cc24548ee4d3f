"""Charts as numbers that a template draws in SVG: scales, ticks, lines and bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streammiml.measure.survey import BINS, PER_UNIT, Margins

I64 = NDArray[np.int64]

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 10, 34
MOST_POINTS = 400
BARS = 48
"""Bars of a histogram at most."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: where, and what it says."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """One run in a chart."""

    name: str
    color: int
    """Its number among the runs, so that it keeps its colour where another has no points."""
    points: str
    """As ``polyline`` takes them."""
    last: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over steps."""

    title: str
    told: str
    """The same in words, for those who do not see it."""
    x_name: str
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]


@dataclass(frozen=True, slots=True)
class Bar:
    """Shares of two kinds of pairs whose margin lies in a bin."""

    x: float
    width: float
    carried: float
    """Height."""
    others: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Margins over the dummy, of labels that bags carry and of others."""

    told: str
    bars: list[Bar]
    x_ticks: list[Tick]
    threshold: float
    carried_above: float
    """Share of the carried labels above the threshold."""
    others_above: float
    n_carried: int
    n_others: int


def line_chart(
    title: str, series: Sequence[tuple[str, Sequence[tuple[float, float]]]]
) -> Chart | None:
    """A chart of values that are not below 0 over steps; None if there is not one point."""
    kept = [(i, name, thinned(of)) for i, (name, of) in enumerate(series) if of]
    if not kept:
        return None
    x_most = max(points[-1][0] for *_, points in kept)
    y_most = max(max(y for _, y in points) for *_, points in kept)
    x_values, y_values = ticks(x_most, 4), ticks(y_most, 4)
    x_top, y_top = max(x_most, x_values[-1]), max(y_most, y_values[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = x / (x_top or 1), y / (y_top or 1)
        return (
            round(LEFT + across * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1),
        )

    lines = []
    for color, name, points in kept:
        places = [place(x, y) for x, y in points]
        lines.append(Line(name, color, " ".join(f"{x},{y}" for x, y in places), places[-1]))
    told = "; ".join(
        f"{name}: {points[0][1]:.4g} at step {points[0][0]:,.0f}, "
        f"{points[-1][1]:.4g} at step {points[-1][0]:,.0f}"
        for _, name, points in kept
    )
    return Chart(
        title,
        told,
        "steps",
        lines,
        [Tick(place(x, 0)[0], compact(x)) for x in x_values],
        [Tick(place(0, y)[1], f"{y:g}") for y in y_values],
    )


def ticks(most: float, about: int) -> list[float]:
    """Round numbers from 0 up to ``most`` or the first beyond it; about so many."""
    if not most > 0:
        return [0.0, 1.0]
    raw = most / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * each for each in (1, 2, 2.5, 5, 10) if unit * each >= raw * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(most / step - 1e-9) + 1)]


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most ``MOST_POINTS`` of them, the first and the last among these."""
    if len(points) <= MOST_POINTS:
        return list(points)
    return [points[i] for i in np.linspace(0, len(points) - 1, MOST_POINTS).astype(int).tolist()]


def compact(number: float) -> str:
    """``12k``, ``3.5M``: a number of steps for an axis."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


def histogram(margins: Margins) -> Histogram:
    """Both distributions, each against its own number of pairs, over the range where they lie."""
    both = margins.carried + margins.others
    # The outermost thousandths are added to the first and the last bar, lest one pair decides.
    ends = np.searchsorted(np.cumsum(both), [0.001 * both.sum(), 0.999 * both.sum()])
    low = min(int(ends[0]), BINS // 2 - PER_UNIT)
    high = max(int(ends[1]) + 1, BINS // 2 + PER_UNIT)
    per_bar = next(1 << power for power in range(12) if (high - low) >> power <= BARS)
    # Bars end at the threshold, so that none lies on both sides of it.
    first = -(-(BINS // 2 - low) // per_bar)
    count = first + -(-(high - BINS // 2) // per_bar)
    shares = [_bars(part, first, count, per_bar) for part in margins]
    top = max(max(part.max() for part in shares), 1e-12)
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
    above = [_share_above(part) for part in margins]
    n_carried, n_others = (int(part.sum()) for part in margins)
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


def _bars(counts: I64, first: int, count: int, per_bar: int) -> NDArray[np.float64]:
    """Shares of all pairs in each bar; what lies beyond is in the outermost ones."""
    start = BINS // 2 - first * per_bar
    place = np.clip((np.arange(BINS) - start) // per_bar, 0, count - 1)
    return np.bincount(place, counts, minlength=count) / max(int(counts.sum()), 1)


def _share_above(counts: I64) -> float:
    return float(counts[BINS // 2 :].sum() / max(int(counts.sum()), 1))
