"""Stores for tests: small ones made by hand, and what it means that two blocks are the same."""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np

from streammiml.bags import array_writer, parquet_parts, parquet_write, zarr_parts, zarr_write
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.kept_columns import Kept, as_texts, columns_of
from streammiml.bags.offsets import from_sizes
from streammiml.bags.prepared_bags import PreparedBags, prepare
from streammiml.bags.store import BagStore
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter
from streammiml.blocks.mixing import copied_bags, group_of

BACKENDS = ("zarr", "parquet")


@dataclass(frozen=True)
class Tiny:
    """A finished store and the bags that it must hold."""

    backend: str
    path: Path
    block: BagBlock


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: synchronising is what takes long on a disk."""
    shared = Path("/dev/shm")
    fast = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="streammiml-", dir=fast) as folder:
        yield Path(folder)


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file may grow beyond a size, as on a disk that is full at that byte.

    Nor is bytecode written: Python would take the half of a module that fits for the whole.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with mock.patch.object(sys, "dont_write_bytecode", True):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def content(folder: Path) -> dict[str, str]:
    """The digest of every file below a folder, but of locks.

    Not the bytes: where a comparison fails, pytest would lay them out against each other for hours.
    """
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != "_lock")
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


@contextmanager
def sizes(
    *, index_chunk: int = 4, shard: int = 256, group: int = 64, page: int = 2
) -> Iterator[None]:
    """Cut everything small, so that a few bags fill several chunks, shards, groups and pages."""
    with ExitStack() as stack:
        for module, name, value in (
            (zarr_parts, "INDEX_CHUNK", index_chunk),
            (parquet_parts, "INDEX_CHUNK", index_chunk),
            (zarr_write, "SHARD_BYTES", shard),
            (parquet_write, "GROUP_BYTES", group),
            (array_writer, "PAGE_RECORDS", page),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def sparse(dense: np.ndarray, kept: np.ndarray | None = None) -> SparseRows:
    """The same rows in compressed form; ``kept`` marks values to store, zeros among them or not."""
    mask = dense != 0 if kept is None else kept
    columns = np.nonzero(mask)[1].astype(np.uint32)
    return SparseRows(from_sizes(mask.sum(axis=1)), columns, dense[mask], dense.shape[1])


def made_spec(**changes) -> StoreSpec:
    """What :func:`made_block` fits into."""
    fields = {
        "n_features": 3,
        "label_names": ("sea", "sky", "sun", "tree"),
        "feature_names": ("r", "g", "b"),
        "row_labels": True,
        "bag_ids": True,
    }
    return StoreSpec(**{**fields, **changes})


def made_block(
    n_bags: int = 12, *, n_features: int = 3, dtype: str = "float32", seed: int = 0
) -> BagBlock:
    """Bags of 1 to 4 rows, with ids, row labels, and 0 to 4 labels each."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 5, n_bags)
    shape = (int(counts.sum()), n_features)
    if dtype.startswith("float"):
        rows = rng.normal(size=shape).astype(dtype)
        rows[rng.random(shape) < 0.2] = 0
    else:
        rows = rng.integers(0, 100, shape).astype(dtype)
    per_bag = [np.flatnonzero(rng.random(4) < 0.4) for _ in range(n_bags)]
    return BagBlock(
        from_sizes(counts),
        rows,
        from_sizes([len(own) for own in per_bag]),
        np.concatenate(per_bag).astype(np.int32),
        rng.integers(-1, 4, len(rows)).astype(np.int32),
        [f"bag-{i:04d}" for i in range(n_bags)],
    )


def plain(block: BagBlock) -> BagBlock:
    """The block without row labels, ids and kept columns."""
    return replace(block, row_labels=None, bag_ids=None, kept={})


