"""Tables on stdout, with nothing left out: as wide as they need, or folded into a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

WIDEST = 1 << 20


def table_of(columns: Sequence[str], left: Sequence[str] = ()) -> Table:
    """An empty table; columns are set to the right, but for those that are ``left``."""
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    return table


def print_table(table: Table) -> None:
    """Print it; whoever reads a pipe or a file gets a line a row, however long."""
    # Names are printed as they are: brackets and colons in labels mean nothing.
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = WIDEST
    console.print(table)
