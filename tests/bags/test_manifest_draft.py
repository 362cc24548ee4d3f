"""The fields of a manifest that every backend fills in."""

import numpy as np
from crc32c import crc32c

from streammiml.bags.fingerprint import Fingerprint, digests_of
from streammiml.bags.layout import PAGE_RECORDS, RECORD, table_key
from streammiml.bags.manifest_draft import PartTally, store_attributes, synced_entry, write_table
from tests.stores import made_block, made_spec, plain


def added(tally, block, dropped=0):
    tally.add(digests_of(block), np.diff(block.bag_offsets), block.top_label, dropped)


def test_tally__of_parts_is_that_of_all_bags():
    block, parts, together = made_block(), PartTally(), PartTally()
    added(parts, block.slice(0, 5), dropped=2)
    added(parts, block.slice(5, 5))
    added(parts, block.slice(5, 12), dropped=1)
    added(together, block, dropped=3)
    assert parts == together
    assert (parts.n_bags, parts.n_rows) == (12, block.n_rows)
    assert parts.longest_bag == np.diff(block.bag_offsets).max()
    want = Fingerprint()
    want.add(0, digests_of(block))
    assert parts.sums == want.sums


def test_n_labels__is_given_by_number_by_names_or_by_the_highest_label():
    tally = PartTally(top_label=6)
    assert tally.n_labels(made_spec(label_names=None)) == 7
    assert tally.n_labels(made_spec(label_names=None, n_labels=9)) == 9
    assert tally.n_labels(made_spec()) == 4


def test_attributes__leave_out_unknown_names():
    spec = made_spec(label_names=None, feature_names=None)
    assert store_attributes(spec, 5) == {"n_features": 3, "n_labels": 5}
    assert store_attributes(made_spec(), 4)["label_names"] == ("sea", "sky", "sun", "tree")


def test_table__is_written_with_the_files_of_the_manifest(tmp_path):
    records = np.zeros(PAGE_RECORDS + 3, RECORD)
    records["first"] = np.arange(len(records)) * 10
    pages = write_table(tmp_path, "rows", records, 4)
    raw = np.frombuffer((tmp_path / table_key("rows")).read_bytes(), RECORD)
    assert (raw["file"] == 4).all()
    assert (records["file"] == 0).all()
    assert [page[1:] for page in pages] == [[0, PAGE_RECORDS], [PAGE_RECORDS * 10, 3]]
    assert pages[1][0] == crc32c(raw[PAGE_RECORDS:].tobytes())
    assert synced_entry(tmp_path / table_key("rows")) == [0, raw.nbytes, crc32c(raw.tobytes())]


def test_top_label__counts_rows_and_bags():
    block = made_block()
    assert block.top_label == max(block.label_indices.max(), block.row_labels.max())
    assert plain(block).top_label == block.label_indices.max()
    assert block.slice(0, 0).top_label == -1
