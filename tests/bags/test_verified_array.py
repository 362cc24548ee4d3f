"""Arrays by range: any chunks, any range; transient and permanent faults."""

import ctypes
import json
import struct
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numcodecs import blosc, gzip, zstd

from streammiml._base.buffer_pool import IDLE_BYTES
from streammiml._base.crc import has_fast_way
from streammiml.bags import array_writer, verified_array, zarr_read, zarr_write
from streammiml.bags.array_writer import ArrayWriter, table_pages
from streammiml.bags.block import BagBlock
from streammiml.bags.file_errors import Unreadable
from streammiml.bags.layout import RECORD, ArrayEntry, table_key
from streammiml.bags.location import LocalFolder
from streammiml.bags.verified_array import (
    CACHED_BYTES,
    SURPLUS_BYTES,
    CachedArray,
    VerifiedArray,
    fetch_checked,
)
from streammiml.errors import StoreError
from tests.stores import BACKENDS, sizes, write_store
from tests.traced import traced


class FaultyFolder(LocalFolder):
    """A folder whose next reads fail in a given way."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.faults: list[str] = []
        self.reads = 0

    def opened(self, key: str) -> None:
        """Compiled code would read from the file itself."""

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        self.reads += 1
        fault = self.faults.pop() if self.faults else ""
        if fault == "error":
            raise Unreadable("cannot be read: Input/output error")
        super().read_into(key, offset, buffer)
        if fault == "flip":
            buffer[0] ^= 1


def written(folder: Path, parts, *, chunk, per_file, width=1, codec="none", ending=True, piece=0):
    """Write an array; return everything that is needed to open it."""
    files = []
    writer = ArrayWriter(
        folder,
        "rows" if width > 1 else "x",
        parts[0].dtype.name,
        width=width,
        chunk=chunk,
        shard_chunks=per_file,
        piece=piece,
        key=lambda number: f"c/{number}",
        close=lambda key, _, size, crc: files.append([key, size, crc]),
        codec=codec,
        encode=None if codec == "none" else lambda v: zarr_write.compress(v, codec),
        ending=(lambda slots: zarr_write.shard_index(slots, per_file)) if ending else None,
    )
    for part in parts:
        writer.append(part)
    writer.finish()
    table = np.frombuffer(writer.take_records(), RECORD)
    path = folder / table_key(writer.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(table.tobytes())
    entry = writer.entry("raw" if codec == "none" else "blosc", table_pages(table))
    return writer.name, entry, files


def decoder(entry):
    return zarr_read._decoder(entry)


@st.composite
def cut_arrays(draw):
    """Parts of an array, and how to cut it."""
    width = draw(st.sampled_from([1, 1, 3]))
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    dtype = draw(st.sampled_from(["int64", "int32", "uint8", "float32"]))
    rng = np.random.default_rng(sum(lengths))
    parts = [rng.integers(0, 100, (n, width) if width > 1 else n).astype(dtype) for n in lengths]
    piece = draw(st.integers(1, 3))
    how = {
        "chunk": piece * draw(st.integers(1, 3)),
        "per_file": draw(st.integers(1, 4)),
        "width": width,
        "codec": draw(st.sampled_from(["none", "lz4", "zstd"])),
        "ending": draw(st.booleans()),
        "piece": draw(st.sampled_from([0, piece])),
    }
    return parts, how


@given(case=cut_arrays(), page=st.sampled_from([1, 2, 2048]), data=st.data())
def test_range__is_what_was_appended_there(case, page, data):
    parts, how = case
    expected = np.concatenate(parts)
    with tempfile.TemporaryDirectory() as folder, sizes(page=page):
        name, entry, files = written(Path(folder), parts, **how)
        array = VerifiedArray(LocalFolder(Path(folder)), name, entry, files, decoder(entry))
        assert len(array) == len(expected)
        assert sum(size for _, size, _ in files) == sum(
            path.stat().st_size for path in (Path(folder) / "c").glob("*")
        )
        for _ in range(3):
            start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(expected))] * 2)))
            got = array.read(start, stop)
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected[start:stop])


@given(case=cut_arrays(), data=st.data())
def test_cached_range__is_inspected_and_the_same(case, data):
    parts, how = case
    parts, how = [part.reshape(-1) for part in parts], {**how, "width": 1}
    expected, seen = np.concatenate(parts), []
    with tempfile.TemporaryDirectory() as folder, sizes(page=2):
        name, entry, files = written(Path(folder), parts, **how)
        place = LocalFolder(Path(folder))
        array = CachedArray(place, name, entry, files, decoder(entry), inspect=seen.extend)
        for _ in range(4):
            start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(expected))] * 2)))
            np.testing.assert_array_equal(array.read(start, stop), expected[start:stop])
            assert set(expected[start:stop].tolist()) <= set(seen)


@given(case=cut_arrays(), stops=st.sets(st.integers(0, 4)))
def test_array__stopped_after_any_part_is_resumed_with_the_same_result(case, stops):
    parts, how = case
    piece = how.pop("piece")
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b, sizes(page=2):
        written(Path(a), parts, **how, piece=piece)
        files, records = [], b""

        def fresh():
            codec = how["codec"]
            slots = how["per_file"]
            return ArrayWriter(
                Path(b),
                "x",
                parts[0].dtype.name,
                width=how["width"],
                chunk=how["chunk"],
                shard_chunks=slots,
                piece=piece,
                key=lambda number: f"c/{number}",
                close=lambda *file: files.append(file),
                codec=codec,
                encode=None if codec == "none" else lambda v: zarr_write.compress(v, codec),
                ending=(lambda s: zarr_write.shard_index(s, slots)) if how["ending"] else None,
            )

        writer = fresh()
        for number, part in enumerate(parts):
            if number in stops:
                numbers, rest = writer.state()
                kept = json.dumps(numbers)
                records += writer.take_records()
                # Bytes that are written after the state was saved must leave no trace.
                writer.append(parts[0])
                writer = fresh()
                writer.restore(json.loads(kept), rest)
            writer.append(part)
        writer.finish()
        records += writer.take_records()
        for path in (Path(a) / "c").glob("*"):
            assert path.read_bytes() == (Path(b) / "c" / path.name).read_bytes()
        tables = list((Path(a) / "_streammiml").iterdir())
        assert tables[0].read_bytes() == records


@pytest.fixture
def array(tmp_path):
    """Twenty numbers in chunks of four, two to a file."""
    name, entry, files = written(tmp_path, [np.arange(20)], chunk=4, per_file=2)
    place = FaultyFolder(tmp_path)
    return place, VerifiedArray(place, name, entry, files, decoder(entry))


@pytest.mark.parametrize("fault", ["error", "flip"])
def test_transient_fault__is_cured_by_a_second_attempt(array, fault):
    place, numbers = array
    numbers.read(0, 1)
    place.faults = [fault]
    assert numbers.read(0, 20).tolist() == list(range(20))


def test_permanent_fault__names_the_file(array):
    place, numbers = array
    numbers.read(0, 1)
    place.faults = ["error", "error"]
    with pytest.raises(StoreError, match=r"/c/1 cannot be read: Input/output error; restore the"):
        numbers.read(8, 12)
    place.faults = ["flip", "flip"]
    with pytest.raises(StoreError, match=r"/c/1 is damaged: x at byte 32 fails its checksum"):
        numbers.read(12, 16)


def test_faults_of_the_table__name_the_table(array):
    place, numbers = array
    place.faults = ["flip", "flip"]
    with pytest.raises(StoreError, match=r"chunks-x.bin is damaged: page 0 fails its checksum"):
        numbers.read(0, 1)


def test_chunks_that_lie_end_to_end__are_fetched_by_one_read(array):
    place, numbers = array
    numbers.read(0, 1)
    place.reads = 0
    numbers.read(0, 20)
    assert place.reads == 3


def test_missing_and_short_files__are_named(array):
    place, numbers = array
    (place.path / "c/0").unlink()
    (place.path / "c/1").write_bytes(b"\0" * 40)
    (place.path / "c/2").unlink()
    (place.path / "c/2").mkdir()
    with pytest.raises(StoreError, match=r"/c/0 is missing; restore the file or convert the"):
        numbers.read(0, 1)
    with pytest.raises(StoreError, match=r"/c/1 is short: ends at byte 40, needed 64"):
        numbers.read(12, 13)
    with pytest.raises(StoreError, match=r"/c/2 is a folder, expected a file"):
        numbers.read(16, 17)


def test_checked_bytes__are_refused_when_edited(tmp_path):
    (tmp_path / "x.json").write_bytes(b"{}")
    with pytest.raises(StoreError, match=r"x.json is damaged or was edited: it fails its checksum"):
        fetch_checked(LocalFolder(tmp_path), "x.json", [0, 2, 1])


def test_read__of_few_rows_keeps_little_memory(tmp_path):
    """A bag beside a long one does not keep the chunks of both in memory."""
    for backend in BACKENDS:
        bags = [np.ones((size, 16), np.float32) for size in (2, 20_000, 3)]
        block = BagBlock.from_bags(bags, [[0]] * 3)
        store = write_store(tmp_path / f"long.{backend}", block, codec="lz4")
        for bag in (0, 2):
            rows = store.read(bag, bag + 1).rows
            owner = rows
            while owner.base is not None:
                owner = owner.base
            assert owner.nbytes <= 2 * rows.nbytes


def chunks_as_they_are(folder, raws, *, dtype="float32", coding, elements):
    """An array of chunks with these bytes, valid or not."""
    (folder / "x").write_bytes(b"".join(raws))
    ends = np.cumsum([0, *map(len, raws)])
    firsts = np.cumsum([0, *elements])
    records = [
        (first, end, count, len(raw), crc32c(raw), 0)
        for first, end, count, raw in zip(firsts, ends, elements, raws, strict=False)
    ]
    table = np.array(records, RECORD)
    (folder / "_streammiml").mkdir()
    (folder / table_key("x")).write_bytes(table.tobytes())
    entry = ArrayEntry(
        dtype=dtype, length=int(firsts[-1]), width=1, coding=coding, pages=table_pages(table)
    )
    return FaultyFolder(folder), "x", entry, [["x", int(ends[-1]), 0]], decoder(entry)


def blosc_chunk(n_values):
    return blosc.compress(np.random.default_rng(0).random(n_values, "f4"), b"lz4", 5, 0)


def with_number(raw, at, number):
    out = bytearray(raw)
    struct.pack_into("<I", out, at, number)
    return bytes(out)


UNDECODABLE = {
    "too few values": ("blosc", blosc_chunk(90)),
    "too many values": ("blosc", blosc_chunk(110)),
    "cut short": ("blosc", blosc_chunk(100)[:40]),
    "no header": ("blosc", b"abc"),
    "longer than it is": ("blosc", with_number(blosc_chunk(100), 12, 1 << 20)),
    "more bytes than it has": ("blosc", with_number(blosc_chunk(100), 4, 1 << 20)),
    "one value, zstd": ("zstd", zstd.compress(np.ones(1, "f4"))),
    "too many values, zstd": ("zstd", zstd.compress(np.ones(110, "f4"))),
    "no zstd": ("zstd", b"abc"),
    "too few values, gzip": ("gzip", gzip.GZip().encode(np.ones(90, "f4"))),
    "cut short, gzip": ("gzip", gzip.GZip().encode(np.ones(100, "f4"))[:-12]),
}


@pytest.mark.parametrize("way", ["compiled", "direct", "numcodecs"])
@pytest.mark.parametrize("case", UNDECODABLE)
def test_chunk_with_the_right_checksum__that_does_not_decode_is_refused(
    tmp_path, monkeypatch, case, way
):
    """Other programs can write such chunks; no byte beyond is read, no value is left unset."""
    if way == "numcodecs":
        monkeypatch.setattr(zarr_read, "_blosc", lambda: None)
    coding, wrong = UNDECODABLE[case]
    pack = {"blosc": lambda v: blosc.compress(v, b"lz4", 5, 0), "zstd": zstd.compress}
    right = pack.get(coding, gzip.GZip().encode)(np.arange(100, dtype="f4"))
    raws, elements = [bytes(right), bytes(wrong), bytes(right)], [100, 100, 70]
    place, *rest = chunks_as_they_are(tmp_path, raws, coding=coding, elements=elements)
    array = VerifiedArray(LocalFolder(tmp_path) if way == "compiled" else place, *rest)
    if way == "compiled":
        array.unpackers = zarr_read.unpackers
    np.testing.assert_array_equal(array.read(200, 270), np.arange(70))
    for bounds in [(0, 270), (100, 200), (110, 120)]:
        for read in (array.read, lambda *bounds: array.read_many([bounds])):
            with pytest.raises(
                StoreError, match=r"/x is invalid: x from element \d+ on cannot be read: .*; rest"
            ):
                read(*bounds)


@pytest.mark.parametrize(
    "changed",
    [
        lambda raw: with_number(raw, 8, 700_000_000),
        lambda raw: raw[:2] + bytes([raw[2] | 8]) + raw[3:],
    ],
    ids=["blocks longer than memory", "a format to come"],
)
def test_parts_of_the_last_chunk__are_refused_if_its_header_is_invalid(tmp_path, changed):
    raws, elements = [bytes(blosc_chunk(100)), changed(bytes(blosc_chunk(100)))], [100, 70]
    _, *rest = chunks_as_they_are(tmp_path, raws, coding="blosc", elements=elements)
    array = VerifiedArray(LocalFolder(tmp_path), *rest)
    array.unpackers = zarr_read.unpackers
    assert array._read_group([(110, 120)]) is None
    if has_fast_way():
        assert array._read_group([(10, 20)]) is not None


def test_cached_range__of_chunks_that_differ_decodes_each_about_once(tmp_path):
    """A short first chunk does not split the long chunks after it into many pieces."""
    elements = [10, *[40_000] * 5]
    raws = [bytes(blosc.compress(np.full(n, n, "i8"), b"lz4", 5, 0)) for n in elements]
    place, *rest = chunks_as_they_are(
        tmp_path, raws, dtype="int64", coding="blosc", elements=elements
    )
    array = CachedArray(place, *rest, inspect=lambda _: None)
    for start in range(0, 200_010, 100):
        array.read(start, min(start + 100, 200_010))
    assert place.reads <= 1 + len(elements)


def test_cached_range__of_huge_chunks_keeps_few(tmp_path):
    size = 1 << 19
    raws = [bytes(blosc.compress(np.full(size, n, "i8"), b"lz4", 5, 0)) for n in range(8)]
    array = CachedArray(
        *chunks_as_they_are(tmp_path, raws, dtype="int64", coding="blosc", elements=[size] * 8),
        inspect=lambda _: None,
    )
    with traced() as memory:
        for number in range(8):
            assert array.read(number * size, number * size + 1).tolist() == [number]
    # Buffers that were returned to the pool count too.
    assert memory.held < 1.5 * CACHED_BYTES + IDLE_BYTES


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(["uint8", "int16", "float32", "int64"]),
    shuffle=st.sampled_from([0, 1]),
    noise=st.booleans(),
    ranges=st.lists(st.tuples(st.integers(0, 59_999), st.integers(1, 60_000)), min_size=1),
)
def test_many_ranges__of_compressed_chunks_are_parts_of_the_whole(
    tmp_path, dtype, shuffle, noise, ranges
):
    """Chunks of several of the library's blocks, of bytes that compress and that do not."""
    expected = np.random.default_rng(1).integers(0, 250 if noise else 3, 60_000).astype(dtype)
    lengths = [50_000, 7, 9_993]
    # The last chunk is padded, as in zarr.
    parts = np.split(np.concatenate([expected, np.zeros(1000, dtype)]), np.cumsum(lengths)[:-1])
    raws = [bytes(blosc.compress(part, b"lz4", 5, shuffle)) for part in parts]
    where = Path(tempfile.mkdtemp(dir=tmp_path))
    _, *rest = chunks_as_they_are(where, raws, dtype=dtype, coding="blosc", elements=lengths)
    array = VerifiedArray(LocalFolder(where), *rest)
    array.unpackers = zarr_read.unpackers
    ranges = [(start, min(start + count, 60_000)) for start, count in ranges]
    if has_fast_way():
        assert array._read_group(ranges) is not None
    for (start, stop), values in zip(ranges, array.read_many(ranges), strict=True):
        np.testing.assert_array_equal(values, expected[start:stop])


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_many_ranges__across_files_pages_and_chunks_are_parts_of_the_whole(
    tmp_path, monkeypatch, codec
):
    monkeypatch.setattr(array_writer, "PAGE_RECORDS", 2)
    expected = np.arange(500)
    name, entry, files = written(tmp_path, [expected], chunk=40, per_file=3, codec=codec)
    assert len(entry.pages) > 3
    array = VerifiedArray(LocalFolder(tmp_path), name, entry, files, decoder(entry))
    array.unpackers = zarr_read.unpackers
    ranges = [(0, 7), (130, 260), (499, 500), (8, 8), (3, 90), (0, 500), (40, 80)]
    if has_fast_way():
        assert sorted(array._read_group(ranges).ranges) == [0, 1, 2, 4, 5, 6]
    for (start, stop), values in zip(ranges, array.read_many(ranges), strict=True):
        np.testing.assert_array_equal(values, expected[start:stop])
    located = array.locate(ranges)
    for (start, stop), address in zip(ranges, located.addresses.tolist(), strict=True):
        there = ctypes.string_at(address, 8 * (stop - start))
        np.testing.assert_array_equal(np.frombuffer(there, np.int64), expected[start:stop])


