"""Pages: each is one HTML file that contains its style, script and images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from streammiml.measure.registry import spoken
from streammiml.tell import charts

ROWS_A_PAGE = 50
"""Rows of the table of labels that are visible at a time."""


def render(content: Mapping[str, Any], template: str = "page.html") -> str:
    """Fill a template; every value is escaped."""
    environment = Environment(
        loader=PackageLoader("streammiml.tell", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": share, "figure": figure, "spoken": spoken}
    names = ("WIDTH", "HEIGHT", "LEFT", "RIGHT", "TOP", "BOTTOM", "COLORS")
    sizes = {name: getattr(charts, name) for name in names}
    return environment.get_template(template).render(**content, size=sizes, rows_a_page=ROWS_A_PAGE)


def share(value: float) -> str:
    """Format a share: ``12.3 %``."""
    return f"{100 * value:.1f} %"


def figure(value: float | None) -> str:
    """Format a figure with four decimals; None is ``undefined``."""
    return "undefined" if value is None else f"{value:.4f}"
