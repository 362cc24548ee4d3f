"""Which columns of a table are what: by the names they usually have, or by what the user says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from streammiml_tools.readers.base import SourceError, SourceOptions

BAG_NAMES = ("bag", "bag_id", "bagid", "bag id", "qid", "id")
LIST_NAMES = ("labels", "label", "targets", "target", "classes", "class", "tags", "topics")
ROW_LABEL_NAMES = ("row_label", "row_labels", "instance_label", "instance_labels")
MARK_NAME = re.compile(r"(?:labels?|targets?)(?:[_:.](.+)|(\d+))", re.IGNORECASE)
UNKNOWN = ("", "-1", "?")
"""What stands for a row of unknown label."""


def listed(names: Iterable[str]) -> str:
    """Some names, for a message."""
    names = list(names)
    more = f", … ({len(names)} in all)" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more


def is_number_text(cell: str) -> bool:
    """Whether a cell reads as a number; Python's ``1_000`` does not."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def chosen(path: Path, names: Sequence[str], wanted: Sequence[str], option: str) -> tuple[int, ...]:
    """Columns by name or by pattern (``f*``), in the order asked for, each once."""
    found: dict[int, None] = {}
    for name in wanted:
        places = [i for i, each in enumerate(names) if each == name]
        places = places or [i for i, each in enumerate(names) if fnmatchcase(each, name)]
        if not places:
            raise SourceError(
                f"{path}: no column is called {name!r} ({option}); it has {listed(names)}"
            )
        found |= dict.fromkeys(places)
    return tuple(found)


def called(names: Sequence[str], known: Sequence[str]) -> list[int]:
    """Columns whose names are among the known ones, whatever their case."""
    return [i for i, name in enumerate(names) if name.lower() in known]


def bag_column(path: Path, names: Sequence[str], options: SourceOptions, header: bool) -> int:
    """The column that names the bag of a row."""
    if options.bag_column is not None:
        return chosen(path, names, [options.bag_column], "--bag-column")[0]
    there = called(names, BAG_NAMES)
    if len(there) == 1:
        return there[0]
    if there:
        which = " and ".join(repr(names[i]) for i in there)
        raise SourceError(f"{path}: columns {which} may both name the bag; --bag-column says which")
    numbered = "" if header else " (columns are called by their number, from 1)"
    raise SourceError(
        f"{path}: which column names the bag of a row? --bag-column says so{numbered}; "
        f"it has {listed(names)}"
    )


def row_label_column(path: Path, names: Sequence[str], options: SourceOptions) -> int | None:
    """The column of labels of rows, if there is one."""
    if options.no_labels:
        return None
    if options.row_label_column is not None:
        return chosen(path, names, [options.row_label_column], "--row-label-column")[0]
    there = called(names, ROW_LABEL_NAMES)
    if len(there) > 1:
        which = " and ".join(repr(names[i]) for i in there)
        raise SourceError(
            f"{path}: columns {which} may both label rows; --row-label-column says which"
        )
    return there[0] if there else None


def label_columns(
    path: Path,
    names: Sequence[str],
    sample: Sequence[Sequence[str]],
    options: SourceOptions,
    taken: set[int | None],
) -> tuple[tuple[int, ...], int | None]:
    """Columns of marks, or the one that lists labels; neither if there are to be no labels."""
    if options.no_labels:
        return (), None
    if options.label_columns is not None:
        found = chosen(path, names, options.label_columns, "--label-columns")
        if len(found) > 1:
            return found, None
        cells = {row[found[0]].strip() for row in sample}
        is_list = names[found[0]].lower() in LIST_NAMES or not cells <= {"0", "1"}
        return ((), found[0]) if is_list else (found, None)
    lists = [i for i in called(names, LIST_NAMES) if i not in taken]
    marks = tuple(i for i, name in enumerate(names) if i not in taken and MARK_NAME.fullmatch(name))
    if (lists and marks) or len(lists) > 1:
        both = " and ".join(repr(names[i]) for i in [*lists, *marks][:2])
        raise SourceError(
            f"{path}: columns {both} may both hold labels; --label-columns says which do"
        )
    if not lists and not marks:
        raise SourceError(
            f"{path}: which columns hold labels? --label-columns names them, once for each "
            f"(label_* takes all that begin so), or says none; it has {listed(names)}"
        )
    return marks, lists[0] if lists else None


def looks_like_labels(name: str) -> bool:
    """Whether a column would be taken for labels, of bags or of rows."""
    known = (*LIST_NAMES, *ROW_LABEL_NAMES)
    return name.lower() in known or MARK_NAME.fullmatch(name) is not None


def mark_names(names: Sequence[str]) -> tuple[str, ...] | None:
    """Names of labels from those of their columns: ``label_sky`` and ``label:sky`` are sky."""
    found = [MARK_NAME.fullmatch(name) for name in names]
    if all(found):
        return tuple(match[1] or match[2] for match in found if match)
    return tuple(names)
