"""Reading: by range, by number, through views, and several stores as one."""

import pickle
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streammiml as sm
from streammiml._base.crc import has_fast_way
from streammiml.bags import store as module
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.layout import MANIFEST
from streammiml.bags.verified_array import CachedArray, VerifiedArray
from streammiml.bags.writer import BagWriter
from streammiml.errors import StoreError
from tests.stores import (
    BACKENDS,
    as_sparse,
    assert_equal,
    assert_same,
    assert_same_kept,
    made_block,
    made_spec,
    plain,
    read_together,
    scratch,
    sizes,
    write_parts,
    write_store,
)
from tests.strategies import Corpus, corpora, cuttings

any_backend = st.sampled_from(BACKENDS)


@contextmanager
def written(corpus: Corpus, backend: str, cut: dict):
    """The corpus as an open store in a new folder."""
    with scratch() as folder, sizes(**cut):
        yield write_parts(folder / f"x.{backend}", corpus.spec, corpus.parts)


def values_of(block) -> np.ndarray:
    """Stored values of each bag."""
    rows = block.rows
    width = np.full(len(rows), block.n_features)
    if isinstance(rows, SparseRows):
        width = np.diff(rows.offsets)
    return np.diff(np.concatenate([[0], np.cumsum(width)])[block.bag_offsets])


def ranges(n: int) -> st.SearchStrategy:
    return st.tuples(st.integers(0, n), st.integers(0, n)).map(sorted)


@given(corpus=corpora(), backend=any_backend, cut=cuttings(), data=st.data())
def test_read__returns_what_was_written_for_any_range(corpus, backend, cut, data):
    block = corpus.block
    with written(corpus, backend, cut) as store:
        assert store.check() == []
        assert_same(store.read(0, len(block)), block)
        start, stop = data.draw(ranges(len(block)))
        want = block.slice(start, stop)
        assert_same(store.read(start, stop), want)
        assert_equal(store.bag_sizes(start, stop), np.diff(want.bag_offsets), "sizes")
        assert_equal(store.bag_values(start, stop), values_of(want), "values")
        offsets, labels = store.labels(start, stop)
        assert_equal(offsets, want.label_offsets, "label offsets")
        assert_equal(labels, want.label_indices, "labels")
        ids = [str(i) for i in range(start, stop)] if want.bag_ids is None else want.bag_ids
        assert store.bag_ids(start, stop) == ids
        assert (
            (store.n_bags, store.n_rows)
            == (len(block), block.n_rows)
            == (len(store), len(block.rows))
        )
        assert store.n_label_entries == len(block.label_indices)


@given(corpus=corpora(), backend=any_backend, cut=cuttings(), data=st.data())
def test_read_bags__returns_any_bags_in_any_order(corpus, backend, cut, data):
    numbers = data.draw(st.lists(st.integers(0, len(corpus.block) - 1), max_size=10))
    with written(corpus, backend, cut) as store:
        assert_same(store.read_bags(numbers), corpus.block.take(np.array(numbers, np.int64)))


@given(corpus=corpora(), backend=any_backend, cut=cuttings(), data=st.data())
def test_read_ranges__are_the_blocks_that_reads_one_by_one_give(corpus, backend, cut, data):
    spans = data.draw(st.lists(ranges(len(corpus.block)), min_size=1, max_size=6))
    bare = plain(corpus.block)
    expected = BagBlock.join([bare.slice(*span) for span in spans])
    with written(corpus, backend, cut) as store:
        assert_same(read_together(store, spans), expected)
        assert_same(read_together(store.view(np.arange(len(bare))), spans), expected)


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("sparse", [False, True])
def test_read_ranges__of_local_zarr_files_are_all_read_together(
    codec, sparse, tmp_path, monkeypatch
):
    if not has_fast_way():
        pytest.skip("this processor checks piece by piece")
    block = as_sparse(made_block(40)) if sparse else made_block(40)
    store = write_store(tmp_path / "x.zarr", block, codec=codec, chunk_bytes=64)
    # Except ranges of the last chunk, which is padded.
    spans = [(30, 33), (0, 7), (5, 9)]
    monkeypatch.setattr(VerifiedArray, "_read_coded", lambda *_: pytest.fail("one by one"))
    monkeypatch.setattr(VerifiedArray, "_read_raw", only_cached(VerifiedArray._read_raw))
    bare = replace(block, row_labels=None, bag_ids=None)
    expected = BagBlock.join([bare.slice(*span) for span in spans])
    assert_same(read_together(store, spans), expected)


