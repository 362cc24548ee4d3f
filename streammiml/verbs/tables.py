"""Tables on stdout that leave nothing out; on a terminal, long cells are folded."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table

WIDEST = 1 << 20


def table_of(columns: Sequence[str], left: Sequence[str] = ()) -> Table:
    """Make an empty table; columns are aligned to the right, except those in ``left``."""
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    return table


def print_table(table: Table) -> None:
    """Print a table; in a pipe or a file each row is one line, however long."""
    terminal = Console()
    width = terminal.width if terminal.is_terminal else WIDEST
    # Rich must not interpret brackets and colons in labels. The table is printed as plain text, so
    # that control characters in names are escaped like everything else that is printed.
    text = StringIO()
    plain = {"force_terminal": False, "markup": False, "emoji": False, "highlight": False}
    Console(file=text, width=width, **plain).print(table)  # type: ignore[arg-type]
    print(text.getvalue(), end="")
