"""Parquet files of our own: names, schema, index."""

import numpy as np
import pyarrow.parquet as pq
from crc32c import crc32c

from streammiml.bags import parquet_write
from tests.bags.test_seal import FORMAT
from tests.stores import as_sparse, made_block, made_spec, sizes


def test_part_key__sorts_by_number():
    keys = [parquet_write.part_key(number) for number in (0, 99_999, 100_000, 10_000_000)]
    assert keys == sorted(keys)
    assert "mine.parquet/" + keys[0] in FORMAT.read_text()


def test_write_part__index_has_a_record_for_each_row_group(tmp_path):
    path, block = tmp_path / "part", made_block()
    with sizes(group=64):
        part = parquet_write.write_part(path, block, made_spec(chunk_bytes=1))
    raw, n_groups = path.read_bytes(), pq.read_metadata(path).num_row_groups
    assert n_groups > 1
    assert (part.size, part.crc) == (len(raw), crc32c(raw))
    assert raw[part.footer[0] :][-4:] == b"PAR1"
    assert len(part.records["rows"]) == n_groups
    assert part.records["rows"]["elements"].sum() == block.n_rows
    for record in part.records["rows"]:
        chunk = raw[record["offset"] : record["offset"] + record["nbytes"]]
        assert crc32c(chunk) == record["crc"]
    assert part.plain["rows"]


def test_schema__has_the_columns_of_the_spec():
    names = parquet_write.schema(made_spec()).names
    assert names == ["bag_id", "labels", "rows", "row_labels"]
    sparse = parquet_write.schema(made_spec(sparse=True, bag_ids=False)).names
    assert sparse == ["labels", "columns", "values", "row_labels"]


def test_block_offsets__have_the_names_of_a_store():
    offsets = parquet_write.block_offsets(as_sparse(made_block()))
    assert sorted(offsets) == ["bag_id_offsets", "bag_offsets", "label_offsets", "row_offsets"]
    assert all(array[0] == 0 and (np.diff(array) >= 0).all() for array in offsets.values())
