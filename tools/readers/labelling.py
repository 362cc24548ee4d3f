"""From what a source calls its labels to their numbers; what is not known is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.offsets import from_sizes
from streammiml_tools.readers.base import Scan, SourceError, SourceOptions

I64 = NDArray[np.int64]
ODD_NUMBER = re.compile(r"[+-]\d+|[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?")
"""Numbers that are no places: with a sign or a fraction."""
LABEL_SEPARATOR = ";"
JOINED = re.compile(r".*[|,].*|\d+( +\d+)+")
"""Labels that look like several, with something else between them than what was expected."""
SHOWN = 12
"""Names that a message lists, at most."""


@dataclass(frozen=True, slots=True)
class Labelling:
    """Which number a label has: its place among the names, or the number that it is.

    With names, a label that is no name may still be given by its number, unless names themselves
    are numbers.
    """

    names: tuple[str, ...] | None
    n_labels: int | None = None
    """Without names: None if any number will do."""
    _places: dict[str, int] = field(init=False, repr=False, compare=False)
    _by_number: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = self.names or ()
        object.__setattr__(self, "_places", {name: i for i, name in enumerate(names)})
        object.__setattr__(self, "_by_number", not any(is_number(name) for name in names))

    def index(self, label: str | int, where: str) -> int:
        """Number of a label; ``where`` opens the message if there is none such."""
        if isinstance(label, str):
            place = self._places.get(label)
            if place is not None:
                return place
        limit = self.n_labels if self.names is None else len(self.names)
        if self._by_number or not isinstance(label, str):
            number = _number(label)
            if number is not None and (limit is None or number < limit):
                return number
        if self.names is None:
            upto = "" if limit is None else f" to {limit - 1}"
            raise SourceError(
                f"{where}: label {label!r} is not among the numbers 0{upto}; "
                "--labels names those that may occur"
            )
        raise SourceError(
            f"{where}: label {label!r} is not known; known: {_listed(self.names)}; "
            "add it to --labels"
        )

    def indices(self, labels: Sequence[str | int], where: str) -> list[int]:
        """Numbers of a bag's labels, sorted; a label that comes twice is refused."""
        found = sorted(self.index(label, where) for label in labels)
        for one, next_one in pairwise(found):
            if one == next_one:
                name = one if self.names is None else repr(self.names[one])
                raise SourceError(f"{where}: label {name} comes twice; remove one")
        return found


def is_number(label: str) -> bool:
    """Whether a label is written as a number that could be a place."""
    return label.isascii() and label.isdigit()


def _number(label: str | int) -> int | None:
    if isinstance(label, str):
        return int(label) if is_number(label) and len(label) < 10 else None
    return label if 0 <= label < 2**31 and not isinstance(label, bool) else None


def _listed(names: Sequence[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def cut_labels(cell: str, options: SourceOptions) -> list[str]:
    """Labels that one cell lists."""
    parts = (part.strip() for part in cell.split(options.label_separator or LABEL_SEPARATOR))
    return [part for part in parts if part]


def refuse_joined(labels: Iterable[str], options: SourceOptions, where: str) -> None:
    """Refuse labels that look like lists, unless the user says what is between labels."""
    if options.label_separator is not None:
        return
    joined = sorted(label for label in labels if JOINED.fullmatch(label))
    if joined:
        raise SourceError(
            f"{where}: is {joined[0]!r} one label or several? --label-separator says what is "
            f"between labels ({LABEL_SEPARATOR!r} for one)"
        )


def labelling_of(
    found: Iterable[str | int], options: SourceOptions, where: str = "the source"
) -> Labelling:
    """How the labels that a pass has found are numbered.

    By the names that the user gives; else as the numbers that they are, if all are; else in
    alphabetical order, which does not depend on the order of files or bags. Numbers that cannot
    be places, such as -1 or 1.5, are refused: they are more likely marks than names.
    """
    if options.labels is not None:
        return Labelling(options.labels)
    labels = set(found)
    odd = sorted(str(label) for label in labels if ODD_NUMBER.fullmatch(str(label)))
    if odd:
        raise SourceError(
            f"{where}: label {odd[0]!r} is a number, but labels are counted 0, 1, 2, …; "
            "if it is a name, --labels lists it"
        )
    if all(_number(label) is not None for label in labels):
        return Labelling(None)
    number = next((label for label in labels if isinstance(label, int)), None)
    name = min((label for label in labels if isinstance(label, str)), default=None)
    if number is not None and name is not None:
        raise SourceError(
            f"{where}: labels are given by number ({number}) and by name ({name!r}); --labels FILE "
            "says, with a name a line, which number each has"
        )
    return Labelling(tuple(sorted({str(label) for label in labels})))


def labelling_in(scan: Scan) -> Labelling:
    """How a scan has numbered the labels."""
    return Labelling(scan.label_names, scan.n_labels)


def places_of(names: Sequence[str], options: SourceOptions, where: str) -> I64:
    """Number of the label of each column of marks, by its name; every column must be known."""
    if len(set(names)) != len(names):
        name = next(name for i, name in enumerate(names) if name in names[:i])
        raise SourceError(f"{where}: two labels are called {name!r}; rename one")
    if options.labels is None:
        return np.arange(len(names), dtype=np.int64)
    labelling = Labelling(options.labels)
    return np.array([labelling.index(name, where) for name in names], np.int64)


def numbered_names(n_columns: int, options: SourceOptions, where: str) -> tuple[str, ...] | None:
    """Names for label columns that have none: those the user gives, if the count agrees."""
    if options.labels is not None and len(options.labels) != n_columns:
        raise SourceError(
            f"{where}: {n_columns} label columns, but --labels gives {len(options.labels)} names"
        )
    return options.labels


def check_marks(marks: NDArray[Any], where: str, row: str = "bag") -> None:
    """Refuse a matrix whose values are not all 0 or 1, or all −1 or +1."""
    signs = (marks == 1) | (marks == -1)
    bits = (marks == 1) | (marks == 0)
    # A bag may hold nothing but +1, so that the rest of the matrix decides what the other mark is.
    wrong = ~signs if signs.sum() >= bits.sum() else ~bits
    if wrong.any():
        at, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise SourceError(
            f"{where}, {row} {at}: the mark of label {column} is {marks[at, column]} "
            f"({int(wrong.sum())} such marks), expected 0 and 1, or -1 and +1"
        )


def labels_of_marks(
    marks: NDArray[Any], where: str, places: I64 | None = None
) -> tuple[I64, NDArray[np.int32]]:
    """Offsets and sorted numbers of the labels marked 1, of a matrix (bags, columns).

    ``places`` gives the number of each column's label; its own place unless given.
    """
    check_marks(marks, where)
    if places is not None and len(places):
        sorted_places = np.argsort(places)
        marks, places = marks[:, sorted_places], places[sorted_places]
    bags, columns = np.nonzero(marks == 1)
    found = columns if places is None else places[columns]
    sizes = np.bincount(bags, minlength=len(marks))
    return from_sizes(sizes), found.astype(np.int32)
