"""``streammiml compare``: MIMLfast and other methods on random splits of a store."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any

from rich.table import Table

from streammiml.measure.registry import PAPER_FIGURES, spoken
from streammiml.search.comparison import CompareOptions
from streammiml.search.comparison_table import arrow, short
from streammiml.search.search_display import CompareDisplay
from streammiml.tell.compare import compare as compare_methods
from streammiml.tell.compare import has_pages
from streammiml.tell.report import PAGE
from streammiml.verbs.options import FLAT, AsJson, StorePath
from streammiml.verbs.tables import print_table, table_of

DEFAULTS = CompareOptions()
SHOWN = PAPER_FIGURES[:-1]
"""Criteria on the terminal; the files have all of them."""


def compare(
    store: StorePath,
    out: str,
    /,
    *,
    methods: str = "all",
    json: AsJson = False,
    options: Annotated[CompareOptions, FLAT] = DEFAULTS,
) -> None:
    """Compare MIMLfast with other methods: same splits, same cross validation, same metrics.

    Parameters
    ----------
    out
        Folder for the table, the figures of each cell, and the page. After an interruption, the
        same command completes it. Methods, splits and sizes may be added later.
    methods
        Names joined by commas, or all. mimlfast has default settings, mimlfast-best those that
        tune finds with the grid best.
    """
    given = {field.name: getattr(options, field.name) for field in fields(options)}
    with CompareDisplay() as display:
        result = compare_methods(store, out, methods=methods, **given, watch=display)
    if json:
        print(json_format.dumps(result))
        return
    print_table(readable(result))
    for sentence in result["not_available"]:
        print(sentence)
    if has_pages():
        print(f"{out}/{PAGE} shows this as charts")
    else:
        print("for a page, pip install 'streammiml[report]' and run the same command")


def readable(result: Mapping[str, Any]) -> Table:
    """A table with a line for each method and a column for each criterion of the paper."""
    columns = ("method", *(f"{spoken(name)} {arrow(name)}" for name in SHOWN))
    table = table_of(columns, left=("method",))
    for method, title in result["methods"].items():
        entries = [result["table"].get(name, {}).get(method) for name in SHOWN]
        table.add_row(title, *map(_text, entries))
    return table


def _text(entry: Mapping[str, Any] | None) -> str:
    if entry is None or entry["mean"] is None:
        return "N/A"
    spread = "" if entry["std"] is None else f"±{short(entry['std'], entry['mean'])}"
    return f"{short(entry['mean'])}{spread} {entry['mark']}".rstrip()
