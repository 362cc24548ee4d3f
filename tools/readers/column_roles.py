"""Roles of the columns of a table (bag id, labels, features), by common names or by options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.kept_cells import check_names
from streammiml_tools.readers.messages import listed

BAG_NAMES = ("bag", "bag_id", "bagid", "bag id", "qid", "id")
LIST_NAMES = ("labels", "label", "targets", "target", "classes", "class", "tags", "topics")
ROW_LABEL_NAMES = ("row_label", "row_labels", "instance_label", "instance_labels")
MARK_NAME = re.compile(r"(?:labels?|targets?)(?:[_:.](.+)|(\d+))", re.IGNORECASE)
UNKNOWN = ("", "-1", "?")
"""Values of a row label that mean: unknown."""


def is_number_text(cell: str) -> bool:
    """Whether a cell is a number. ``1_000`` is not, although Python accepts it."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def chosen(
    path: Path, names: Sequence[str], patterns: Sequence[str], option: str
) -> tuple[int, ...]:
    """Columns that match patterns (names, or ``f*``), in the order of the patterns, each once."""
    columns: dict[int, None] = {}
    for name in patterns:
        matches = [i for i, column in enumerate(names) if column == name]
        matches = matches or [i for i, column in enumerate(names) if fnmatchcase(column, name)]
        if not matches:
            raise SourceError(
                f"{path}: no column is called {name!r} ({option}); the columns are {listed(names)}"
            )
        columns |= dict.fromkeys(matches)
    return tuple(columns)


def called(names: Sequence[str], known: Sequence[str]) -> list[int]:
    """Columns with one of the known names; upper and lower case are the same."""
    return [i for i, name in enumerate(names) if name.lower() in known]


def bag_column(path: Path, names: Sequence[str], options: SourceOptions, header: bool) -> int:
    """Find the column that names the bag of a row."""
    if options.bag_column is not None:
        return chosen(path, names, [options.bag_column], "--bag-column")[0]
    candidates = called(names, BAG_NAMES)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        which = " and ".join(repr(names[i]) for i in candidates)
        raise SourceError(f"{path}: columns {which} may both name the bag; give --bag-column")
    numbered = "" if header else " (columns are called by their number, from 1)"
    raise SourceError(
        f"{path}: which column names the bag of a row? give --bag-column{numbered}; "
        f"the columns are {listed(names)}",
        page="convert",
    )


def row_label_column(path: Path, names: Sequence[str], options: SourceOptions) -> int | None:
    """Find the column of row labels, if there is one."""
    if options.no_labels:
        return None
    if options.row_label_column is not None:
        return chosen(path, names, [options.row_label_column], "--row-label-column")[0]
    candidates = called(names, ROW_LABEL_NAMES)
    if len(candidates) > 1:
        which = " and ".join(repr(names[i]) for i in candidates)
        raise SourceError(f"{path}: columns {which} may both label rows; give --row-label-column")
    return candidates[0] if candidates else None


def check_kept(path: Path, kept: Sequence[str], taken: Sequence[str]) -> None:
    """Refuse kept columns that have another role too, or a name that no store can have."""
    check_names(path, kept)
    both = [name for name in kept if name in taken]
    if both:
        raise SourceError(
            f"{path}: column {both[0]!r} names or labels bags or rows, and cannot be kept too; "
            "leave it out of --keep"
        )


def label_columns(
    path: Path,
    names: Sequence[str],
    sample: Sequence[Sequence[str]],
    options: SourceOptions,
    taken: set[int | None],
) -> tuple[tuple[int, ...], int | None]:
    """Find the columns of 0/1 marks, or the column that lists labels; neither without labels."""
    if options.no_labels:
        return (), None
    if options.label_columns is not None:
        columns = chosen(path, names, options.label_columns, "--label-columns")
        if len(columns) > 1:
            return columns, None
        cells = {row[columns[0]].strip() for row in sample}
        is_list = names[columns[0]].lower() in LIST_NAMES or not cells <= {"0", "1"}
        return ((), columns[0]) if is_list else (columns, None)
    lists = [i for i in called(names, LIST_NAMES) if i not in taken]
    marks = tuple(i for i, name in enumerate(names) if i not in taken and MARK_NAME.fullmatch(name))
    if (lists and marks) or len(lists) > 1:
        candidates = " and ".join(repr(names[i]) for i in [*lists, *marks][:2])
        raise SourceError(
            f"{path}: columns {candidates} may both hold labels; give --label-columns"
        )
    if not lists and not marks:
        raise SourceError(
            f"{path}: which columns hold labels? name them by --label-columns (label_* "
            f"names all that begin with label_), or give none; the columns are {listed(names)}",
            page="convert",
        )
    return marks, lists[0] if lists else None


def looks_like_labels(name: str) -> bool:
    """Whether a column has a common name of labels, of bags or of rows."""
    known = (*LIST_NAMES, *ROW_LABEL_NAMES)
    return name.lower() in known or MARK_NAME.fullmatch(name) is not None


def mark_names(names: Sequence[str]) -> tuple[str, ...] | None:
    """Names of labels from names of columns: ``label_sky`` and ``label:sky`` give sky."""
    matches = [MARK_NAME.fullmatch(name) for name in names]
    if all(matches):
        return tuple(match[1] or match[2] for match in matches if match)
    return tuple(names)
