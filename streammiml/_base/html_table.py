"""A small HTML table for notebooks, with everything that comes from data escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

NAMES_SHOWN = 12


def table_html(title: str, facts: Mapping[str, object]) -> str:
    """A table of facts under a title; facts that are None are left out."""
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(str(value))}</td></tr>'
        for name, value in facts.items()
        if value is not None
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"


def listed(names: Sequence[str] | None) -> str | None:
    """Join the first names; if names are left out, add the number of all names.

    >>> listed(["sea", "sky"])
    'sea, sky'
    """
    if names is None:
        return None
    more = f", … ({len(names):,} in all)" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
