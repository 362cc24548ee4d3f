"""``write_store``: bags in memory to a store, with labels in any usual form."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.bag_weights import COLUMN, checked_weights, repeated
from streammiml.bags.block import BagBlock, SparseRows, check_shapes
from streammiml.bags.kept_columns import KeptColumn, columns_of, common_column, storable
from streammiml.bags.label_forms import BagLabelNumbers, in_order, number_labels
from streammiml.bags.layout import ROW_DTYPES
from streammiml.bags.offsets import cuts_by_bytes, from_sizes
from streammiml.bags.staging import staging_for
from streammiml.bags.store import BagStore
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter
from streammiml.errors import StreammimlError

PART_BYTES = 32 << 20
"""Bytes of the bags of a part; copies of one part are held beside the bags themselves."""


def write_store(
    path: str | os.PathLike[str],
    bags: Any,
    labels: Any,
    *,
    ids: Sequence[str] | None = None,
    row_labels: Sequence[Sequence[str | int]] | None = None,
    label_names: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
    keep: Mapping[str, Sequence[Any]] | None = None,
    weights: Sequence[float] | None = None,
) -> BagStore:
    """Write bags that are in memory to a store, and open it.

    Parameters
    ----------
    path
        Folder or URL of the store. Its suffix, ``.zarr`` or ``.parquet``, decides the backend.
    bags
        Arrays or SciPy matrices of shape (rows, features), or one array (bags, rows, features). A
        vectorizer of scikit-learn makes such matrices: ``vectorizer.transform(sentences)``.
    labels
        A list of names or numbers for each bag; or an indicator matrix (bags, labels) of 0 and 1,
        dense, sparse, or a table whose columns are the names; None for bags without labels. Lists
        of 0 and 1 that may be either are refused. A pandas table or series whose index is not 0,
        1, 2, … is put in the order of ``ids``, which it must name.
    ids
        A name for each bag.
    row_labels
        For each bag a list with the label of each row: a name or number, −1 where it is unknown.
    label_names
        Names of all labels in order; by default the names that occur, in alphabetical order.
    feature_names
        Names of the features.
    keep
        Columns to keep beside the rows, such as coordinates, by name: for each bag an array (rows,)
        or (rows, width) of numbers, or a list of texts. They come back as ``store.kept(0, 2)``,
        ``store[0].kept`` and beside key instances; no model reads them.
    weights
        A weight for each bag, in the order of ``bags``: a number from 0. They are kept as the
        column ``weight``, which ``TrainConfig(bag_weights="weight")`` trains with.

    Examples
    --------
    >>> import numpy as np
    >>> bags = [np.eye(2), np.ones((3, 2))]
    >>> store = sm.write_store("bags.zarr", bags, [["sky"], ["sea", "sky"]], ids=["a", "b"])
    >>> store[1].id, store[1].labels.tolist(), store.label_names
    ('b', [0, 1], ['sea', 'sky'])
    >>> times = [[0, 1], [0, 1, 2]]
    >>> store = sm.write_store("times.zarr", bags, [["sky"], ["sea"]], keep={"time": times})
    >>> store[1].kept["time"].tolist()
    [0, 1, 2]
    """
    bags = list(bags)
    if not bags:
        raise StreammimlError("there are no bags to write")
    sparse = [hasattr(bag, "tocsr") for bag in bags]
    if any(sparse) and not all(sparse):
        raise StreammimlError(
            f"bag {sparse.index(not sparse[0])} is {'dense' if sparse[0] else 'sparse'}, unlike "
            "bag 0; give bags of one kind"
        )
    bags = [bag.tocsr() if sparse[0] else np.asarray(bag) for bag in bags]
    check_shapes(bags)
    texts = None if ids is None else _ids(ids, len(bags))
    numbers = number_labels(labels, len(bags), label_names, texts)
    row_labels = in_order(row_labels, texts, "row_labels")
    of_rows = None if row_labels is None else _row_numbers(row_labels, bags, numbers)
    keep = dict(keep or {})
    if weights is not None:
        if COLUMN in keep:
            raise StreammimlError(
                f"weights are kept as the column {COLUMN!r}, and keep has another one; rename that"
            )
        sizes = [bag.shape[0] for bag in bags]
        values = repeated(checked_weights(weights, len(bags)), sizes)
        keep[COLUMN] = values
    kept = {str(name): _kept(name, values, bags, texts) for name, values in keep.items()}
    columns = tuple(_column(name, values) for name, values in kept.items())
    spec = StoreSpec(
        n_features=bags[0].shape[1],
        dtype=_common_type(bags),
        sparse=sparse[0],
        n_labels=numbers.n_labels,
        label_names=numbers.names,
        feature_names=None if feature_names is None else tuple(feature_names),
        row_labels=of_rows is not None,
        bag_ids=texts is not None,
        kept=columns,
    )
    cuts = cuts_by_bytes(np.array([_n_bytes(bag) for bag in bags], np.int64), PART_BYTES)
    source = _hash_of(bags, numbers, texts, of_rows, kept)
    with BagWriter.begin(path, spec, source=source) as writer:
        try:
            for part, (start, stop) in enumerate(cuts):
                if not writer.has_part(part):
                    block = _block(bags, numbers, texts, of_rows, start, stop)
                    own = {
                        column.name: np.concatenate(kept[column.name][start:stop])
                        for column in spec.kept
                    }
                    writer.write_part(part, replace(block, kept=own))
            return writer.finish(len(cuts))
        except StreammimlError:
            # Only other bags can help, and with them these parts could not be resumed.
            shutil.rmtree(staging_for(os.fspath(path)), ignore_errors=True)
            raise


def _common_type(bags: Sequence[Any]) -> str:
    """The type of all bags, if a store has it; otherwise the narrowest that holds their types."""
    kinds = {np.dtype(bag.dtype) for bag in bags}
    odd = next((kind for kind in kinds if kind.kind not in "fiub"), None)
    if odd is not None:
        raise StreammimlError(f"bags have values of type {odd}, expected numbers")
    name = np.result_type(*kinds).name
    if name == "bool":
        return "uint8"
    return name if name in ROW_DTYPES else "float32"


def _n_bytes(bag: Any) -> int:
    return int(bag.data.nbytes + bag.indices.nbytes if hasattr(bag, "tocsr") else bag.nbytes)


def _ids(ids: Sequence[str], n_bags: int) -> list[str]:
    texts = [str(name) for name in ids]
    if len(texts) != n_bags:
        raise StreammimlError(f"{n_bags:,} bags, but {len(texts):,} ids")
    return texts


def _row_numbers(
    row_labels: Sequence[Sequence[str | int]], bags: Sequence[Any], numbers: BagLabelNumbers
) -> list[NDArray[np.int32]]:
    """Label numbers of the rows of each bag."""
    if len(row_labels) != len(bags):
        raise StreammimlError(f"{len(bags):,} bags, but row labels for {len(row_labels):,}")
    number_of = {name: number for number, name in enumerate(numbers.names or ())}
    out = []
    for number, (bag, own) in enumerate(zip(bags, row_labels, strict=True)):
        if len(own) != bag.shape[0]:
            raise StreammimlError(
                f"bag {number} has {bag.shape[0]} rows, but {len(own)} row labels"
            )
        unknown = [label for label in own if isinstance(label, str) and label not in number_of]
        if unknown:
            raise StreammimlError(
                f"bag {number} has a row of label {str(unknown[0])!r}, which no bag has; name all "
                "labels by label_names"
            )
        own = [
            number_of[label] if isinstance(label, str) else _whole(label, number) for label in own
        ]
        out.append(np.array(own, np.int32))
    return out


def _kept(name: str, values: Any, bags: Sequence[Any], ids: list[str] | None) -> list[NDArray[Any]]:
    """Values of a kept column for each bag."""
    per_bag = list(in_order(values, ids, f"keep[{name!r}]"))
    if len(per_bag) != len(bags):
        raise StreammimlError(f"{len(bags):,} bags, but {name!r} to keep of {len(per_bag):,}")
    out = []
    for number, (bag, own) in enumerate(zip(bags, per_bag, strict=True)):
        where = f"bag {number}: {name!r}"
        try:
            array = np.asarray(own)
        except ValueError as error:
            raise StreammimlError(f"{where} cannot be made an array: {error}") from None
        if array.ndim and len(array) != bag.shape[0]:
            raise StreammimlError(
                f"bag {number} has {bag.shape[0]} rows, but {len(array)} values of {name!r} to keep"
            )
        out.append(storable(array, where))
    return out


def _column(name: str, values: list[NDArray[Any]]) -> KeptColumn:
    """Type of a kept column that holds the values of all bags."""
    column = columns_of({name: values[0]})[0]
    for number, own in enumerate(values):
        of_bag = columns_of({name: own})[0]
        common = common_column(column, of_bag)
        if common is None:
            raise StreammimlError(
                f"{name!r} of bag {number} is {_kind(of_bag)}, unlike that of bag 0: "
                f"{_kind(column)}"
            )
        column = common
    return column


def _kind(column: KeptColumn) -> str:
    return f"{column.dtype}, {column.width} a row"


def _whole(label: Any, bag: int) -> int:
    """A number of a label; −1 is unknown."""
    label = label.item() if isinstance(label, np.generic) else label
    is_number = isinstance(label, int | float) and not isinstance(label, bool)
    if not is_number or label % 1 != 0 or not -1 <= label < 2**31:
        raise StreammimlError(
            f"bag {bag} has a row of label {label!r}; labels of rows are names or whole numbers, "
            "−1 where unknown"
        )
    return int(label)


def _hash_of(
    bags: Sequence[Any],
    numbers: BagLabelNumbers,
    ids: list[str] | None,
    row_labels: list[NDArray[np.int32]] | None,
    kept: Mapping[str, list[NDArray[Any]]],
) -> str:
    """Hash of everything that is written: a writer that was killed resumes only with the same."""
    digest = hashlib.blake2b(repr((numbers.names, ids)).encode(), digest_size=16)
    arrays: list[NDArray[Any]] = [numbers.offsets, numbers.indices, *(row_labels or [])]
    for name, values in kept.items():
        texts = [own.tolist() for own in values] if values[0].dtype == object else []
        digest.update(repr((name, texts)).encode())
        arrays += [] if texts else values
    for bag in bags:
        arrays += [bag.indptr, bag.indices, bag.data] if hasattr(bag, "tocsr") else [bag]
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


def _block(
    bags: Sequence[Any],
    numbers: BagLabelNumbers,
    ids: list[str] | None,
    row_labels: list[NDArray[np.int32]] | None,
    start: int,
    stop: int,
) -> BagBlock:
    own = bags[start:stop]
    first, last = int(numbers.offsets[start]), int(numbers.offsets[stop])
    rows: NDArray[Any] | SparseRows
    if hasattr(own[0], "tocsr"):
        rows = SparseRows.join([
            SparseRows(
                bag.indptr.astype(np.int64), bag.indices.astype(np.uint32), bag.data, bag.shape[1]
            )
            for bag in own
        ])  # fmt: skip
    else:
        rows = np.concatenate(own)
    return BagBlock(
        from_sizes([bag.shape[0] for bag in own]),
        rows,
        numbers.offsets[start : stop + 1] - first,
        numbers.indices[first:last],
        None if row_labels is None else np.concatenate(row_labels[start:stop]),
        None if ids is None else ids[start:stop],
    )
