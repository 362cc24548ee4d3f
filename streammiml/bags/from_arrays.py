"""Bags and labels that are in memory already, in the forms that estimators accept.

Bags become a :class:`MemoryBags`, labels become numbers, and :func:`in_form` turns predictions into
the form in which the labels were given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.bag_weights import COLUMN, checked_weights
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.layout import ROW_DTYPES
from streammiml.bags.memory import MemoryBags
from streammiml.bags.offsets import from_sizes
from streammiml.errors import StreammimlError

try:
    from scipy import sparse
except ModuleNotFoundError as error:
    # Estimators need scikit-learn, which depends on SciPy.
    raise StreammimlError(
        f"estimators need scikit-learn ({error}): pip install 'streammiml[sklearn]'"
    ) from None

I64 = NDArray[np.int64]

# Form in which labels were given; ``in_form`` returns the same form.
MATRIX, SPARSE_MATRIX, LISTS, ONE_EACH = "matrix", "sparse matrix", "lists", "one each"


class LabelNumbers(NamedTuple):
    """Labels as numbers; ``indices[offsets[i] : offsets[i + 1]]`` are those of bag i, unsorted."""

    offsets: I64
    indices: NDArray[np.int32]
    classes: NDArray[Any]
    form: str


def in_memory(block: BagBlock, labels: LabelNumbers, weights: Any = None) -> MemoryBags:
    """Join bags and labels into a store in memory; it keeps the weights of bags, if given."""
    _check_counts(len(block), labels)
    if weights is not None:
        values = checked_weights(weights, len(block))
        block = replace(block, kept={COLUMN: np.repeat(values, np.diff(block.bag_offsets))})
    numbered = labels.form in (MATRIX, SPARSE_MATRIX) and labels.classes.dtype.kind == "i"
    names = None if numbered else [str(name) for name in labels.classes.tolist()]
    block = replace(block, label_offsets=labels.offsets, label_indices=labels.indices)
    return MemoryBags(block, n_labels=len(labels.classes), label_names=names)


def _check_counts(n_bags: int, labels: LabelNumbers) -> None:
    if n_bags != len(labels.offsets) - 1:
        raise StreammimlError(f"there are {n_bags} bags, and labels for {len(labels.offsets) - 1}")


def block_of(bags: Any) -> BagBlock:
    """Convert bags of any accepted form to a block without labels."""
    if sparse.issparse(bags):
        return _unlabelled(bags, np.ones(bags.shape[0], np.int64))
    if isinstance(bags, list | tuple):
        return _joined(bags)
    array = np.asarray(bags)
    if array.ndim == 1 and array.dtype == object:
        return _joined(list(array))
    if array.ndim == 2:
        return _unlabelled(array, np.ones(len(array), np.int64))
    if array.ndim == 3:
        n_bags, n_rows, n_features = array.shape
        rows = array.reshape(n_bags * n_rows, n_features)
        return _unlabelled(rows, np.full(n_bags, n_rows))
    raise StreammimlError(
        f"bags are an array of {array.ndim} dimensions, expected a list of arrays (rows, features) "
        "or an array of 3 dimensions, or of 2 for bags of one row. Reshape your data"
    )


def feature_names_of(bags: Any) -> list[str] | None:
    """Names of the columns, if bags are data frames with named columns; else None.

    Bags whose columns have other names than those of the first, or another order, are refused.
    """
    if isinstance(bags, np.ndarray) and bags.dtype == object and bags.ndim == 1:
        bags = list(bags)
    frames = list(bags) if isinstance(bags, list | tuple) else [bags]
    names = [_column_names(frame) for frame in frames]
    for number, own in enumerate(names):
        if own is not None and names[0] is not None and own != names[0]:
            differing = next((a for a, b in zip(own, names[0], strict=False) if a != b), None)
            if differing is not None:
                place = own.index(differing)
                raise StreammimlError(
                    f"column {place} of bag {number} is {differing!r} and that of bag 0 "
                    f"{names[0][place]!r}; give all bags the same columns in the same order"
                )
    return names[0] if names and None not in names else None


def _column_names(frame: Any) -> list[str] | None:
    """Names of the columns of a data frame; None if it is none, or its columns have no names."""
    columns = getattr(frame, "columns", None)
    if columns is None or callable(columns):
        return None
    names = list(columns)
    return names if names and all(isinstance(name, str) for name in names) else None


def is_one_array(bags: Any) -> bool:
    """Whether bags are one matrix or data frame, whose rows are taken as bags of one row."""
    return _is_two_dimensional(bags)


def _joined(bags: Sequence[Any]) -> BagBlock:
    """Concatenate bags; all must have the features of the first, and be sparse if it is."""
    arrays = [bag if sparse.issparse(bag) else _array_of(bag, i) for i, bag in enumerate(bags)]
    for number, bag in enumerate(arrays):
        if bag.ndim != 2:
            raise StreammimlError(
                f"bag {number} has shape {bag.shape}, expected (rows, features); for bags of one "
                "row each give a 2-d array. Reshape your data"
            )
        if sparse.issparse(bag) != sparse.issparse(arrays[0]):
            raise StreammimlError(
                f"bag {number} is {'sparse' if sparse.issparse(bag) else 'dense'} and bag 0 is "
                "not; give bags of one kind"
            )
        if bag.shape[1] != arrays[0].shape[1]:
            raise StreammimlError(
                f"bag {number} has {bag.shape[1]} features and bag 0 has {arrays[0].shape[1]}; "
                "all bags need the same features"
            )
    sizes = np.array([bag.shape[0] for bag in arrays], np.int64)
    if not arrays:
        return _unlabelled(np.empty((0, 1), np.float32), sizes)
    if sparse.issparse(arrays[0]):
        return _unlabelled(sparse.vstack(arrays, format="csr"), sizes)
    return _unlabelled(np.concatenate(arrays), sizes)


def _array_of(bag: Any, number: int) -> NDArray[Any]:
    try:
        array = np.asarray(bag)
    except ValueError as error:
        raise StreammimlError(f"bag {number} cannot be made an array: {error}") from None
    return _numbers(array, f"bag {number} holds")


def _unlabelled(rows: Any, sizes: I64) -> BagBlock:
    """Make a block of bags of these sizes; refuse bags without rows and rows without features."""
    if not len(sizes):
        raise StreammimlError("there are no bags")
    if not sizes.all():
        raise StreammimlError(f"bag {int(sizes.argmin())} has no rows; leave it out")
    if not rows.shape[1]:
        raise StreammimlError(
            f"bag 0 has 0 feature(s) (shape={rows.shape}) while a minimum of 1 is required."
        )
    if sparse.issparse(rows):
        # A copy, because sum_duplicates changes the matrix in place.
        rows = rows.tocsr(copy=True)
        rows.sum_duplicates()
        columns = rows.indices.astype(np.uint32)
        offsets = rows.indptr.astype(np.int64)
        block_rows: Any = SparseRows(
            offsets, columns, _numbers(rows.data, "bags hold"), rows.shape[1]
        )
    else:
        block_rows = _numbers(rows, "bags hold")
    label_offsets = np.zeros(len(sizes) + 1, np.int64)
    return BagBlock(from_sizes(sizes), block_rows, label_offsets, np.empty(0, np.int32))


def _numbers(values: NDArray[Any], subject: str) -> NDArray[Any]:
    """Keep floats and the integer types of stores; convert other numbers to float32."""
    if values.dtype == object:
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise StreammimlError(f"{subject} values that are not numbers: {error}") from None
    if values.dtype.kind == "c":
        raise StreammimlError(f"{subject} {values.dtype} values. Complex data not supported")
    if values.dtype.kind not in "fiub":
        raise StreammimlError(f"{subject} {values.dtype} values, expected numbers")
    is_kept = values.dtype.name in ROW_DTYPES or values.dtype.kind == "f"
    return values if is_kept else values.astype(np.float32)


def is_matrix(y: Any) -> bool:
    """Whether labels are an indicator matrix; lists of lists are names or numbers of labels."""
    return sparse.issparse(y) or _is_two_dimensional(y)


def _is_two_dimensional(values: Any) -> bool:
    """Whether an array, a table, or what can be made an array has two dimensions."""
    if isinstance(values, list | tuple):
        return False
    return bool((values if hasattr(values, "ndim") else np.asarray(values)).ndim == 2)


def labels_of(y: Any, classes: NDArray[Any] | None, *, estimator: str = "MIMLfast") -> LabelNumbers:
    """Convert labels of any accepted form to numbers; ``classes`` defaults to those that occur."""
    if y is None:
        raise StreammimlError(f"{estimator} requires y to be passed, but the target y is None")
    if is_matrix(y):
        return _from_matrix(y, classes)
    entries = list(y if hasattr(y, "__iter__") else np.asarray(y))
    several = [isinstance(entry, list | tuple | set | frozenset | np.ndarray) for entry in entries]
    if any(several) and not all(several):
        odd = several.index(not several[0])
        raise StreammimlError(
            f"the labels of bag {odd} are {entries[odd]!r} and those of bag 0 {entries[0]!r}; give "
            "a list for every bag, or one label for every bag"
        )
    lists = entries if any(several) else [[entry] for entry in entries]
    named = [[_plain_label(label, bag) for label in labels] for bag, labels in enumerate(lists)]
    for bag, labels in enumerate(named):
        if len(set(labels)) != len(labels):
            raise StreammimlError(f"bag {bag} has a label twice: {labels!r}; {_AS_ARRAY}")
    if classes is None:
        classes = classes_of([label for labels in named for label in labels])
        if len(classes) > 1 and all(len(labels) == len(classes) for labels in named):
            raise StreammimlError(
                f"every bag has all {len(classes)} labels, so none can be told apart; {_AS_ARRAY}"
            )
    return _from_lists(named, classes, LISTS if any(several) else ONE_EACH)


def in_form(form: str, classes: NDArray[Any], chosen: NDArray[np.bool_]) -> Any:
    """Convert predictions (n, L) to the form in which labels were given, unless that is one each.

    The result is an indicator matrix, dense or sparse, or a list of tuples of names or numbers.
    """
    if form == MATRIX:
        return chosen.astype(np.int64)
    if form == SPARSE_MATRIX:
        return sparse.csr_matrix(chosen, dtype=np.int64)
    names = classes.tolist()
    return [tuple(names[label] for label in np.flatnonzero(row)) for row in chosen]


_AS_ARRAY = "an indicator matrix must be an array, as np.array(y) makes it"


def _from_matrix(y: Any, classes: NDArray[Any] | None) -> LabelNumbers:
    """Convert an indicator matrix to numbers of labels."""
    form = SPARSE_MATRIX if sparse.issparse(y) else MATRIX
    values: Any = y.tocsr() if form == SPARSE_MATRIX else np.asarray(y)
    if values.dtype.kind not in "biuf":
        raise StreammimlError(
            f"y is a matrix of {values.dtype}, expected 0 and 1; give names as lists, y.tolist()"
        )
    entries = values.data if form == SPARSE_MATRIX else values
    wrong = entries[(entries != 0) & (entries != 1)]
    if wrong.size:
        raise StreammimlError(
            f"y holds {wrong[0]}, and an indicator matrix holds 0 and 1; give numbers "
            "of labels as a list for each bag"
        )
    if classes is not None and values.shape[1] != len(classes):
        raise StreammimlError(f"y has {values.shape[1]} columns for {len(classes)} labels")
    names = _column_names(y)
    if classes is not None and names is not None and classes.dtype.kind == "U":
        for place, (name, known) in enumerate(zip(names, classes.tolist(), strict=True)):
            if name != known:
                raise StreammimlError(
                    f"column {place} of y is {name!r} and label {place} is {known!r}; give the "
                    "columns in the order of classes_"
                )
    bags, labels = values.nonzero()
    return LabelNumbers(
        from_sizes(np.bincount(bags, minlength=values.shape[0])),
        labels.astype(np.int32),
        _classes_of_columns(y) if classes is None else classes,
        form,
    )


def _classes_of_columns(y: Any) -> NDArray[Any]:
    """Names of the columns of a data frame; otherwise their numbers."""
    names = _column_names(y)
    return np.arange(y.shape[1]) if names is None else np.array(names)


def _from_lists(named: list[list[Any]], classes: NDArray[Any], form: str) -> LabelNumbers:
    number_of_label = {label: number for number, label in enumerate(classes.tolist())}
    for bag, labels in enumerate(named):
        for label in labels:
            if label not in number_of_label:
                raise StreammimlError(
                    f"bag {bag} has the label {label!r}, which is none of the {len(classes)} "
                    "known labels; to include labels that no training bag has, train with an "
                    "indicator matrix; to add labels later, give classes to partial_fit"
                )
    indices = [number_of_label[label] for labels in named for label in labels]
    return LabelNumbers(
        from_sizes([len(labels) for labels in named]), np.array(indices, np.int32), classes, form
    )


def classes_of(labels: Iterable[Any]) -> NDArray[Any]:
    """Sort the distinct labels."""
    distinct = {_plain_label(label) for label in labels}
    names = sorted(label for label in distinct if isinstance(label, str))
    numbers = sorted(label for label in distinct if not isinstance(label, str))
    if names and numbers:
        raise StreammimlError(
            f"labels are both names, such as {names[0]!r}, and numbers, such as {numbers[0]}; "
            "give one kind"
        )
    return np.array(names) if names else np.array(numbers, np.int64)


def _plain_label(label: Any, bag: int | None = None) -> str | int:
    """Convert a label to a Python string or integer."""
    label = label.item() if isinstance(label, np.generic) else label
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if isinstance(label, bool) or not isinstance(label, str | int):
        where = "classes have" if bag is None else f"bag {bag} has"
        shown = repr(label) if isinstance(label, float | bytes) else type(label).__name__
        raise StreammimlError(
            f"{where} a label that is {shown}; labels are names or whole numbers, and {_AS_ARRAY}"
        )
    return label
