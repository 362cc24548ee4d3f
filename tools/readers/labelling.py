"""Numbers of labels: a label of a source is a name or a number; unknown labels are refused."""

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
from streammiml_tools.readers.messages import listed
from streammiml_tools.readers.text import twice

I64 = NDArray[np.int64]
ODD_NUMBER = re.compile(r"[+-]\d+|[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?")
"""Numbers that cannot be label numbers, as they have a sign or a fraction."""
LABEL_SEPARATOR = ";"
JOINED = re.compile(r".*[|,].*|\d+( +\d+)+")
"""Labels that look like lists with another separator."""


@dataclass(frozen=True, slots=True)
class Labelling:
    """Maps labels to numbers: a name to its index among the names, a number to itself.

    If there are names, a label may still be given by its number, unless a name is itself a number.
    """

    names: tuple[str, ...] | None
    n_labels: int | None = None
    """Used only without names. None allows any number."""
    _number_of_name: dict[str, int] = field(init=False, repr=False, compare=False)
    _by_number: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = self.names or ()
        object.__setattr__(self, "_number_of_name", {name: i for i, name in enumerate(names)})
        object.__setattr__(self, "_by_number", not any(is_number(name) for name in names))

    def index(self, label: str | int, where: str) -> int:
        """Number of a label; the message for an unknown label begins with ``where``."""
        if isinstance(label, str):
            named = self._number_of_name.get(label)
            if named is not None:
                return named
        limit = self.n_labels if self.names is None else len(self.names)
        if self._by_number or not isinstance(label, str):
            number = _number(label)
            if number is not None and (limit is None or number < limit):
                return number
        if self.names is None:
            upto = "" if limit is None else f" to {limit - 1}"
            raise SourceError(
                f"{where}: label {label!r} is not among the numbers 0{upto}; "
                "list all labels in --labels"
            )
        raise SourceError(
            f"{where}: label {label!r} is not known; known: {listed(self.names)}; "
            "add it to --labels, or let --unknown-labels drop or append it"
        )

    def indices(self, labels: Sequence[str | int], where: str) -> list[int]:
        """Sorted numbers of a bag's labels; a label that occurs twice is refused."""
        numbers = sorted(self.index(label, where) for label in labels)
        for number, next_number in pairwise(numbers):
            if number == next_number:
                name = number if self.names is None else repr(self.names[number])
                raise SourceError(f"{where}: label {name} occurs twice; remove one")
        return numbers


def is_number(label: str) -> bool:
    """Whether a label consists of digits, and so may be a label number."""
    return label.isascii() and label.isdigit()


def _number(label: str | int) -> int | None:
    if isinstance(label, str):
        return int(label) if is_number(label) and len(label) < 10 else None
    if isinstance(label, bool) or not 0 <= label < 2**31 or label != int(label):
        return None
    return int(label)


def cut_labels(cell: str, options: SourceOptions) -> list[str]:
    """Split the list of labels in a cell."""
    parts = (part.strip() for part in cell.split(options.label_separator or LABEL_SEPARATOR))
    return [part for part in parts if part]


def refuse_joined(labels: Iterable[str], options: SourceOptions, where: str) -> None:
    """Refuse labels that look like lists, unless the user has named the separator."""
    if options.label_separator is not None:
        return
    joined = sorted(label for label in labels if JOINED.fullmatch(label))
    if joined:
        raise SourceError(
            f"{where}: is {joined[0]!r} one label or several? give the separator of "
            f"labels as --label-separator ({LABEL_SEPARATOR!r} if it is one label)"
        )


