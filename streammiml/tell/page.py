"""The page: one HTML file with its style, its script and its pictures inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from streammiml.tell import charts

ROWS_A_PAGE = 50
"""Rows of the table of labels that are seen at a time."""


def render(content: Mapping[str, Any]) -> str:
    """Fill the template; everything that comes from data is escaped."""
    environment = Environment(
        loader=PackageLoader("streammiml.tell", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": share, "figure": figure, "spoken": spoken}
    sizes = {
        "WIDTH": charts.WIDTH,
        "HEIGHT": charts.HEIGHT,
        "LEFT": charts.LEFT,
        "RIGHT": charts.RIGHT,
        "TOP": charts.TOP,
        "BOTTOM": charts.BOTTOM,
    }
    return environment.get_template("page.html").render(
        **content, size=sizes, rows_a_page=ROWS_A_PAGE
    )


def share(value: float) -> str:
    """``12.3 %``."""
    return f"{100 * value:.1f} %"


def figure(value: float | None) -> str:
    """Four places, or a word for what is not defined."""
    return "undefined" if value is None else f"{value:.4f}"


def spoken(name: str) -> str:
    """A name of the code as people write it."""
    return (
        name.replace("_at_", " at ").replace("_", " ").replace("f1", "F1").replace("ndcg", "nDCG")
    )
