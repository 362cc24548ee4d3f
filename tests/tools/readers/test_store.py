"""Another store as a source: spans, names, and what has changed since."""

from dataclasses import replace
from pathlib import Path

import pytest

from streammiml.bags.block import BagBlock
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.remote_files import url_of
from streammiml_tools.readers.store import READER
from tests.stores import assert_same, made_block, made_spec, write_parts, write_store


@pytest.mark.parametrize("span_bytes", [1, 100, 1 << 20])
def test_spans__join_to_all_bags(tiny, span_bytes):
    options = SourceOptions(span_bytes=span_bytes)
    scan = READER.scan([tiny.path], options)
    assert sum(span.n_bags for span in scan.spans) == scan.n_bags == len(tiny.block)
    assert all(a.stop == b.start for a, b in zip(scan.spans, scan.spans[1:], strict=False))
    block = BagBlock.join([b for span in scan.spans for b in READER.read(span, scan, options)])
    assert block.bag_ids == tiny.block.bag_ids
    assert_same(replace(block, bag_ids=None), replace(tiny.block, bag_ids=None))
    assert scan.label_names == ("sea", "sky", "sun", "tree")


def test_tells__stores_by_their_manifest_and_urls_by_suffix(tiny, tmp_path):
    assert READER.tells(tiny.path, b"")
    assert not READER.tells(tmp_path, b"")
    assert READER.tells(Path("s3://bucket/corpus.zarr"), b"")
    assert not READER.tells(Path("s3://bucket/corpus.csv"), b"")
    assert url_of(Path("s3://bucket/corpus.zarr")) == "s3://bucket/corpus.zarr"
    assert url_of(Path("https://host/c.zarr")) == "https://host/c.zarr"


def test_labels__of_another_number_or_name__are_refused(tiny, tmp_path):
    with pytest.raises(SourceError, match=r"label 'tree' is not known; known: sea, sky, sun; add"):
        READER.scan([tiny.path], SourceOptions(labels=("sea", "sky", "sun")))
    write_store(tmp_path / "plain.zarr", made_block(5), n_labels=4)
    with pytest.raises(SourceError, match=r"4 labels, but --labels gives 2 names"):
        READER.scan([tmp_path / "plain.zarr"], SourceOptions(labels=("a", "b")))
    scan = READER.scan([tmp_path / "plain.zarr"], SourceOptions(labels=("a", "b", "c", "d")))
    assert scan.label_names == ("a", "b", "c", "d")


def test_store_that_was_replaced__is_refused(tmp_path):
    path = tmp_path / "a.zarr"
    write_parts(path, made_spec(), [made_block(5)])
    options = SourceOptions()
    scan = READER.scan([path], options)
    with pytest.raises(SourceError, match=r"a\.zarr holds 5 bags, but had 7 when it was scanned"):
        list(READER.read(scan.spans[0], replace(scan, n_bags=7), options))