def only_cached(read):
    """Fail unless the array is cached; only cached arrays may be read one by one."""

    def checked(array, *args):
        assert isinstance(array, CachedArray)
        return read(array, *args)

    return checked


@given(corpus=corpora(), backend=any_backend, cut=cuttings(), data=st.data())
def test_view__holds_the_chosen_bags(corpus, backend, cut, data):
    n = len(corpus.block)
    chosen = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=10)), np.int64)
    start, stop = data.draw(ranges(len(chosen)))
    want = corpus.block.take(chosen).slice(start, stop)
    with written(corpus, backend, cut) as store:
        view = store.view(chosen)
        assert_same(view.read(start, stop), want)
        assert_equal(view.bag_sizes(start, stop), np.diff(want.bag_offsets), "sizes")
        assert_equal(view.bag_values(start, stop), values_of(want), "values")
        offsets, labels = view.labels(start, stop)
        assert_equal(offsets, want.label_offsets, "label offsets")
        assert_equal(labels, want.label_indices, "labels")
        assert_same_kept(view.kept(start, stop), want.kept)
        assert view.bag_ids(start, stop) == [store.bag_ids(i, i + 1)[0] for i in chosen[start:stop]]
        assert view.n_rows == int(store.bag_sizes(0, n)[chosen].sum())
        assert view.n_label_entries == corpus.block.take(chosen).label_offsets[-1]
        again = view.view(slice(start, stop))
        assert_same(again.read(0, stop - start), want)


@given(corpus=corpora(), backend=any_backend, cut=cuttings())
def test_with_label__views_the_bags_that_carry_it(corpus, backend, cut):
    with written(corpus, backend, cut) as store:
        for label in range(store.n_labels):
            want = [i for i in range(len(store)) if label in corpus.block.labels_of(i)]
            assert store.with_label(label).indices.tolist() == want


@given(corpus=corpora(), data=st.data())
def test_joined_stores__read_as_one(corpus, data):
    spec = replace(corpus.spec, n_labels=corpus.spec.n_labels or 5)
    block, pieces = corpus.block, [part for part in corpus.parts if len(part)]
    with scratch() as folder, sizes():
        paths = []
        for number, piece in enumerate(pieces):
            # Stores of different backends can be joined.
            backend = data.draw(any_backend)
            paths.append(folder / f"{number}.{backend}")
            write_parts(paths[-1], spec, [piece])
        joined = sm.open_store(paths)
        start, stop = data.draw(ranges(len(block)))
        want = block.slice(start, stop)
        assert_same(joined.read(start, stop), want)
        assert_equal(joined.bag_sizes(start, stop), np.diff(want.bag_offsets), "sizes")
        assert_equal(joined.bag_values(start, stop), values_of(want), "values")
        assert_equal(joined.labels(start, stop)[0], want.label_offsets, "label offsets")
        assert_equal(joined.labels(start, stop)[1], want.label_indices, "labels")
        assert_same_kept(joined.kept(start, stop), want.kept)
        ids = [str(i) for i in range(start, stop)] if want.bag_ids is None else want.bag_ids
        assert joined.bag_ids(start, stop) == ids
        assert (joined.n_bags, joined.n_rows) == (len(block), block.n_rows)
        assert joined.n_label_entries == len(block.label_indices)
        chosen = data.draw(st.lists(st.integers(0, len(block) - 1), max_size=8))
        want = block.take(np.array(chosen, np.int64))
        assert_same(joined.read_bags(chosen), want)
        assert_same(joined.view(chosen).read(0, len(chosen)), want)


