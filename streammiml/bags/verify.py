"""Checking a complete store: every file, every chunk, every bag, and the fingerprint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module

from crc32c import crc32c

from streammiml.bags.layout import RECORD, Manifest, table_key
from streammiml.bags.location import Location
from streammiml.bags.validate import StoreSpec, clean
from streammiml.bags.verified_array import ChunkTable, description_problem, tried_twice
from streammiml.bags.views import Bags
from streammiml.errors import StoreError

SCAN_BYTES = 16 << 20
PIECE = 8 << 20


def problems(
    store: Bags, manifest: Manifest, location: Location, tables: Sequence[ChunkTable]
) -> Iterator[str]:
    """Yield a line for each damaged file; if all files are intact, a line for wrong content."""
    problem_of = {}
    for key, size, crc in manifest.files:
        problem_of[key] = _file_problem(location, key, size, crc)
    for key, entry in manifest.metadata.items():
        problem_of[key] = problem_of.get(key) or description_problem(location, key, entry)
    lines = [f"{store.name}/{key} {problem}" for key, problem in problem_of.items() if problem]
    lines += _table_problems(store.name, manifest, location, tables)
    if lines:
        yield from lines
        return
    try:
        computed = fingerprint(store, spec_of(store))
    except StoreError as error:
        yield str(error)
        return
    if computed != store.fingerprint:
        yield f"{store.name}: the fingerprint is {computed}, expected {store.fingerprint}"


def fingerprint(store: Bags, spec: StoreSpec) -> str:
    """Compute the fingerprint from all bags; refuse bags that no store may hold."""
    # Loaded late: the compiler takes longer to load than a damaged store takes to be refused.
    content = import_module("streammiml.bags.fingerprint")
    total, first = content.Fingerprint(), 0
    for block in store.blocks(scan_bags(store)):
        clean(block, spec, f"{store.name}, bags {first} to {first + len(block)}")
        total.add(first, content.digests_of(block))
        store.bag_ids(first, first + len(block))
        first += len(block)
    return str(total.text())


def scan_bags(store: Bags) -> int:
    """Number of bags in a block of about 16 MiB, for one pass over a store."""
    # A guess for sparse rows: 100 values of 32 bytes.
    row_bytes = 100 * 32 if store.sparse else store.n_features * 4
    rows_per_bag = max(1.0, store.n_rows / max(store.n_bags, 1))
    return max(1, int(SCAN_BYTES / (rows_per_bag * row_bytes)))


def spec_of(store: Bags) -> StoreSpec:
    """Spec with which a store was written, without names and ids."""
    return StoreSpec(
        n_features=store.n_features,
        dtype=store.dtype,
        sparse=store.sparse,
        n_labels=store.n_labels,
        row_labels=store.has_row_labels,
        kept=store.kept_columns,
    )


def _file_problem(location: Location, key: str, size: int, crc: int) -> str:
    """Say what is wrong with a file, empty if it is intact; the file is read in pieces."""
    buffer = memoryview(bytearray(min(size, PIECE)))

    def attempt() -> str:
        file_size = location.size(key)
        if file_size is None:
            return "is missing"
        if file_size != size:
            return f"has {file_size} bytes, expected {size}"
        total = 0
        for at in range(0, size, PIECE):
            piece = buffer[: min(PIECE, size - at)]
            location.read_into(key, at, piece)
            total = crc32c(piece, total)
        return "" if total == crc else "is damaged: it fails its checksum"

    return tried_twice(location, attempt)


def _table_problems(
    name: str, manifest: Manifest, location: Location, tables: Sequence[ChunkTable]
) -> Iterator[str]:
    for array, entry in manifest.arrays.items():
        key = table_key(array)
        size = sum(n_records for _, _, n_records in entry.pages) * RECORD.itemsize
        if (file_size := location.size(key)) != size:
            yield f"{name}/{key} has {file_size or 0} bytes, expected {size}"
    for table in tables:
        try:
            for number in range(len(table)):
                table.page(number)
        except StoreError as error:
            yield str(error)
