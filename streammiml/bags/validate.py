"""Validation: check blocks before they enter a store, and convert them to its types."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.kept_columns import TEXT, Kept, KeptColumn, as_texts, check_columns
from streammiml.bags.layout import (
    ARRAY_DTYPES,
    CHUNK_BYTES,
    CODECS,
    FORMATS,
    MAX_FEATURES,
    ROW_DTYPES,
    array_names,
)
from streammiml.errors import StoreError, UnfitValueError, unknown

I64 = NDArray[np.int64]
MAX_LABELS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """Settings of a store, fixed before the first bag is written."""

    n_features: int
    dtype: str = "float32"
    """Type of the stored values: float32, float16, uint8, int8 or int16."""
    sparse: bool = False
    n_labels: int | None = None
    """None: the number of label names; without names, the highest label that occurs plus one."""
    label_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    row_labels: bool = False
    bag_ids: bool = False
    codec: str = "auto"
    """``none``, ``lz4`` or ``zstd``; auto: none for dense float rows, else lz4."""
    chunk_bytes: int = CHUNK_BYTES
    """Approximate bytes of a chunk, the unit of one read."""
    empty_bags: str = "refuse"
    """``refuse``, or ``drop``: leave out bags without rows, and count them."""
    kept: tuple[KeptColumn, ...] = ()
    """Columns that are stored beside the rows; they are put in the order of their names."""

    def __post_init__(self) -> None:
        # Frozen: a record in JSON gives columns as lists, in any order.
        columns = check_columns([KeptColumn(*column) for column in self.kept])
        object.__setattr__(self, "kept", columns)
        if not 1 <= self.n_features <= MAX_FEATURES:
            raise StoreError(f"n_features must be 1 to {MAX_FEATURES}, got {self.n_features}")
        if self.dtype not in ROW_DTYPES:
            raise unknown("dtype", self.dtype, ROW_DTYPES)
        if self.codec not in ("auto", *CODECS):
            raise unknown("codec", self.codec, ("auto", *CODECS))
        if self.empty_bags not in ("refuse", "drop"):
            raise unknown("policy for empty bags", self.empty_bags, ("refuse", "drop"))
        if self.chunk_bytes < 1:
            raise StoreError(f"chunk_bytes must be at least 1, got {self.chunk_bytes}")
        count: object = self.n_labels
        if count is not None and (type(count) is not int or not 0 <= count < 2**31):
            raise StoreError(
                f"n_labels must be a whole number from 0 to {2**31 - 1}, got {count!r}"
            )
        for kind, names, count in (
            ("label", self.label_names, self.n_labels),
            ("feature", self.feature_names, self.n_features),
        ):
            if names is None:
                continue
            if count is not None and len(names) != count:
                raise StoreError(f"{len(names)} {kind} names were given for {count} {kind}s")
            if len(set(names)) != len(names):
                raise StoreError(f"two {kind}s have the same name: {_first_repeated(names)!r}")

    @property
    def arrays(self) -> dict[str, tuple[str, int]]:
        """Type and width of each array of the store, in the order in which they are written."""
        names = array_names(
            sparse=self.sparse,
            row_labels=self.row_labels,
            bag_ids=self.bag_ids,
            kept=self.kept,
        )
        kept = {name: kind for column in self.kept for name, kind in column.arrays.items()}
        return {
            name: kept.get(name)
            or (ARRAY_DTYPES.get(name, self.dtype), self.n_features if name == "rows" else 1)
            for name in names
        }

    @property
    def labels_known(self) -> int | None:
        """Number of labels, given as ``n_labels`` or by names; None if neither is given."""
        return self.n_labels if self.label_names is None else len(self.label_names)

    @property
    def resolved_codec(self) -> str:
        """The codec; ``auto`` is replaced by the codec that it stands for."""
        if self.codec != "auto":
            return self.codec
        return "lz4" if self.sparse or not self.dtype.startswith("float") else "none"


def backend_of(destination: str) -> str:
    """Name of the backend, from the suffix of a store."""
    suffix = destination.rstrip("/").rsplit(".", 1)[-1]
    if suffix not in FORMATS:
        suffixes = " or ".join(f".{name}" for name in FORMATS)
        raise StoreError(f"{destination}: a store's name ends in {suffixes}")
    return suffix


def clean(block: BagBlock, spec: StoreSpec, where: str) -> tuple[BagBlock, int]:
    """Check a block; return it in the types of the store, and the number of dropped empty bags.

    ``where`` is the beginning of error messages. They name a bag by its id if it has one.
    """
    _check_offsets(block.bag_offsets, len(block.rows), "bag", where)
    _check_offsets(block.label_offsets, len(block.label_indices), "label", where)
    if len(block.label_offsets) != len(block.bag_offsets):
        raise StoreError(
            f"{where}: {len(block)} bags but labels for {len(block.label_offsets) - 1}"
        )
    block = replace(block, bag_offsets=block.bag_offsets.astype(np.int64, copy=False))
    _check_ids(block, spec, where)
    block, dropped = _without_empty(block, spec, where)
    rows = _sparse(block, spec, where) if spec.sparse else _dense(block, spec, where)
    return (
        replace(
            block,
            rows=rows,
            label_offsets=block.label_offsets.astype(np.int64, copy=False),
            label_indices=_labels(block, spec, where),
            row_labels=_row_labels(block, spec, where),
            kept=_kept(block, spec, where),
        ),
        dropped,
    )


def _check_offsets(offsets: NDArray[Any], end: int, kind: str, where: str) -> None:
    if len(offsets) < 1 or offsets[0] != 0:
        raise StoreError(f"{where}: {kind} offsets must begin with 0")
    # Not np.diff: differences of unsigned numbers are never negative.
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        item = "row" if kind == "row" else "bag"
        raise StoreError(f"{where}: {kind} offsets fall at {item} {int(falls.argmax())}")
    if offsets[-1] != end:
        raise StoreError(f"{where}: {kind} offsets end at {offsets[-1]}, expected {end}")


def _check_ids(block: BagBlock, spec: StoreSpec, where: str) -> None:
    if spec.bag_ids != (block.bag_ids is not None):
        raise StoreError(f"{where}: {_differs('bag ids', in_store=spec.bag_ids)}")
    if block.bag_ids is not None and len(block.bag_ids) != len(block):
        raise StoreError(f"{where}: {len(block)} bags but {len(block.bag_ids)} ids")
    for bag, name in enumerate(block.bag_ids or []):
        if not isinstance(name, str) or not _is_text(name):
            raise StoreError(f"{where}: the id of bag {bag} is {name!r}, expected text")


def _differs(kind: str, *, in_store: bool) -> str:
    if in_store:
        return f"the block lacks {kind}, but the store was begun with {kind}"
    return f"the block has {kind}, but the store was begun without"


def _is_text(name: str) -> bool:
    try:
        return name.encode() is not None
    except UnicodeEncodeError:
        return False


def _without_empty(block: BagBlock, spec: StoreSpec, where: str) -> tuple[BagBlock, int]:
    empty = np.diff(block.bag_offsets) == 0
    n_empty = int(empty.sum())
    if not n_empty:
        return block, 0
    if spec.empty_bags == "refuse":
        first = _bag(block, int(empty.argmax()))
        raise StoreError(
            f"{where}: {n_empty} bags have no rows, the first is {first}; "
            "--empty-bags drop leaves them out"
        )
    return block.take(np.flatnonzero(~empty)), n_empty


def _bag(block: BagBlock, bag: int) -> str:
    return f"bag {bag}" if block.bag_ids is None else f"bag {block.bag_ids[bag]!r}"


def _bag_of_row(block: BagBlock, row: int) -> str:
    bag = int(np.searchsorted(block.bag_offsets, row, "right")) - 1
    return f"{_bag(block, bag)}, row {row - int(block.bag_offsets[bag])}"


def _dense(block: BagBlock, spec: StoreSpec, where: str) -> NDArray[Any]:
    if isinstance(block.rows, SparseRows):
        raise StoreError(f"{where}: rows are sparse, but the store was begun dense")
    if block.rows.ndim != 2 or block.rows.shape[1] != spec.n_features:
        raise StoreError(
            f"{where}: rows have {block.rows.shape[-1]} values, expected {spec.n_features}"
        )
    width = spec.n_features
    return _values(
        np.ascontiguousarray(block.rows), spec, where, lambda at: _bag_of_row(block, at // width)
    )


def _sparse(block: BagBlock, spec: StoreSpec, where: str) -> SparseRows:
    rows = block.rows
    if not isinstance(rows, SparseRows):
        raise StoreError(f"{where}: rows are dense, but the store was begun sparse")
    _check_offsets(rows.offsets, len(rows.columns), "row", where)
    if len(rows.columns) != len(rows.values):
        raise StoreError(f"{where}: {len(rows.columns)} columns but {len(rows.values)} values")

    def row_at(index: int) -> str:
        return _bag_of_row(block, int(np.searchsorted(rows.offsets, index, "right")) - 1)

    if len(rows.columns) and rows.columns.dtype.kind not in "iu":
        raise StoreError(f"{where}: columns are {rows.columns.dtype}, expected integers")
    if len(rows.columns) and (rows.columns.min() < 0 or rows.columns.max() >= spec.n_features):
        outside = (rows.columns < 0) | (rows.columns >= spec.n_features)
        at = int(outside.argmax())
        raise StoreError(
            f"{where}, {row_at(at)}: feature {rows.columns[at]} is outside "
            f"0 to {spec.n_features - 1}"
        )
    columns = rows.columns.astype(np.uint32, copy=False)
    offsets = rows.offsets.astype(np.int64, copy=False)
    order = _order_within(offsets, columns, lambda at: f"{where}, {row_at(at)}: feature")
    values = _values(rows.values, spec, where, row_at)
    if order is not None:
        columns, values = columns[order], values[order]
    return SparseRows(offsets, columns, values, spec.n_features)


def _values(values: NDArray[Any], spec: StoreSpec, where: str, row_at: Any) -> NDArray[Any]:
    """Convert values to the dtype of the store; ``row_at`` names the row of a flat index."""
    if values.dtype.kind not in "fiub":
        raise StoreError(f"{where}: values are {values.dtype}, expected numbers")
    if values.size and values.dtype.kind == "f":
        # Minimum and maximum propagate NaN and infinity, and are faster than a mask.
        extremes = values.min(), values.max()
        if not np.isfinite(extremes).all():
            wrong = ~np.isfinite(values).reshape(-1)
            first = int(wrong.argmax())
            raise StoreError(
                f"{where}, {row_at(first)}: value is {values.reshape(-1)[first]} "
                f"({int(wrong.sum())} such values); only finite numbers can be stored"
            )
    # Compare types, not names: a type of the other byte order has the same name.
    if values.dtype == np.dtype(spec.dtype):
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        stored = values.astype(spec.dtype)
    is_float = spec.dtype.startswith("float")
    wrong = ~np.isfinite(stored) if is_float else stored != values
    # Floats may be rounded, but integers must be stored exactly.
    if is_float and values.dtype.kind in "iu" and not np.can_cast(values.dtype, spec.dtype):
        wrong |= stored.astype(np.float64) != values
    if wrong.any():
        first = int(wrong.reshape(-1).argmax())
        raise UnfitValueError(
            f"{where}, {row_at(first)}: {values.reshape(-1)[first]} does not fit into {spec.dtype}"
        )
    return stored


def _labels(block: BagBlock, spec: StoreSpec, where: str) -> NDArray[np.int32]:
    labels, offsets = block.label_indices, block.label_offsets

    def bag_at(index: int) -> str:
        return f"{where}, {_bag(block, int(np.searchsorted(offsets, index, 'right')) - 1)}"

    if len(labels) and labels.dtype.kind not in "iu":
        raise StoreError(f"{where}: label indices are {labels.dtype}, expected integers")
    limit = MAX_LABELS if spec.labels_known is None else spec.labels_known
    outside = (labels < 0) | (labels >= limit)
    if outside.any():
        at = int(outside.argmax())
        raise StoreError(f"{bag_at(at)}: label {labels[at]} is outside 0 to {limit - 1}")
    order = _order_within(offsets, labels, lambda at: f"{bag_at(at)}: label")
    return (labels if order is None else labels[order]).astype(np.int32, copy=False)


def _row_labels(block: BagBlock, spec: StoreSpec, where: str) -> NDArray[np.int32] | None:
    if spec.row_labels != (block.row_labels is not None):
        raise StoreError(f"{where}: {_differs('row labels', in_store=spec.row_labels)}")
    if block.row_labels is None:
        return None
    labels = block.row_labels
    if len(labels) and labels.dtype.kind not in "iu":
        raise StoreError(f"{where}: row labels are {labels.dtype}, expected integers")
    if len(labels) != len(block.rows):
        raise StoreError(f"{where}: {len(block.rows)} rows but {len(labels)} row labels")
    limit = MAX_LABELS if spec.labels_known is None else spec.labels_known
    outside = (labels < -1) | (labels >= limit)
    if outside.any():
        at = int(outside.argmax())
        row = _bag_of_row(block, at)
        raise StoreError(f"{where}, {row}: row label {labels[at]} is outside -1 to {limit - 1}")
    return labels.astype(np.int32, copy=False)


def _kept(block: BagBlock, spec: StoreSpec, where: str) -> Kept:
    """Kept columns in the types of the store."""
    names = {column.name for column in spec.kept}
    for name in sorted(names ^ block.kept.keys()):
        raise StoreError(
            f"{where}: {_differs(f'the kept column {name!r}', in_store=name in names)}"
        )
    return {column.name: _kept_values(block, column, where) for column in spec.kept}


def _kept_values(block: BagBlock, column: KeptColumn, where: str) -> NDArray[Any]:
    values = block.kept[column.name]
    if len(values) != len(block.rows):
        raise StoreError(
            f"{where}: {len(block.rows)} rows but {len(values)} values of {column.name!r}"
        )
    if column.dtype == TEXT:
        return _kept_texts(block, column.name, where)
    if values.dtype.kind not in "fiub":
        kind = TEXT if values.dtype.kind in "OUT" else values.dtype
        raise StoreError(f"{where}: {column.name!r} holds {kind}, expected {column.dtype}")
    width = int(np.prod(values.shape[1:]))
    if width != column.width:
        raise StoreError(
            f"{where}: {column.name!r} has {width} values a row, expected {column.width}"
        )
    values = np.ascontiguousarray(values).reshape((-1, width) if width > 1 else -1)
    if values.dtype == np.dtype(column.dtype):
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        stored = values.astype(column.dtype)
        is_same = (stored.astype(values.dtype) == values) & ((stored < 0) == (values < 0))
        is_same |= np.isnan(stored) & np.isnan(values)
    if not is_same.all():
        at = int((~is_same).reshape(-1).argmax())
        raise StoreError(
            f"{where}, {_bag_of_row(block, at // column.width)}: {column.name!r} is "
            f"{values.reshape(-1)[at]}, which {column.dtype} cannot hold"
        )
    return stored


def _kept_texts(block: BagBlock, name: str, where: str) -> NDArray[Any]:
    values = block.kept[name]
    if values.dtype.kind not in "OUT" or values.ndim != 1:
        raise StoreError(f"{where}: {name!r} holds {values.dtype}, expected text")
    texts = values.tolist()
    for row, text in enumerate(texts):
        if not isinstance(text, str) or not _is_text(text):
            at = _bag_of_row(block, row)
            raise StoreError(f"{where}, {at}: {name!r} is {text!r:.60}, expected text")
    return as_texts(texts)


def _order_within(offsets: I64, items: NDArray[Any], name: Any) -> I64 | None:
    """Order that sorts items within their groups, None if they are sorted; refuse repeated items.

    ``name`` returns the beginning of the message, given the index of an item.
    """
    if len(items) < 2:
        return None
    starts = np.zeros(len(items), bool)
    starts[offsets[:-1][offsets[:-1] < len(items)]] = True
    steps = items[1:].astype(np.int64) - items[:-1]
    if bool(((steps > 0) | starts[1:]).all()):
        return None
    group = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.lexsort((items, group)).astype(np.int64)
    same = (np.diff(items[order].astype(np.int64)) == 0) & (np.diff(group[order]) == 0)
    if same.any():
        at = int(order[int(same.argmax()) + 1])
        raise StoreError(f"{name(at)} {items[at]} comes twice")
    return order


def _first_repeated(names: tuple[str, ...]) -> str:
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]


def refuse_unlike_stored(block: BagBlock, spec: StoreSpec, where: str) -> None:
    """Refuse a block of another program's store that our writer would refuse or reorder."""
    cleaned, _ = clean(block, spec, where)
    if not np.array_equal(cleaned.label_indices, block.label_indices):
        raise StoreError(f"{where}: labels of a bag must be in rising order")
    # Kernels merge the columns of two rows, which must be sorted.
    if not np.array_equal(_columns(cleaned), _columns(block)):
        raise StoreError(f"{where}: columns of a row must be in rising order")


def _columns(block: BagBlock) -> NDArray[Any]:
    """Columns of sparse rows; empty for dense rows."""
    rows = block.rows
    return rows.columns if isinstance(rows, SparseRows) else np.empty(0, np.uint32)


def names_in(attributes: dict[str, Any], key: str) -> tuple[str, ...] | None:
    """Names of labels or features in the attributes of a store; None if there are none."""
    names = attributes.get(key)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise StoreError(f"{key} of a store must be a list of texts, got {names!r:.60}")
    return tuple(names)
