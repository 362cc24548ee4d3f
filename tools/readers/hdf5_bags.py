"""HDF5 files: the flat arrays of an npz as datasets, or one group for each bag.

Flat: ``instances`` and ``offsets`` (or CSR ``data``, ``indices``, ``indptr``), ``label_indptr`` and
``label_indices`` or a matrix of marks, all in the root or all in one group. Groups: ``instances``
and ``labels`` in each group; the name of the group is the id of the bag. Columns to keep are
further datasets, in the root or in each group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import TEXT, KeptColumn, as_texts, common_column
from streammiml.bags.layout import ROW_DTYPES
from streammiml.bags.offsets import cuts_by_bytes, from_sizes
from streammiml_tools.readers.base import Limits, Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.hdf5_access import (
    check_chunks,
    child,
    is_text,
    open_hdf5,
    read_texts,
)
from streammiml_tools.readers.kept_cells import check_names, kept_column, storable_values
from streammiml_tools.readers.labelling import Labelling, labelling_in, labelling_of
from streammiml_tools.readers.matlab_layout import narrowest
from streammiml_tools.readers.memory_checks import HeldBytes, check_bag
from streammiml_tools.readers.npz import (
    BLOCK_BYTES,
    NAMES,
    ArrayValues,
    StoredArray,
    read_arrays,
    scan_arrays,
)

BAG_LABELS = ("labels", "label", "label_indices", "targets", "y", "Y")
LABEL_BYTES = 1 << 20
"""Upper limit in bytes for the labels of one bag."""
MEMBER_BYTES = 600
"""Memory for the description of a bag that is a group."""


class _Dataset(StoredArray):
    """A dataset that is one of the flat arrays."""

    def open(self) -> ArrayValues:
        return _Elements(self)

    def check(self, limits: Limits) -> None:
        path = _path_of(self)
        with open_hdf5(path) as file:
            check_chunks(path, _item_at(path, file, self.member or ""), limits)


class _Elements(ArrayValues):
    """Elements of a dataset; the file is open only during a read."""

    def __getitem__(self, bounds: tuple[int, int]) -> NDArray[Any]:
        path, array = _path_of(self.array), self.array
        with open_hdf5(path) as file:
            dataset = _item_at(path, file, array.member or "")
            if h5py.check_string_dtype(dataset.dtype) is None:
                return np.asarray(dataset[slice(*bounds)])
            if len(array.shape) != 1:
                raise SourceError(f"{array.name}: texts of shape {array.shape}, expected one row")
            return np.array(read_texts(path, dataset, *bounds), object)

    def _scalar(self) -> NDArray[Any]:
        path = _path_of(self.array)
        with open_hdf5(path) as file:
            return np.asarray(_item_at(path, file, self.array.member or "")[()])


def _path_of(array: StoredArray) -> Path:
    assert isinstance(array.path, Path), "HDF5 is only read from disk"
    return array.path


def _item_at(path: Path, file: Any, name: str) -> Any:
    item = file
    for part in name.split("/"):
        item = child(path, item, part)
    return item


def _arrays(paths: Sequence[Path], options: SourceOptions) -> dict[str, StoredArray]:
    """Datasets of a file by path (``group/name``), or by name if all are in one group."""
    del options  # Only the headers of datasets are read here.
    if len(paths) > 1:
        raise SourceError(f"{paths[1]}: arrays come from one HDF5 file; convert {paths[0]} alone")
    arrays: dict[str, StoredArray] = {}
    with open_hdf5(paths[0]) as file:
        for name in _names(paths[0], file):
            dataset = _item_at(paths[0], file, name)
            text = h5py.check_string_dtype(dataset.dtype) is not None
            kind = np.dtype("U1") if text else dataset.dtype
            shape, where = dataset.shape or (), f"{paths[0]}:{name}"
            arrays[name] = _Dataset(where, paths[0], name, shape, kind, False, 0, False)
    groups = {name.rpartition("/")[0] for name in arrays}
    if len(groups) == 1:
        return {name.rpartition("/")[2]: array for name, array in arrays.items()}
    return arrays


def _names(path: Path, group: Any, before: str = "") -> Iterator[str]:
    """Yield the paths of the datasets in a group and in the groups below."""
    for name in group:
        item = child(path, group, name)
        if isinstance(item, h5py.Dataset):
            yield before + name
        elif isinstance(item, h5py.Group) and before.count("/") < 2:
            yield from _names(path, item, f"{before}{name}/")


@dataclass(frozen=True, slots=True)
class _BagGroup:
    """A bag that is a group: its name, and the names, shape and type of its datasets."""

    name: str
    rows: str
    labels: str | None
    shape: tuple[int, int]
    store: str


class _BagGroups(NamedTuple):
    bags: tuple[_BagGroup, ...]
    labels: frozenset[str | int]
    row_labels: str | None
    kept: tuple[KeptColumn, ...]
    """Types that hold the columns to keep of all bags."""


def _is_groups(path: Path) -> bool:
    """Whether every item of the root is a group with rows, and so a bag."""
    with open_hdf5(path) as file:
        items = [child(path, file, name) for name in _first_names(file)]
        return bool(items) and all(
            isinstance(item, h5py.Group)
            and _first_present(item, NAMES["rows"]) is not None
            and not any(name in item for name in NAMES["bag_offsets"])
            for item in items
        )


def _first_names(file: Any, count: int = 3) -> list[str]:
    return [name for _, name in zip(range(count), file, strict=False)]


def _first_present(group: Any, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in group), None)


def _in_order(names: Sequence[str]) -> list[str]:
    """Names sorted by their numbers: bag2 before bag10."""
    return sorted(names, key=lambda name: [
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"(\d+)", name) if part
    ])  # fmt: skip


def _members(path: Path, options: SourceOptions) -> _BagGroups:
    stat = path.stat()
    return _read_groups_of(str(path), stat.st_size, stat.st_mtime_ns, options)


@lru_cache(maxsize=4)
def _read_groups_of(path: str, size: int, changed: int, options: SourceOptions) -> _BagGroups:  # noqa: ARG001
    rows = options.variables or NAMES["rows"]
    labels: tuple[str, ...] = options.label_columns or BAG_LABELS
    row_labels = (options.row_label_column,) if options.row_label_column else NAMES["row_labels"]
    if options.no_labels:
        labels = row_labels = ()
    bags: list[_BagGroup] = []
    label_set: set[str | int] = set()
    per_row: set[str | None] = set()
    kept: dict[str, KeptColumn] = {}
    check_names(path, options.kept_names)
    held = HeldBytes(path, "names and shapes of bags", options.limits)
    with open_hdf5(path) as file:
        for name in _in_order(list(file)):
            group = child(path, file, name)
            rows_name, labels_name = (_first_present(group, names) for names in (rows, labels))
            lacks_labels = labels_name is None and not options.no_labels
            if not isinstance(group, h5py.Group) or rows_name is None or lacks_labels:
                missing = "rows" if rows_name is None else "labels"
                raise SourceError(
                    f"{path}: group {name!r} has no {missing} like the others; name them by "
                    "--variables and --label-columns, or give --label-columns none"
                )
            dataset = child(path, group, rows_name)
            if dataset.ndim != 2 or dataset.dtype.kind not in "fiub":
                raise SourceError(
                    f"{path}: {name}/{rows_name} is {dataset.dtype} of shape {dataset.shape}, "
                    "expected numbers of shape (rows, features)"
                )
            if bags and dataset.shape[1] != bags[0].shape[1]:
                raise SourceError(
                    f"{path}: bag {name!r} has rows of {dataset.shape[1]} values, expected "
                    f"{bags[0].shape[1]}"
                )
            check_chunks(path, dataset, options.limits)
            check_bag(f"{path}: bag {name[:40]!r}", dataset.nbytes, options.limits)
            held.add(MEMBER_BYTES + 2 * len(name))
            if labels_name is not None:
                label_set.update(_labels_in(path, group, labels_name))
            per_row.add(_first_present(group, row_labels))
            for name_kept in options.kept_names:
                column = _kept_column(path, group, name_kept, dataset.shape[0], options.limits)
                common = common_column(kept.get(name_kept, column), column)
                if common is None:
                    raise SourceError(
                        f"{path}: bag {name!r} has {column} (--keep), but others have "
                        f"{kept[name_kept]}"
                    )
                kept[name_kept] = common
            bags.append(_BagGroup(name, rows_name, labels_name, dataset.shape, dataset.dtype.name))
    if len(per_row) > 1:
        raise SourceError(f"{path}: some bags have row labels and some have none")
    columns = tuple(sorted(kept.values()))
    return _BagGroups(tuple(bags), frozenset(label_set), per_row.pop(), columns)


def _kept_column(path: str, group: Any, name: str, n_rows: int, limits: Limits) -> KeptColumn:
    """Type of a dataset to keep, which needs a value for each row."""
    where = f"{path}: {group.name.strip('/')}/{name}"
    if name not in group or not isinstance(child(path, group, name), h5py.Dataset):
        raise SourceError(f"{where} (--keep) is no dataset; each bag needs one")
    dataset = child(path, group, name)
    if (dataset.shape or ())[:1] != (n_rows,):
        raise SourceError(
            f"{where} (--keep) has shape {dataset.shape}, expected values for each of {n_rows} rows"
        )
    check_chunks(path, dataset, limits)
    check_bag(where, dataset.nbytes, limits)
    if is_text(dataset):
        if len(dataset.shape) != 1:
            raise SourceError(f"{where} is text of shape {dataset.shape}, expected (rows,)")
        return KeptColumn(name, TEXT)
    return kept_column(where, name, dataset.shape, dataset.dtype)


def _kept_values(path: Path, group: Any, name: str) -> NDArray[Any]:
    dataset = child(path, group, name)
    if is_text(dataset):
        return as_texts(read_texts(path, dataset, 0, len(dataset)))
    return storable_values(np.asarray(dataset[()]), f"{path}: {group.name.strip('/')}/{name}")


def _labels_in(path: str | Path, group: Any, name: str) -> list[str | int]:
    """Labels of a bag, as names or numbers."""
    dataset = child(path, group, name)
    where = f"{path}: {group.name.strip('/')}/{name}"
    if h5py.check_string_dtype(dataset.dtype) is not None and dataset.size <= LABEL_BYTES:
        if dataset.ndim == 1:
            return list(read_texts(path, dataset, 0, dataset.size))
        if dataset.size == 1:
            return [str(label) for label in np.ravel(dataset.asstr()[()])]
    if dataset.dtype.kind not in "iu" or dataset.nbytes > LABEL_BYTES or dataset.ndim > 1:
        raise SourceError(
            f"{where} is {dataset.dtype} of shape {dataset.shape}, expected a list of numbers or "
            "names of labels"
        )
    return [int(label) for label in np.ravel(dataset[()])]


def _scan_groups(path: Path, options: SourceOptions) -> Scan:
    members = _members(path, options)
    bags, labelling = members.bags, labelling_of(members.labels, options, str(path))
    sizes = np.array([bag.shape[0] for bag in bags], np.int64)
    row_bytes = bags[0].shape[1] * np.dtype(bags[0].store).itemsize
    cuts = cuts_by_bytes(sizes * row_bytes, options.span_bytes)
    ends = from_sizes(sizes * row_bytes)
    kinds = {bag.store for bag in bags}
    common = kinds.pop() if len(kinds) == 1 else "float32"
    notes = [
        f"{path}: a group a bag; rows from {bags[0].rows}, "
        f"{'no labels' if bags[0].labels is None else f'labels from {bags[0].labels}'}, "
        "in the order of the groups' names"
    ]
    return Scan(
        spans=tuple(Span(str(path), a, b, int(ends[b] - ends[a]), b - a) for a, b in cuts),
        n_features=bags[0].shape[1],
        dtype=common if common in ROW_DTYPES else narrowest(bag.store for bag in bags),
        label_names=labelling.names,
        n_labels=labelling.n_labels,
        row_labels=members.row_labels is not None,
        bag_ids=True,
        kept=members.kept,
        n_bags=len(bags),
        n_rows=int(sizes.sum()),
        notes=tuple(notes),
    )


def _read_groups(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    path = Path(span.path)
    members = _members(path, options)
    bags = members.bags[span.start : span.stop]
    width = scan.n_features * 8
    for start, stop in cuts_by_bytes(np.array([bag.shape[0] * width for bag in bags]), BLOCK_BYTES):
        # The file is closed before the block is yielded, as the consumer may write with zarr.
        with open_hdf5(path) as file:
            block = _group_block(path, file, bags[start:stop], members, labelling_in(scan))
        yield block


def _group_block(
    path: Path, file: Any, bags: Sequence[_BagGroup], members: _BagGroups, labelling: Labelling
) -> BagBlock:
    rows, labels, row_labels = [], [], []
    kept: dict[str, list[NDArray[Any]]] = {column.name: [] for column in members.kept}
    for bag in bags:
        group = child(path, file, bag.name)
        rows.append(child(path, group, bag.rows)[()])
        where = f"{path}, bag {bag.name!r}"
        bag_labels = [] if bag.labels is None else _labels_in(path, group, bag.labels)
        labels.append(labelling.indices(bag_labels, where))
        if members.row_labels is not None:
            row_labels.append(_row_labels(path, group, members.row_labels, bag, where))
        for name, values in kept.items():
            values.append(_kept_values(path, group, name))
        if not np.isfinite(rows[-1]).all():
            at = int((~np.isfinite(rows[-1])).any(axis=1).argmax())
            raise SourceError(f"{where}, row {at}: only finite numbers can be stored")
    block = BagBlock.from_bags(
        rows,
        labels,
        row_labels=row_labels if members.row_labels is not None else None,
        bag_ids=[bag.name for bag in bags],
    )
    return replace(block, kept={name: np.concatenate(values) for name, values in kept.items()})


def _row_labels(path: Path, group: Any, name: str, bag: _BagGroup, where: str) -> list[int]:
    dataset = child(path, group, name)
    if dataset.shape != bag.shape[:1] or dataset.dtype.kind not in "iu":
        raise SourceError(
            f"{where}: {name} is {dataset.dtype} of shape {dataset.shape}, expected a number for "
            f"each of {bag.shape[0]} rows"
        )
    return [int(label) for label in dataset[()]]


def scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    """Read the shapes of the datasets and, if bags are groups, the labels."""
    if len(paths) == 1 and _is_groups(paths[0]):
        return _scan_groups(paths[0], options)
    return scan_arrays(paths, options, _arrays, "HDF5")


def read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    """Yield the bags of a span."""
    if _is_groups(Path(span.path)):
        return _read_groups(span, scan, options)
    return read_arrays(span, scan, options, _arrays)