def owned_bytes(values):
    """Bytes of memory that an array keeps alive."""
    while isinstance(values.base, np.ndarray):
        values = values.base
    if values.base is None:
        return values.nbytes
    return next(len(owner._memory) for owner in values.base if hasattr(owner, "_memory"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kib", [70, 260, 400])
def test_rows__hold_little_more_memory_than_they_take(
    tmp_path, monkeypatch, backend, codec, compiled, kib
):
    rng = np.random.default_rng(0)
    bags = [rng.normal(size=(kib * 4, 64)).astype(np.float32) for _ in range(6)]
    store = write_store(tmp_path / f"x.{backend}", BagBlock.from_bags(bags, [[0]] * 6), codec=codec)
    if not compiled:
        monkeypatch.setattr(verified_array, "has_fast_way", lambda: False)
    # Buffers of the pool are rounded up to an eighth, or to 64 KiB.
    room = max(bags[0].nbytes // 8, 64 << 10) + 128
    owners = store.read_ranges([(i, i + 1) for i in range(6)]).rows.owners
    held = sum(owned_bytes(owner) for owner in owners)
    assert held <= 6 * (bags[0].nbytes + SURPLUS_BYTES + room)
    assert owned_bytes(store.read(1, 2).rows) <= bags[0].nbytes + SURPLUS_BYTES + room


def short(records):
    return records[:-1]


def with_field(name, at, value):
    def change(records):
        records = records.copy()
        records[name][at] = value(records[name][at])
        return records

    return change


INVALID_TABLES = {
    "ends too soon": (short, "element 40 follows 32 elements, at chunk 4"),
    "a gap": (with_field("first", slice(2, None), lambda x: x + 3), "element 19 follows 16"),
    "an overlap": (
        with_field("first", slice(2, None), lambda x: x - 3),
        "element 13 follows 16",
    ),
    "too many elements": (with_field("elements", 1, lambda _: 2**32 - 1), "element 16 follows"),
    "goes on": (with_field("elements", 4, lambda x: x + 1), "element 40 follows 41 elements"),
    "no such file": (
        with_field("file", 3, lambda _: 77),
        "a chunk of page 0 of x is outside the files",
    ),
    "behind its file": (
        with_field("offset", 3, lambda _: 999),
        "a chunk of page 0 of x is outside",
    ),
    "far behind": (
        with_field("offset", 3, lambda _: 2**63 - 1),
        "a chunk of page 0 of x is outside",
    ),
    "before its file": (with_field("offset", 0, lambda _: -8), "a chunk of page 0 of x is outside"),
}


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("case", INVALID_TABLES)
def test_invalid_table__is_named_whatever_is_read(tmp_path, codec, case):
    change, message = INVALID_TABLES[case]
    name, entry, files = written(tmp_path, [np.arange(40)], chunk=8, per_file=9, codec=codec)
    table = tmp_path / table_key(name)
    records = change(np.frombuffer(table.read_bytes(), RECORD))
    table.write_bytes(records.tobytes())
    changed = replace(entry, pages=table_pages(records))
    array = VerifiedArray(LocalFolder(tmp_path), name, changed, files, decoder(changed))
    for read in (lambda: array.read(20, 32), lambda: array.read_many([(0, 3), (20, 40)])):
        with pytest.raises(StoreError, match=f"chunks-x.bin is invalid: {message}"):
            read()


def test_invalid_table__with_wrong_bytes_of_plain_chunks_is_named(tmp_path):
    name, entry, files = written(tmp_path, [np.arange(40)], chunk=8, per_file=9)
    table = tmp_path / table_key(name)
    records = with_field("nbytes", 1, lambda x: x - 8)(np.frombuffer(table.read_bytes(), RECORD))
    table.write_bytes(records.tobytes())
    changed = replace(entry, pages=table_pages(records))
    array = VerifiedArray(LocalFolder(tmp_path), name, changed, files, decoder(changed))
    with pytest.raises(
        StoreError, match=r"is invalid: chunk 1 of page 0 of x has 56 bytes, expected 64"
    ):
        array.read(30, 31)
