"""A store as a source: to change the backend (Zarr, Parquet), chunk size or compression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import KeptColumn
from streammiml.bags.layout import FORMATS, MANIFEST
from streammiml.bags.location import open_location
from streammiml.bags.offsets import from_sizes
from streammiml.bags.store import BagStore, open_store
from streammiml.bags.verify import scan_bags
from streammiml.bags.views import Bags, JoinedStore
from streammiml_tools.readers.base import BESIDE, Reader, Scan, SourceError, SourceOptions, Span
from streammiml_tools.readers.labelling import label_numbers_of
from streammiml_tools.readers.messages import listed
from streammiml_tools.readers.remote_files import is_url, url_of

SIZES_AT_A_TIME = 1 << 20


def _tells(path: Path, head: bytes) -> bool:
    del head
    if is_url(path):
        # A Zarr store is told by its name, so that opening it says what is wrong with it.
        return path.suffix == ".zarr" or (path.suffix[1:] in FORMATS and has_manifest(path))
    return (path / MANIFEST).is_file()


def has_manifest(path: Path) -> bool:
    """Whether there is a complete store under a URL."""
    return open_location(url_of(path)).size(MANIFEST) is not None


@lru_cache(maxsize=4)
def _opened(source: str) -> Bags:
    return open_store(source.split(BESIDE))


def _label_numbers(store: Bags, options: SourceOptions) -> tuple[tuple[str, ...] | None, object]:
    """Label names, and the new number of each label of the store, if numbers change."""
    stored_names = None if store.label_names is None else tuple(store.label_names)
    if options.labels is None:
        return stored_names, None
    if stored_names is not None:
        return options.labels, label_numbers_of(stored_names, options, store.name)
    if len(options.labels) != store.n_labels:
        raise SourceError(
            f"{store.name}: {store.n_labels} labels, but --labels gives {len(options.labels)} names"
        )
    return options.labels, None


def _kept_columns(store: Bags, options: SourceOptions) -> tuple[KeptColumn, ...]:
    """The kept columns that go to the new store: all, or those that the options name."""
    if options.keep is None:
        return store.kept_columns
    column_of = {column.name: column for column in store.kept_columns}
    for name in options.kept_names:
        if name not in column_of:
            raise SourceError(
                f"{store.name} has no kept column {name!r} (--keep); kept columns: "
                f"{listed(column_of) or 'none'}"
            )
    return tuple(sorted(column_of[name] for name in {*options.kept_names}))


def _scan(paths: Sequence[Path], options: SourceOptions) -> Scan:
    source = BESIDE.join(url_of(path) for path in paths)
    _opened.cache_clear()
    store = _opened(source)
    names, _ = _label_numbers(store, options)
    row = max(1.0, store.n_values / max(store.n_rows, 1)) * (8 if store.sparse else 1)
    row *= np.dtype(store.dtype).itemsize if not store.sparse else 1
    spans = []
    for first in range(0, store.n_bags, SIZES_AT_A_TIME):
        ends = from_sizes(store.bag_sizes(first, min(first + SIZES_AT_A_TIME, store.n_bags)))
        at = 0
        while at < len(ends) - 1:
            full = int(np.searchsorted(ends, ends[at] + options.span_bytes / row, "right")) - 1
            stop = min(max(at + 1, full), len(ends) - 1)
            n_bytes = round(float(ends[stop] - ends[at]) * row)
            spans.append(Span(source, first + at, first + stop, n_bytes, stop - at))
            at = stop
    kind = "sparse" if store.sparse else "dense"
    return Scan(
        spans=tuple(spans),
        n_features=store.n_features,
        dtype=store.dtype,
        sparse=store.sparse,
        label_names=names,
        n_labels=None if names is not None else store.n_labels,
        feature_names=None if store.feature_names is None else tuple(store.feature_names),
        row_labels=store.has_row_labels,
        bag_ids=store.has_bag_ids,
        kept=_kept_columns(store, options),
        n_bags=store.n_bags,
        n_rows=store.n_rows,
        notes=(f"a store of {kind} {store.dtype} rows, fingerprint {store.fingerprint}",),
    )


def _read(span: Span, scan: Scan, options: SourceOptions) -> Iterator[BagBlock]:
    store = _opened(span.path)
    if store.n_bags != scan.n_bags:
        raise SourceError(
            f"{store.name} holds {store.n_bags:,} bags, but had {scan.n_bags:,} when it was scanned"
        )
    _, label_numbers = _label_numbers(store, options)
    step = max(1, scan_bags(store) // 2)
    for start in range(span.start, span.stop, step):
        stop = min(start + step, span.stop)
        block = store.read(start, stop, kept=bool(scan.kept))
        block = replace(block, kept={name: block.kept[name] for name, *_ in scan.kept})
        if scan.bag_ids:
            block = replace(block, bag_ids=store.bag_ids(start, stop))
        if isinstance(label_numbers, np.ndarray):
            block = _renumbered(block, label_numbers)
        yield block


def _renumbered(block: BagBlock, label_numbers: np.ndarray) -> BagBlock:
    """The block with new label numbers, unsorted; the writer sorts them."""
    labels = block.row_labels
    if labels is not None:
        labels = np.where(labels >= 0, label_numbers[labels], labels).astype(np.int32)
    indices = label_numbers[block.label_indices].astype(np.int32)
    return replace(block, label_indices=indices, row_labels=labels)


def identity(source: str) -> list[str]:
    """Fingerprints of the stores of a source; they change if a store is replaced.

    Fingerprints leave kept columns out; those of a store that has some follow its fingerprint.
    """
    store = open_store(source.split(BESIDE))
    parts = store.stores if isinstance(store, JoinedStore) else [store]
    return [
        part.fingerprint + (f" {part.kept_digest}" if part.kept_columns else "")
        for part in parts
        if isinstance(part, BagStore)
    ]


READER = Reader(
    name="store",
    suffixes=(".zarr", ".parquet"),
    line="Another store: Zarr to Parquet and back, other chunks, another codec",
    tells=_tells,
    scan=_scan,
    read=_read,
    streams=True,
)