def test_block_that_was_read__can_be_changed_without_harm_to_the_store(tiny):
    store = sm.open_store(tiny.path)
    block = store.read(0, 12)
    for array in (block.rows, block.label_indices, block.row_labels, block.bag_offsets):
        array[:] = 0
    store.labels(0, 12)[1][:] = 0
    assert_same(store.read(0, 12), tiny.block)


def test_blocks__add_up_to_the_whole(tiny):
    store = sm.open_store(tiny.path)
    parts = list(store.blocks(5))
    assert [len(part) for part in parts] == [5, 5, 2]
    assert_same(type(tiny.block).join(parts), tiny.block)


def test_store__has_counts_and_names(tiny):
    store = sm.open_store(str(tiny.path))
    assert repr(store) == (
        f"<BagStore {tiny.path}: 12 bags, {tiny.block.n_rows} rows of 3 features (float32), "
        "4 labels>"
    )
    assert store.label_names == ["sea", "sky", "sun", "tree"]
    assert store.feature_names == ["r", "g", "b"]
    assert (store.has_row_labels, store.has_bag_ids, store.sparse) == (True, True, False)
    assert store.bag_ids(3, 5) == ["bag-0003", "bag-0004"]
    assert sm.open_store([tiny.path]).fingerprint == store.fingerprint


def test_location__survives_pickling(tiny):
    location = pickle.loads(pickle.dumps(sm.open_store(tiny.path).location))
    assert location.name == str(tiny.path)
    assert location.size(MANIFEST) == (tiny.path / MANIFEST).stat().st_size


def test_store__is_pickled_as_its_location_without_files_and_caches(tiny):
    store = sm.open_store(tiny.path)
    store.read(0, 12)
    raw = pickle.dumps(store)
    assert len(raw) < 400 + len(str(tiny.path))
    for other in (pickle.loads(raw), store.reopened()):
        assert other.location is not store.location
        assert not other.location._files
        assert other.fingerprint == store.fingerprint
        assert_same(other.read(0, 12), tiny.block)


def test_store__that_changed_after_pickling_is_refused(tmp_path):
    path = tmp_path / "s.zarr"
    store = write_store(path, plain(made_block(12)), n_labels=4)
    raw = pickle.dumps(store)
    shutil.rmtree(path)
    write_store(path, plain(made_block(13)), n_labels=4)
    with pytest.raises(StoreError, match=r"s\.zarr has changed since it was opened; open it again"):
        pickle.loads(raw)
    with pytest.raises(StoreError, match=r"s\.zarr has changed since it was opened; open it again"):
        store.reopened()


def test_opening__reads_no_data(tiny, tmp_path):
    copy = tmp_path / tiny.path.name
    shutil.copytree(tiny.path, copy)
    for key, size, _ in sm.open_store(copy).manifest.files:
        with (copy / key).open("r+b") as file:
            file.write(b"\0" * (size - 2000 if tiny.backend == "zarr" else 8))
    assert len(sm.open_store(copy)) == 12


# Requests that are refused.


def test_range_beyond_the_store__is_refused(tiny):
    store = sm.open_store(tiny.path)
    joined, view = sm.open_store([tiny.path, tiny.path]), store.view([1, 2])
    for bags, start, stop in ((store, 0, 13), (store, -1, 2), (store, 5, 4), (joined, 20, 25)):
        for call in (bags.read, bags.labels, bags.bag_sizes, bags.bag_ids):
            with pytest.raises(StoreError, match=f"has bags 0 to .*, requested {start} to {stop}"):
                call(start, stop)
    for call in (view.read, view.labels, view.bag_sizes, view.bag_ids):
        with pytest.raises(StoreError, match="has bags 0 to 2, requested 0 to 3"):
            call(0, 3)


def test_ids_by_number__have_a_range_too(backend, tmp_path):
    store = write_store(tmp_path / f"x.{backend}", plain(made_block()))
    joined = sm.open_store([store.name, store.name])
    for bags in (store, joined, store.view([0])):
        with pytest.raises(StoreError, match=r"requested 0 to 99"):
            bags.bag_ids(0, 99)


