"""Labels of bags in memory, in the forms that people have: lists, a matrix, or a table of 0 and 1.

An indicator matrix must be an array: the list ``[0, 1]`` may be a row of a matrix or two numbers of
labels, so lists that can be read in both ways are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.offsets import from_sizes
from streammiml.errors import StreammimlError

_AS_ARRAY = "an indicator matrix must be an array: np.array(labels)"


class BagLabelNumbers(NamedTuple):
    """Label numbers of all bags, end to end, with the names or the number of labels."""

    offsets: NDArray[np.int64]
    indices: NDArray[np.int32]
    names: tuple[str, ...] | None
    n_labels: int | None


def number_labels(
    labels: Any,
    n_bags: int,
    names: Sequence[str] | None = None,
    ids: Sequence[str] | None = None,
) -> BagLabelNumbers:
    """Convert labels of any form to numbers; ``names`` fixes names and their order.

    Without ``names``, names are numbered in alphabetical order, numbers stay as they are, and the
    columns of a table are the names. A table with an index is put in the order of ``ids``.
    """
    labels = in_order(labels, ids, "labels")
    if labels is None:
        offsets = np.zeros(n_bags + 1, np.int64)
        return BagLabelNumbers(offsets, np.empty(0, np.int32), *_known(names, 0))
    if len(labels) != n_bags if not hasattr(labels, "shape") else labels.shape[0] != n_bags:
        count = labels.shape[0] if hasattr(labels, "shape") else len(labels)
        raise StreammimlError(f"{n_bags:,} bags, but labels for {count:,}")
    if hasattr(labels, "columns") and hasattr(labels, "to_numpy"):
        columns = [str(column) for column in labels.columns]
        if names is not None and sorted(names) != sorted(columns):
            raise StreammimlError("label_names differ from the columns of labels")
        order = columns if names is None else list(names)
        matrix = labels.to_numpy()[:, [columns.index(name) for name in order]]
        return _from_matrix(matrix, order)
    if hasattr(labels, "tocsr") or (isinstance(labels, np.ndarray) and labels.ndim == 2):
        return _from_matrix(labels, names)
    is_one_each = all(isinstance(own, str | int | np.integer) for own in labels)
    lists = [_as_list(own, bag) for bag, own in enumerate(labels)]
    if not is_one_each:
        _refuse_rows_of_marks(lists, names)
    return _from_lists(lists, names)


def in_order(labels: Any, ids: Sequence[str] | None, what: str) -> Any:
    """Put a pandas table or series in the order of ``ids``; refuse labels that have no order."""
    if isinstance(labels, Mapping | Set | str):
        raise StreammimlError(
            f"{what} are a {type(labels).__name__}, expected the labels of each bag in the order "
            "of the bags: [labels_of[id] for id in ids]"
        )
    if not (hasattr(labels, "index") and hasattr(labels, "iloc")):
        return labels
    keys = [str(key) for key in labels.index]
    if labels.index.tolist() == list(range(len(keys))):
        return labels
    by_place = f"{what}.reset_index(drop=True) goes by place"
    if ids is None:
        raise StreammimlError(
            f"{what} have an index, {keys[0]!r} first; give ids, by which it is ordered, or "
            f"{by_place}"
        )
    place = {key: number for number, key in enumerate(keys)}
    if len(place) != len(keys):
        twice = next(key for number, key in enumerate(keys) if place[key] != number)
        raise StreammimlError(f"the index of {what} names {twice!r} twice; {by_place}")
    known = {*ids}
    if known == place.keys():
        return labels.iloc[[place[name] for name in ids]]
    missing = next((name for name in ids if name not in place), None)
    differs = f"it lacks {missing!r}"
    if missing is None:
        differs = f"{next(key for key in keys if key not in known)!r} is none of them"
    raise StreammimlError(
        f"the index of {what} differs from ids: {differs}; give {what} of the same ids, or "
        f"{by_place}"
    )


def _known(names: Sequence[str] | None, count: int) -> tuple[tuple[str, ...] | None, int | None]:
    return (None, count) if names is None else (tuple(names), None)


def _from_matrix(matrix: Any, names: Sequence[str] | None) -> BagLabelNumbers:
    is_sparse = hasattr(matrix, "tocsr")
    values: Any = matrix.tocsr() if is_sparse else np.asarray(matrix)
    entries: Any = values.data if is_sparse else values
    if entries.dtype == object:
        with suppress(TypeError, ValueError):
            entries = values = entries.astype(np.float64)
    if entries.dtype.kind not in "biuf":
        raise StreammimlError(
            f"labels are a matrix of {entries.dtype}, expected 0 and 1; give names as a list for "
            "each bag"
        )
    wrong: NDArray[Any] = entries[(entries != 0) & (entries != 1)]
    if wrong.size:
        raise StreammimlError(
            f"labels are a matrix that holds {wrong[0]}, expected 0 and 1; give numbers of labels "
            "as a list for each bag"
        )
    n_labels = int(values.shape[1])
    if names is not None and len(names) != n_labels:
        raise StreammimlError(f"labels have {n_labels} columns for {len(names)} label names")
    bags, numbers = values.nonzero()
    order = np.lexsort((numbers, bags))
    offsets = from_sizes(np.bincount(bags, minlength=values.shape[0]))
    return BagLabelNumbers(offsets, numbers[order].astype(np.int32), *_known(names, n_labels))


def _as_list(own: Any, bag: int) -> list[str | int]:
    """Labels of one bag, as Python texts and integers."""
    if isinstance(own, str | int | np.integer) and not isinstance(own, bool):
        own = [own]
    if not isinstance(own, list | tuple | set | frozenset | np.ndarray):
        raise StreammimlError(
            f"the labels of bag {bag} are {type(own).__name__}; give a list of names or numbers "
            "for each bag, or an indicator matrix"
        )
    labels = [label.item() if isinstance(label, np.generic) else label for label in own]
    for label in labels:
        if isinstance(label, bool) or not isinstance(label, str | int):
            raise StreammimlError(
                f"bag {bag} has the label {label!r}; labels are names or whole numbers, and "
                f"{_AS_ARRAY}"
            )
    return labels


def _from_lists(lists: list[list[str | int]], names: Sequence[str] | None) -> BagLabelNumbers:
    different = {label for labels in lists for label in labels}
    texts = sorted(label for label in different if isinstance(label, str))
    numbers = sorted(label for label in different if not isinstance(label, str))
    if texts and numbers:
        raise StreammimlError(
            f"labels are both names, such as {texts[0]!r}, and numbers, such as {numbers[0]}; give "
            "one kind"
        )
    if names is None and texts:
        names = texts
    number_of = {name: number for number, name in enumerate(names or ())}
    unknown = next((name for name in texts if name not in number_of), None)
    if unknown is not None:
        raise StreammimlError(f"the label {unknown!r} is not among the label_names")
    if numbers and (numbers[0] < 0 or (names is not None and numbers[-1] >= len(names))):
        wrong = numbers[0] if numbers[0] < 0 else numbers[-1]
        upto = "" if names is None else f" to {len(names) - 1}"
        raise StreammimlError(f"label {wrong} is outside of the numbers 0{upto}")
    own = [
        sorted(label if isinstance(label, int) else number_of[label] for label in labels)
        for labels in lists
    ]
    for bag, labels in enumerate(own):
        if len(set(labels)) != len(labels):
            raise StreammimlError(f"bag {bag} has a label twice: {lists[bag]!r}; {_AS_ARRAY}")
    flat = np.array([label for labels in own for label in labels], np.int64)
    if len(flat) and flat.max() >= 2**31:
        raise StreammimlError(f"label {flat.max()} is more than a label number may be")
    offsets = from_sizes([len(labels) for labels in own])
    return BagLabelNumbers(
        offsets, flat.astype(np.int32), None if names is None else tuple(names), None
    )


def _refuse_rows_of_marks(lists: list[list[str | int]], names: Sequence[str] | None) -> None:
    """Refuse lists of 0 and 1 that all have one length, which may be the number of labels."""
    sizes = {len(labels) for labels in lists}
    if len(sizes) != 1 or not all({0, 1}.issuperset(own) for own in lists):
        return
    size = sizes.pop()
    if size and (names is None or len(names) == size):
        raise StreammimlError(
            "labels are lists of 0 and 1 of one length: rows of an indicator matrix, or numbers of "
            f"labels? {_AS_ARRAY}; numbers may be given as names: [['0'], ['1'], …]"
        )
