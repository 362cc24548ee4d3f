"""convert: what goes in comes out, whatever the backend, type and source."""

import os
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streammiml as sm
from streammiml_tools.convert import convert
from streammiml_tools.convert.plan import ConvertConfig
from streammiml_tools.readers.base import SourceError, SourceOptions
from tests.clusters import inside_client
from tests.stores import (
    assert_same,
    made_block,
    made_spec,
    plain,
    scratch,
    write_parts,
    write_store,
)
from tests.strategies import blocks
from tests.tools.convert.cases import SMALL
from tests.tools.source_files import save_npy


@given(block=blocks(), span_bytes=st.sampled_from([1, 40, 1 << 20]))
def test_convert__gives_back_every_bag(block, span_bytes):
    with scratch() as folder:
        first = write_store(folder / "first.zarr", block)
        options = SourceOptions(span_bytes=span_bytes)
        second = convert(folder / "first.zarr", folder / "second.parquet", options=options).store
        third = convert(folder / "second.parquet", folder / "third.zarr", options=options).store
        for store in (second, third):
            assert store.fingerprint == first.fingerprint
            assert_same(store.read(0, store.n_bags), first.read(0, first.n_bags))
            assert store.bag_ids(0, store.n_bags) == first.bag_ids(0, first.n_bags)
            assert store.n_labels == first.n_labels


def test_convert__leaves_nothing_beside_the_store(source, tmp_path, backend):
    convert(source, tmp_path / f"out.{backend}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"out.{backend}", "source.zarr"]


def test_convert__is_the_same_on_a_client_which_stays_open(source, tmp_path):
    alone = convert(source, tmp_path / "alone.zarr").store
    with inside_client() as client:
        store = convert(source, tmp_path / "out.zarr", client=client).store
        assert client.status == "running"
    assert store.fingerprint == alone.fingerprint


def test_convert__keeps_names_and_takes_new_order_of_labels(source, tmp_path):
    store = convert(source, tmp_path / "same.zarr").store
    assert store.label_names == ["sea", "sky", "sun", "tree"]
    assert store.feature_names == ["r", "g", "b"]
    order = ("tree", "moon", "sun", "sky", "sea")
    store = convert(source, tmp_path / "other.zarr", options=SourceOptions(labels=order)).store
    assert store.label_names == list(order)
    before, after = sm.open_store(source).read(0, 40), store.read(0, 40)
    names = ["sea", "sky", "sun", "tree"]
    for bag in range(40):
        assert {order[i] for i in after.labels_of(bag)} == {names[i] for i in before.labels_of(bag)}


def test_convert__changes_type_codec_chunks_and_sparsity(source, tmp_path):
    settings = ConvertConfig(dtype="float16", codec="zstd", chunk_bytes="1KiB")
    store = convert(source, tmp_path / "half.zarr", settings).store
    assert (store.dtype, store.manifest.codec) == ("float16", "zstd")
    sparse = convert(source, tmp_path / "sparse.zarr", options=SourceOptions(sparse=True)).store
    assert sparse.sparse
    assert sparse.fingerprint == sm.open_store(source).fingerprint
    dense = convert(
        tmp_path / "sparse.zarr", tmp_path / "d.zarr", options=SourceOptions(sparse=False)
    )
    assert not dense.store.sparse
    assert dense.store.fingerprint == sparse.fingerprint


def test_convert__takes_several_sources_in_their_order(tmp_path):
    block = made_block(12)
    for name, start in (("a", 0), ("b", 6)):
        write_parts(tmp_path / f"{name}.zarr", made_spec(), [block.slice(start, start + 6)])
    store = convert([tmp_path / "a.zarr", tmp_path / "b.zarr"], tmp_path / "whole.parquet").store
    assert store.bag_ids(0, 12) == block.bag_ids
    with pytest.raises(SourceError, match=r"a\.zarr is named twice"):
        convert([tmp_path / "a.zarr", tmp_path / "a.zarr"], tmp_path / "twice.zarr")


def test_convert__sees_a_source_change_under_its_hands(tmp_path):
    source = save_npy(tmp_path / "source", plain(made_block(40)))

    def touch(_):
        os.utime(source / "label_indices.npy", ns=(1, 1))

    with pytest.raises(
        SourceError, match=r"label_indices.npy was written again during the conversion; re"
    ):
        convert(source, tmp_path / "out.zarr", options=SMALL, watch=touch)
    assert not (tmp_path / "out.zarr").exists()


def test_real_corel5k__counts_as_listed(real_data, tmp_path):
    path = real_data / "corel5k_tokens" / "data.npz"
    store = convert(path, tmp_path / "c.zarr", ConvertConfig(dtype="uint8")).store
    arrays = np.load(path)
    assert (store.n_rows, store.n_bags, store.n_labels, store.n_features) == (40852, 5000, 374, 499)
    assert round(store.n_label_entries / store.n_bags, 3) == 3.522
    block = store.read(0, 5000)
    assert np.array_equal(block.rows, arrays["instances"])
    assert np.array_equal(block.label_indices, arrays["label_indices"])
    assert Counter(np.diff(block.bag_offsets)) == Counter(np.diff(arrays["offsets"]))