def made_kept(n_rows: int) -> Kept:
    """Kept columns of each form: places of two numbers, times with a gap, and texts."""
    numbers = np.arange(n_rows)
    times = numbers / 8
    times[::5] = np.nan
    return {
        "coords": np.stack([numbers * 256, numbers % 7 - 3], axis=1),
        "time": times,
        "note": as_texts(f"r\u00f6w {i}" * (i % 3) for i in numbers),
    }


def with_kept(block: BagBlock) -> BagBlock:
    """The block with kept columns."""
    return replace(block, kept=made_kept(block.n_rows))


def as_sparse(block: BagBlock) -> BagBlock:
    """The block with its rows compressed."""
    assert isinstance(block.rows, np.ndarray)
    return replace(block, rows=sparse(block.rows))


def write_parts(path: Path, spec: StoreSpec, parts: Sequence[BagBlock]) -> BagStore:
    """A finished store of these parts."""
    with BagWriter.begin(path, spec) as writer:
        for number, part in enumerate(parts):
            writer.write_part(number, part)
        return writer.finish(len(parts))


def prepared(start: int, stop: int) -> PreparedBags:
    """Bags of :func:`made_block`, checked and ready to be written."""
    return prepare(made_block().slice(start, stop), made_spec(), "x")


def write_store(path: Path, block: BagBlock, **changes) -> BagStore:
    """A finished store of one block, described by what the block has."""
    rows = block.rows
    values = rows.values if isinstance(rows, SparseRows) else rows
    fields = {
        "n_features": block.n_features,
        "dtype": values.dtype.name,
        "sparse": isinstance(rows, SparseRows),
        "row_labels": block.row_labels is not None,
        "bag_ids": block.bag_ids is not None,
        "kept": columns_of(block.kept),
    }
    return write_parts(path, StoreSpec(**{**fields, **changes}), [block])


def assert_equal(got: np.ndarray, want: np.ndarray, what: str) -> None:
    """The same type, shape and bits: NaN, signs of zero and all."""
    assert got.dtype == want.dtype, f"{what}: {got.dtype} is not {want.dtype}"
    assert got.shape == want.shape, f"{what}: {got.shape} is not {want.shape}"
    same = got.tobytes() == want.tobytes()
    assert same, f"{what}: {got.tolist()} is not {want.tolist()}"


def assert_same(got: BagBlock, want: BagBlock) -> None:
    """The same bags, bit for bit; ids are read by a call of their own."""
    assert_equal(got.bag_offsets, want.bag_offsets, "bag_offsets")
    assert_equal(got.label_offsets, want.label_offsets, "label_offsets")
    assert_equal(got.label_indices, want.label_indices, "label_indices")
    assert_same_kept(got.kept, want.kept)
    assert (got.row_labels is None) == (want.row_labels is None)
    if got.row_labels is not None and want.row_labels is not None:
        assert_equal(got.row_labels, want.row_labels, "row_labels")
    if isinstance(want.rows, SparseRows):
        assert isinstance(got.rows, SparseRows)
        assert got.rows.n_features == want.rows.n_features
        assert_equal(got.rows.offsets, want.rows.offsets, "row_offsets")
        assert_equal(got.rows.columns, want.rows.columns, "columns")
        assert_equal(got.rows.values, want.rows.values, "values")
    else:
        assert isinstance(got.rows, np.ndarray)
        assert_equal(got.rows, want.rows, "rows")


def assert_same_kept(got: Kept, want: Kept) -> None:
    """The same values of kept columns, NaN and all."""
    assert sorted(got) == sorted(want)
    for name, values in want.items():
        if values.dtype == object:
            assert got[name].dtype == object
            assert got[name].tolist() == values.tolist(), name
        else:
            assert_equal(got[name], values, name)


def read_together(store, ranges):
    """Bags that ``read_ranges`` reads, as one block."""
    group = group_of([start for start, _ in ranges], store.read_ranges(ranges))
    kind = {"n_features": store.n_features, "dtype": store.dtype, "sparse": store.sparse}
    return copied_bags(group.table, **kind)
