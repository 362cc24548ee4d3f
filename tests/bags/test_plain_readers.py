"""Plain zarr and plain pyarrow read the values that we read."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.kept_columns import as_texts
from streammiml.bags.layout import CODECS, ROW_DTYPES
from tests.stores import (
    as_sparse,
    assert_equal,
    assert_same,
    made_block,
    scratch,
    sizes,
    write_parts,
    write_store,
)
from tests.strategies import corpora, cuttings

KINDS = ("dense", "sparse")


def by_zarr(path: Path, n_features: int) -> BagBlock:
    """All bags, by ``zarr.open`` and FORMAT.md alone."""
    group = zarr.open(path, mode="r")
    arrays = {name: array[...] for name, array in group.arrays()}
    rows = arrays.get("rows")
    if rows is None:
        rows = SparseRows(arrays["row_offsets"], arrays["columns"], arrays["values"], n_features)
    ids = None
    if "bag_id_bytes" in arrays:
        raw, ends = arrays["bag_id_bytes"].tobytes(), arrays["bag_id_offsets"].tolist()
        ids = [raw[a:b].decode() for a, b in pairwise(ends)]
    return BagBlock(
        arrays["bag_offsets"],
        rows,
        arrays["label_offsets"],
        arrays["label_indices"],
        arrays.get("row_labels"),
        ids,
        {
            name.removeprefix("kept_").removesuffix(".bytes"): kept_by_zarr(arrays, name)
            for name in arrays
            if name.startswith("kept_") and not name.endswith(".offsets")
        },
    )


def kept_by_zarr(arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    if not name.endswith(".bytes"):
        return arrays[name]
    ends = arrays[name.replace(".bytes", ".offsets")].tolist()
    raw = arrays[name].tobytes()
    return as_texts(raw[a:b].decode() for a, b in pairwise(ends))


def lists(column: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    ends = array.offsets.to_numpy().astype(np.int64)
    return ends - ends[0], array.flatten()


def flat(values: pa.Array) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False)


def by_pyarrow(path: Path, n_features: int) -> BagBlock:
    """All bags, by ``pyarrow.dataset`` alone."""
    table = ds.dataset(path, format="parquet").to_table()
    label_offsets, labels = lists(table["labels"])
    if "rows" in table.column_names:
        bag_offsets, inner = lists(table["rows"])
        rows = flat(lists(inner)[1]).reshape(-1, n_features)
    else:
        bag_offsets, inner = lists(table["columns"])
        row_offsets, columns = lists(inner)
        values = lists(lists(table["values"])[1])[1]
        rows = SparseRows(row_offsets, flat(columns), flat(values), n_features)
    known = flat(lists(table["row_labels"])[1]) if "row_labels" in table.column_names else None
    ids = table["bag_id"].to_pylist() if "bag_id" in table.column_names else None
    kept = {
        name.removeprefix("kept_"): kept_by_pyarrow(table[name])
        for name in table.column_names
        if name.startswith("kept_")
    }
    return BagBlock(bag_offsets, rows, label_offsets, flat(labels), known, ids, kept)


def kept_by_pyarrow(column: pa.ChunkedArray) -> np.ndarray:
    values = lists(column)[1]
    if pa.types.is_string(values.type):
        return as_texts(values.to_pylist())
    if not pa.types.is_list(values.type):
        return flat(values)
    ends, values = lists(values)
    return flat(values).reshape(len(ends) - 1, -1)


PLAIN = {"zarr": by_zarr, "parquet": by_pyarrow}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ROW_DTYPES)
def test_plain_reader__reads_the_same_values(backend, codec, kind, dtype, tmp_path):
    block = made_block(dtype=dtype)
    block = as_sparse(block) if kind == "sparse" else block
    path = tmp_path / f"x.{backend}"
    store = write_store(path, block, codec=codec)
    block_read = PLAIN[backend](path, 3)
    assert_same(block_read, block)
    assert block_read.bag_ids == block.bag_ids
    assert_same(store.read(0, len(block)), block_read)


@given(corpus=corpora(), cut=cuttings())
@pytest.mark.parametrize("name", ["zarr", "parquet"])
def test_plain_reader__reads_any_bags_in_any_chunks(name, corpus, cut):
    with scratch() as folder, sizes(**cut):
        path = folder / f"x.{name}"
        write_parts(path, corpus.spec, corpus.parts)
        block_read = PLAIN[name](path, corpus.spec.n_features)
    assert_same(block_read, corpus.block)
    assert block_read.bag_ids == corpus.block.bag_ids


def test_zarr__describes_what_was_chosen(tmp_path):
    write_store(tmp_path / "x.zarr", made_block(), codec="zstd", label_names=("a", "b", "c", "d"))
    group = zarr.open(tmp_path / "x.zarr", mode="r")
    assert group.attrs["streammiml"]["label_names"] == ["a", "b", "c", "d"]
    assert group.attrs["streammiml"]["n_features"] == 3
    assert group["rows"].shape == (made_block().n_rows, 3)
    assert group.metadata.consolidated_metadata is not None
    assert "zstd" in str(group["rows"].compressors)


def test_parquet__has_one_record_for_each_bag_and_checksums_of_pages(tmp_path):
    block = made_block()
    write_store(tmp_path / "x.parquet", block)
    table = ds.dataset(tmp_path / "x.parquet", format="parquet").to_table()
    assert table.num_rows == len(block)
    for bag, record in enumerate(table.to_pylist()):
        assert record["bag_id"] == block.bag_ids[bag]
        assert record["labels"] == block.labels_of(bag).tolist()
        assert_equal(np.array(record["rows"], np.float32), block.rows_of(bag), f"bag {bag}")
    file = next((tmp_path / "x.parquet").glob("*.parquet"))
    raw = bytearray(file.read_bytes())
    at = raw.find(block.rows.tobytes()[:12])
    raw[at] ^= 1
    file.write_bytes(raw)
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(file, page_checksum_verification=True)