def test_bags_beyond_the_store__are_refused(tiny):
    store = sm.open_store(tiny.path)
    with pytest.raises(StoreError, match=r"has bags 0 to 11, requested -1 to 12"):
        store.read_bags([12, -1])
    with pytest.raises(StoreError, match=r"has bags 0 to 11, a view requests 3 to 12"):
        store.view([3, 12])


def test_no_store_named__is_refused():
    with pytest.raises(StoreError, match="no store was named"):
        sm.open_store([])


def test_path_that_is_no_store__is_refused(backend, tmp_path):
    path = tmp_path / f"x.{backend}"
    with pytest.raises(StoreError, match=rf"x.{backend} does not exist$"):
        sm.open_store(path)
    path.mkdir()
    with pytest.raises(StoreError, match=r"is no store: it has no _streammiml/manifest.json"):
        sm.open_store(path)
    (path / ("zarr.json" if backend == "zarr" else "x.parquet")).write_text("{}")
    with pytest.raises(StoreError, match=r"has no _streammiml; run streammiml seal .*x\."):
        sm.open_store(path)
    (path / MANIFEST).mkdir(parents=True)
    with pytest.raises(StoreError, match=r"manifest.json is a folder, expected a file"):
        sm.open_store(path)
    file = tmp_path / "notes.txt"
    file.write_text("no store")
    with pytest.raises(StoreError, match=r"notes.txt is no store"):
        sm.open_store(file)


def test_unfinished_store__is_refused_as_unfinished(backend, tmp_path):
    path = tmp_path / f"x.{backend}"
    unfinished = pytest.raises(StoreError, match=r"is unfinished; run streammiml convert again")
    with BagWriter.begin(path, made_spec()), unfinished:
        sm.open_store(path)


def test_footers_beyond_the_first__are_checked_at_their_first_use(tmp_path, monkeypatch):
    block = made_block(dtype="int16")
    spec = made_spec(dtype="int16")
    parts = [block.slice(i, i + 1) for i in range(12)]
    path = tmp_path / "x.parquet"
    store = write_parts(path, spec, parts)
    offset, _, _ = store.manifest.metadata["part-00000007.parquet"]
    with (path / "part-00000007.parquet").open("r+b") as file:
        file.seek(offset + 3)
        file.write(b"\xff")
    with pytest.raises(StoreError, match=r"part-00000007.parquet is damaged or was edited"):
        sm.open_store(path)
    monkeypatch.setattr(module, "CHECKED_AT_OPEN", 2)
    store = sm.open_store(path)
    assert_same(store.read(0, 7), block.slice(0, 7))
    with pytest.raises(StoreError, match=r"part-00000007.parquet is damaged or was edited"):
        store.read(7, 8)


def test_store__shows_itself_as_a_table_in_notebooks(tmp_path):
    store = write_store(tmp_path / "x.zarr", made_block(), label_names=("a", "<b>", "c", "d"))
    page = store._repr_html_()
    assert "<td" in page
    assert f"{store.n_rows:,}" in page
    assert "a, &lt;b&gt;, c, d" in page
    assert "<b>" not in page


THREADS = """
import os, sys
from streammiml.bags.store import open_one
store = open_one(sys.argv[1])
before = len(os.listdir("/proc/self/task"))
store.read(0, store.n_bags)
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_parquet__reading_starts_no_thread_that_outlives_the_interpreter(tmp_path):
    """A thread of Arrow that releases Python objects while the interpreter exits aborts it."""
    path = tmp_path / "s.parquet"
    write_store(path, made_block(200), codec="lz4")
    words = [sys.executable, "-c", THREADS, path]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"], done


def test_open__of_a_table_or_of_arrays_says_how_to_write_a_store():
    with pytest.raises(StoreError, match=r"a table is no store; .*: sm\.convert\(table, 'corpus"):
        sm.open_store(pd.DataFrame({"doc_id": ["a"], "x": [1.0]}))
    for bags in ([np.eye(2)], np.eye(2), 5, iter(["a.zarr"])):
        with pytest.raises(
            StoreError, match=r"named by its path, not by .*: sm\.write_store\('cor"
        ):
            sm.open_store(bags)
