"""What ``--labels`` names: a file with a name a line, a vocabulary, a run, a model or a store.

A vocabulary is a CSV file with a column ``index`` and a column of names, as YouTube-8M
(``vocabulary.csv``) and AudioSet (``class_labels_indices.csv``) have.
"""

from __future__ import annotations

import csv
from pathlib import Path

from streammiml.bags.layout import MANIFEST
from streammiml.bags.store import open_one
from streammiml.errors import StreammimlError
from streammiml.model import load_model
from streammiml_tools.readers.remote_files import is_url, source_path, url_of
from streammiml_tools.readers.text import twice

NAME_COLUMNS = ("name", "display_name", "label", "label_name")
OTHER_NAMES = ("knowledgegraphid", "mid")
"""Columns that name a label where its name is empty."""
TEXTS, MODEL = (".txt", ".csv", ".tsv"), ".safetensors"
SEPARATORS = {".csv": ",;\t", ".tsv": "\t"}
"""Characters that may separate columns, by suffix, most likely first."""


def label_names_in(path: Path) -> tuple[str, ...]:
    """Return the label names of a file, run, model or store, in order; raises StreammimlError."""
    is_remote, suffix = is_url(path), path.suffix.lower()
    # A URL with another suffix must be that of a store; runs and models are local.
    is_store_url = is_remote and suffix not in (*TEXTS, MODEL)
    path = source_path(path)
    if is_store_url or suffix == MODEL or path.is_dir():
        is_store = is_store_url or (not is_remote and (path / MANIFEST).is_file())
        names = (open_one(url_of(path)) if is_store else load_model(path)).label_names
        if names is None:
            raise StreammimlError(f"--labels {path} has no names of labels, only their number")
        return tuple(names)
    try:
        with path.open("rb") as file:
            text = file.read().decode("utf-8-sig")
    except OSError as error:
        raise StreammimlError(f"--labels {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StreammimlError(f"--labels {path} is not UTF-8; convert it to UTF-8") from None
    names = [line.strip() for line in text.splitlines()]
    if path.suffix.lower() in SEPARATORS:
        rows = _cells(path, text)
        columns = [cell.strip().lower() for cell in rows[0]] if rows else []
        if "index" in columns and set(columns) & {*NAME_COLUMNS}:
            return _vocabulary(path, rows, columns)
        names = [_only_cell(path, line, row) for line, row in enumerate(rows, 1)]
    while names and not names[-1]:
        names.pop()
    if "" in names:
        raise StreammimlError(f"--labels {path}, line {names.index('') + 1} is empty")
    if not names:
        raise StreammimlError(f"--labels {path} is empty; write one label name a line")
    repeated = twice(names)
    if repeated is not None:
        raise StreammimlError(f"--labels {path} names {repeated!r} twice")
    return tuple(names)


def _cells(path: Path, text: str) -> list[list[str]]:
    """Cells of all lines, cut at the first separator that cuts the first line."""
    lines = text.splitlines(keepends=True)
    separators = SEPARATORS[path.suffix.lower()]
    try:
        for separator in separators:
            if len(next(csv.reader(lines, delimiter=separator), ())) > 1:
                return list(csv.reader(lines, delimiter=separator))
        return list(csv.reader(lines, delimiter=separators[0]))
    except csv.Error as error:
        raise StreammimlError(f"--labels {path} is not a CSV file: {error}") from None


def _only_cell(path: Path, line: int, row: list[str]) -> str:
    if len(row) > 1:
        *first, last = NAME_COLUMNS
        raise StreammimlError(
            f"--labels {path}, line {line} has {len(row)} columns; a vocabulary has a column index "
            f"and a column {', '.join(first)} or {last}; in a file of names, each is one column, "
            "or the suffix is .txt"
        )
    return row[0].strip() if row else ""


def _vocabulary(path: Path, rows: list[list[str]], columns: list[str]) -> tuple[str, ...]:
    """Names by their index; a name that is empty or occurs twice gets another name or its index."""
    at = columns.index("index")
    named = [columns.index(name) for name in (*NAME_COLUMNS, *OTHER_NAMES) if name in columns]
    names: dict[int, str] = {}
    for line, row in enumerate(rows[1:], 2):
        if not row:
            continue
        if len(row) <= max(at, *named) or not row[at].strip().isdecimal():
            raise StreammimlError(
                f"--labels {path}, line {line}: expected an index and a name in columns "
                f"{columns[at]!r} and {columns[named[0]]!r}"
            )
        cells = (row[column].strip() for column in named)
        number = int(row[at])
        if number in names:
            raise StreammimlError(f"--labels {path}, line {line}: index {number} occurs twice")
        names[number] = next((cell for cell in cells if cell), f"label {number}")
    missing = next((number for number in range(len(names)) if number not in names), None)
    if not names or missing is not None:
        raise StreammimlError(
            f"--labels {path} has no line for index {missing or 0}; indices are counted 0, 1, 2, …"
        )
    seen: set[str] = set()
    for number in range(len(names)):
        if names[number] in seen:
            names[number] = f"{names[number]} ({number})"
        seen.add(names[number])
    return tuple(names[number] for number in range(len(names)))
