"""Checking a whole store: every file, every chunk, every bag, and the fingerprint of it all."""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from streammiml.bags.block_facts import digests_of
from streammiml.bags.checks import StoreSpec, clean
from streammiml.bags.chunks import tried_twice
from streammiml.bags.layout import RECORD, table_key
from streammiml.bags.place import Place
from streammiml.bags.store import BagStore, metadata_problem
from streammiml.bags.views import Bags
from streammiml.digest import Fingerprint
from streammiml.errors import StoreError

SCAN_BYTES = 16 << 20
PIECE = 8 << 20


def problems(store: BagStore) -> Iterator[str]:
    """A line for each file that is not as it was written; then, if all are, for what they hold."""
    wrong = {}
    for key, size, crc in store.manifest.files:
        wrong[key] = _file_problem(store.place, key, size, crc)
    for key, entry in store.manifest.metadata.items():
        wrong[key] = wrong.get(key) or metadata_problem(store.place, key, entry)
    lines = [f"{store.name}/{key} {problem}" for key, problem in wrong.items() if problem]
    lines += _table_problems(store)
    if lines:
        yield from lines
        return
    try:
        found = fingerprint(store, spec_of(store))
    except StoreError as error:
        yield str(error)
        return
    if found != store.fingerprint:
        yield f"{store.name}: the fingerprint is {found}, expected {store.fingerprint}"


def fingerprint(store: Bags, spec: StoreSpec) -> str:
    """The fingerprint of what a store holds, bag by bag, refusing what may not be in one."""
    total, first = Fingerprint(), 0
    for block in store.blocks(scan_bags(store)):
        clean(block, spec, f"{store.name}, bags {first} to {first + len(block)}")
        total.add(first, digests_of(block))
        store.bag_ids(first, first + len(block))
        first += len(block)
    return total.text()


def scan_bags(store: Bags) -> int:
    """Bags that make a block of convenient size for one pass over a store."""
    width = 32 if store.sparse else 4
    row = store.n_features * width if not store.sparse else 100 * width
    rows_per_bag = max(1.0, store.n_rows / max(store.n_bags, 1))
    return max(1, int(SCAN_BYTES / (rows_per_bag * row)))


def spec_of(store: Bags) -> StoreSpec:
    """What a store holds, as its writer would have said it; ids are looked at elsewhere."""
    return StoreSpec(
        n_features=store.n_features,
        dtype=store.dtype,
        sparse=store.sparse,
        n_labels=store.n_labels,
        row_labels=store.has_row_labels,
    )


def _file_problem(place: Place, key: str, size: int, crc: int) -> str:
    """What is wrong with a whole file, read in pieces."""
    buffer = memoryview(bytearray(min(size, PIECE)))

    def attempt() -> str:
        found = place.size(key)
        if found is None:
            return "is missing"
        if found != size:
            return f"has {found} bytes, expected {size}"
        total = 0
        for at in range(0, size, PIECE):
            piece = buffer[: min(PIECE, size - at)]
            place.read_into(key, at, piece)
            total = crc32c(piece, total)
        return "" if total == crc else "is damaged: it fails its checksum"

    return tried_twice(place, attempt)


def _table_problems(store: BagStore) -> Iterator[str]:
    for name, entry in store.manifest.arrays.items():
        key, size = table_key(name), sum(n for _, _, n in entry.pages) * RECORD.itemsize
        if (found := store.place.size(key)) != size:
            yield f"{store.name}/{key} has {found or 0} bytes, expected {size}"
    for table in store.tables():
        try:
            for number in range(len(table)):
                table.page(number)
        except StoreError as error:
            yield str(error)
