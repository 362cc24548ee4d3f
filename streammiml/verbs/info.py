"""``streammiml info``: a description of a store."""

from __future__ import annotations

import json as json_format
from importlib import import_module
from typing import Any

from streammiml.bags.store import open_one
from streammiml.bags.summary import describe
from streammiml.verbs.options import AsJson, Flag, StorePath
from streammiml.verbs.tables import print_table, table_of


def info(
    store: StorePath,
    /,
    *,
    speed: Flag = False,
    json: AsJson = False,
) -> None:
    """Print the counts, types and names of a store; no rows are read without `--speed`.

    Parameters
    ----------
    speed
        Also measure for about ten seconds how fast the disk reads the files of the store, and how
        fast training would receive its bags in mixed order, with the default memory of 1GiB. The
        files are evicted from the page cache first, which is harmless. The store must be local.
    """
    opened = open_one(store)
    facts, figures = describe(opened), None
    if speed:
        # Loaded late: streaming needs a compiler, which a description does not.
        figures = import_module("streammiml.blocks.store_speed").store_speed(opened).figures()
    if json:
        print(json_format.dumps(facts if figures is None else {**facts, "speed": figures}))
        return
    for name, value in facts.items():
        if name == "kept":
            value = [*map(str, opened.kept_columns)] or None
        print(f"{name.replace('_', ' '):<16} {_readable(value)}")
    if figures is not None:
        print()
        _print_speed(figures)


def _print_speed(figures: dict[str, Any]) -> None:
    """Print a table of speeds, then what one must know to read it."""
    table = table_of(["speed", "MB/s", "of the disk"], left=["speed"])
    limit = figures["limit_mb_s"]
    for name, key in (
        (f"disk: random reads of {figures['limit_read']} threads", "limit_mb_s"),
        ("page cache: one thread", "pread_mb_s"),
        ("blocks, read and checked: one thread", "read_stored_mb_s"),
        ("mixed bags: bytes on disk", "mixed_stored_mb_s"),
    ):
        table.add_row(name, f"{figures[key]:,.0f}", f"{figures[key] / limit:.0%}")
    table.add_row("mixed bags: bytes of rows", f"{figures['mixed_mb_s']:,.0f}", "")
    print_table(table)
    print(
        f"Mixed bags take {figures['cpu_seconds_per_gb']:.2f} s of processor time for a GB of "
        f"rows; their variance inflation is {figures['vif']:.2f}."
    )
    if not figures["limit_direct"]:
        print("Reads cannot bypass the page cache here, so the speed of the disk may be too high.")
    if not figures["mixed_cold"]:
        print("The page cache cannot be emptied here, so the speed of mixed bags may be too high.")


def _readable(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.3f}"
        case list():
            more = f", … ({len(value):,} in all)" if len(value) > 12 else ""
            return ", ".join(map(str, value[:12])) + more
    return str(value)