def labelling_of(
    labels_seen: Iterable[str | int], options: SourceOptions, where: str = "the source"
) -> Labelling:
    """Number the labels that a pass has found.

    Names that the user gives are used as they are. Otherwise, if all labels are numbers, they keep
    these numbers. Otherwise names are numbered in alphabetical order, which does not depend on the
    order of files or bags. Labels such as -1 or 1.5 are refused: they are more likely marks than
    names.
    """
    if options.labels is not None:
        return Labelling(options.labels)
    labels = set(labels_seen)
    odd = sorted(str(label) for label in labels if ODD_NUMBER.fullmatch(str(label)))
    if odd:
        raise SourceError(
            f"{where}: label {odd[0]!r} is a number, but labels are counted 0, 1, 2, …; "
            "if it is a name, list it in --labels"
        )
    if all(_number(label) is not None for label in labels):
        return Labelling(None)
    number = next((label for label in labels if isinstance(label, int)), None)
    name = min((label for label in labels if isinstance(label, str)), default=None)
    if number is not None and name is not None:
        raise SourceError(
            f"{where}: labels are given by number ({number}) and by name ({name!r}); give --labels "
            "FILE, with one name a line in the order of the numbers"
        )
    return Labelling(tuple(sorted({str(label) for label in labels})))


def refuse_marks(
    labels_of_all: Iterable[Sequence[str | int]], options: SourceOptions, where: str
) -> None:
    """Refuse labels that are all [0, 1] or [1, 0]; marks of more labels would be numbers twice."""
    n_labels = options.n_labels if options.labels is None else len(options.labels)
    if n_labels not in (None, 2):
        return
    is_empty = True
    for labels in labels_of_all:
        if list(labels) not in ([0, 1], [1, 0]):
            return
        is_empty = False
    if not is_empty:
        raise SourceError(
            f"{where} has labels that all are [0, 1] or [1, 0]: marks of two labels, or numbers "
            "of labels? write the numbers, or names, of only the labels that a bag has; give "
            "--n-labels if there are more than two"
        )


def labelling_in(scan: Scan) -> Labelling:
    """The labelling that a scan has found."""
    return Labelling(scan.label_names, scan.n_labels)


def label_numbers_of(names: Sequence[str], options: SourceOptions, where: str) -> I64:
    """Label number of each column of marks, by column name; unknown names are refused."""
    repeated = twice(names)
    if repeated is not None:
        raise SourceError(f"{where}: two labels are called {repeated!r}; rename one")
    if options.labels is None:
        return np.arange(len(names), dtype=np.int64)
    labelling = Labelling(options.labels)
    return np.array([labelling.index(name, where) for name in names], np.int64)


def numbered_names(n_columns: int, options: SourceOptions, where: str) -> tuple[str, ...] | None:
    """Names of the user for label columns without names; their count must agree."""
    if options.labels is not None and len(options.labels) != n_columns:
        raise SourceError(
            f"{where}: {n_columns} label columns, but --labels gives {len(options.labels)} names"
        )
    return options.labels


def check_marks(marks: NDArray[Any], where: str, row: str = "bag") -> None:
    """Refuse a matrix of marks unless all are 0 or 1, or all are −1 or +1."""
    signs = (marks == 1) | (marks == -1)
    bits = (marks == 1) | (marks == 0)
    # A bag may have only +1. So the more frequent of 0 and −1 in the matrix decides which is wrong.
    wrong = ~signs if signs.sum() >= bits.sum() else ~bits
    if wrong.any():
        at, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise SourceError(
            f"{where}, {row} {at}: the mark of label {column} is {marks[at, column]} "
            f"({int(wrong.sum())} such marks), expected 0 and 1, or -1 and +1"
        )


def labels_of_marks(
    marks: NDArray[Any], where: str, label_numbers: I64 | None = None
) -> tuple[I64, NDArray[np.int32]]:
    """Label offsets and sorted label numbers from the marks 1 in a matrix (bags, columns).

    ``label_numbers`` has the label number of each column, by default the number of the column.
    """
    check_marks(marks, where)
    if label_numbers is not None and len(label_numbers):
        order = np.argsort(label_numbers)
        marks, label_numbers = marks[:, order], label_numbers[order]
    bags, columns = np.nonzero(marks == 1)
    numbers = columns if label_numbers is None else label_numbers[columns]
    sizes = np.bincount(bags, minlength=len(marks))
    return from_sizes(sizes), numbers.astype(np.int32)
