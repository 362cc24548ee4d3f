"""sm.convert of Dask collections: dataframes and bags, in threads, processes and on a client."""

import dask
import dask.array
import dask.bag
import dask.dataframe
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from distributed import Client, LocalCluster

import streammiml as sm
from streammiml.errors import StreammimlError
from streammiml_tools.convert.dask_source import is_collection
from streammiml_tools.readers.base import SourceError
from tests.tools.source_files import bags_of

RNG = np.random.default_rng(7)
NAMES = ("sea", "sky", "sun")


def corpus(n_bags=12, dtype=np.float32):
    """Rows, labels by name and id of each bag."""
    for number in range(n_bags):
        rows = RNG.integers(0, 9, (number % 3 + 1, 4)).astype(dtype)
        yield rows, sorted({NAMES[number % 3], NAMES[number % 2]}), f"bag_{number:02d}"


BAGS = list(corpus())
FRAME = pd.DataFrame(np.concatenate([rows for rows, _, _ in BAGS]), columns=list("uvwx"))
FRAME.insert(
    0, "doc_id", np.repeat([key for _, _, key in BAGS], [len(rows) for rows, _, _ in BAGS])
)
FRAME["topics"] = np.repeat(
    [";".join(labels) for _, labels, _ in BAGS], [len(rows) for rows, _, _ in BAGS]
)


def check(store):
    want = [(key, tuple(NAMES.index(label) for label in labels)) for _, labels, key in BAGS]
    assert store.label_names == list(NAMES)
    assert [bag[:2] for bag in bags_of(store)] == want
    dense = store.read(0, store.n_bags).rows
    dense = dense.dense() if store.sparse else dense
    np.testing.assert_array_equal(dense, np.concatenate([rows for rows, _, _ in BAGS]))


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.parametrize("n_partitions", [1, 5])
def test_dataframe__gives_the_bags_of_the_frame(tmp_path, n_partitions):
    # Partitions are cut at any row, so a bag may be in two of them.
    frame = dask.dataframe.from_pandas(FRAME, npartitions=n_partitions, sort=False)
    store = sm.convert(frame, tmp_path / "a.zarr", bag="doc_id", labels="topics").store
    check(store)
    plain = sm.convert(FRAME, tmp_path / "b.zarr", bag="doc_id", labels="topics").store
    assert store.fingerprint == plain.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "b.zarr"]


def test_dataframe__on_a_client_with_a_lazy_table_of_labels(tmp_path, client):
    rows = dask.dataframe.from_pandas(FRAME.drop(columns="topics"), npartitions=4, sort=False)
    labels = pd.DataFrame({"doc_id": [key for _, _, key in BAGS]})
    for name in NAMES:
        labels[name] = [int(name in own) for _, own, _ in BAGS]
    lazy = dask.dataframe.from_pandas(labels, npartitions=2)
    # Rows in an order that only the workers know: a shuffle by a column.
    shuffled = client.persist(rows.shuffle("u"))
    store = sm.convert(
        shuffled, tmp_path / "a.zarr", bag="doc_id", labels=lazy, client=client
    ).store
    want = {key: sorted(map(tuple, rows.tolist())) for rows, _, key in BAGS}
    got = {store[i].id: sorted(map(tuple, store[i].rows.tolist())) for i in range(store.n_bags)}
    assert got == want
    assert {bag[0]: bag[1] for bag in bags_of(store)} == {
        key: tuple(NAMES.index(label) for label in own) for _, own, key in BAGS
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr"]


def test_default_client__computes_what_it_holds(tmp_path):
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=None, processes=False
        ) as cluster,
        Client(cluster),
    ):
        held = dask.bag.from_sequence(BAGS, npartitions=3).persist()
        check(sm.convert(held, tmp_path / "a.zarr").store)


def test_bag__of_tuples_or_dicts(tmp_path):
    bag = dask.bag.from_sequence(BAGS, npartitions=5)
    whole = sm.convert(bag, tmp_path / "a.zarr").store
    check(whole)
    fields = bag.map(lambda one: dict(zip(("rows", "labels", "id"), one, strict=True)))
    store = sm.convert(fields, tmp_path / "b.parquet", workers=2).store
    assert store.fingerprint == whole.fingerprint
    check(store)
    small = bag.map(lambda one: {"rows": one[0].astype(np.uint8), "labels": np.array([2])})
    store = sm.convert(small, tmp_path / "c.zarr").store
    assert (store.dtype, store.n_labels, store.has_bag_ids) == ("uint8", 3, False)
    with_rows = bag.map(lambda one: (*one, [one[1][0], *[-1] * (len(one[0]) - 1)]))
    with pytest.raises(SourceError, match=r"'row_labels' are names and numbers; give one or the o"):
        sm.convert(with_rows, tmp_path / "d.zarr")
    numbers = bag.map(lambda one: (one[0], [1], one[2], [1] + [-1] * (len(one[0]) - 1)))
    store = sm.convert(numbers, tmp_path / "d.zarr").store
    assert [bag[3] for bag in bags_of(store)][2] == (1, -1, -1)


def test_bag__of_sparse_rows_gives_a_sparse_store(tmp_path):
    bag = dask.bag.from_sequence(BAGS, npartitions=3)
    sparse = bag.map(lambda one: (scipy.sparse.csr_matrix(one[0]), *one[1:]))
    store = sm.convert(sparse, tmp_path / "a.zarr", client=None).store
    assert store.sparse
    check(store)
    ids = [key for _, _, key in BAGS]
    held = [scipy.sparse.csr_matrix(rows) for rows, _, _ in BAGS]
    want = sm.write_store(tmp_path / "b.zarr", held, [labels for _, labels, _ in BAGS], ids=ids)
    assert store.fingerprint == want.fingerprint
    # A row may have a column twice, in any order; the width may not occur.
    odd = scipy.sparse.csr_matrix(([1.5, 2.0, 0.5], [1, 0, 1], [0, 3]), shape=(1, 9))
    store = sm.convert(
        dask.bag.from_sequence([(odd, ["sky"])], npartitions=1), tmp_path / "c.zarr"
    ).store
    assert store[0].rows.tolist() == [[2.0, 2.0, *[0.0] * 7]]


def test_vectorizer__of_scikit_learn_gives_the_same_store_held_or_lazy(tmp_path):
    texts = pytest.importorskip("sklearn.feature_extraction.text")
    documents = [(["the sea is blue", "a sun"], ["sea"], "a"), (["blue sky"], ["sky", "sea"], "b")]
    sentences = [sentence for document, _, _ in documents for sentence in document]
    vectorizer = texts.TfidfVectorizer().fit(sentences)
    held = sm.write_store(
        tmp_path / "a.zarr",
        [vectorizer.transform(document) for document, _, _ in documents],
        [labels for _, labels, _ in documents],
        ids=["a", "b"],
        feature_names=vectorizer.get_feature_names_out(),
    )
    assert held.sparse
    assert held.feature_names == ["blue", "is", "sea", "sky", "sun", "the"]
    np.testing.assert_allclose(
        held[1].rows, vectorizer.transform(["blue sky"]).toarray(), rtol=1e-6
    )
    lazy = dask.bag.from_sequence(documents, npartitions=2).map(
        lambda one: (vectorizer.transform(one[0]), *one[1:])
    )
    assert sm.convert(lazy, tmp_path / "b.zarr").store.fingerprint == held.fingerprint


def test_training__on_a_collection_says_what_to_do():
    lazy = dask.bag.from_sequence(BAGS, npartitions=1)
    with pytest.raises(
        StreammimlError, match=r"a Bag of Dask is no store; .*sm\.convert\(collection"
    ):
        sm.train(lazy)


def test_bag__with_a_table_of_labels_by_another_name(tmp_path):
    bag = dask.bag.from_sequence([(rows, None, key) for rows, _, key in BAGS], npartitions=2)
    labels = pd.DataFrame(
        {"slide": [key for _, _, key in BAGS], "labels": [labels for _, labels, _ in BAGS]}
    )
    check(sm.convert(bag, tmp_path / "a.zarr", bag="slide", labels=labels).store)


def test_partitions__without_what_determines_a_type_are_converted(tmp_path):
    frame = pd.DataFrame(
        {
            "doc_id": ["a", "b", "c"],
            "embedding": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
            "labels": [[], ["sky"], []],
        }
    )
    parts = [frame[:1], frame[:0], frame[1:]]
    kinds = [frame.assign(kind=pd.Categorical(["x"] * 3)), frame.assign(kind=["x", "y", "z"])]
    # Dask would make texts of lists.
    with dask.config.set({"dataframe.convert-string": False}):
        lazy = dask.dataframe.from_delayed([dask.delayed(part) for part in parts], meta=frame)
        store = sm.convert(lazy, tmp_path / "a.zarr", bag="doc_id").store
        assert [bag[:2] for bag in bags_of(store)] == [("a", ()), ("b", (0,)), ("c", ())]
        lazy = dask.dataframe.from_delayed(
            [dask.delayed(kinds[0][:2]), dask.delayed(kinds[1][2:])],
            meta=kinds[1],
            verify_meta=False,
        )
        store = sm.convert(lazy, tmp_path / "b.zarr", bag="doc_id", labels="kind").store
        assert store.label_names == ["x", "z"]


# What is refused.


def refused(value, *, words, folder, **how):
    with pytest.raises(StreammimlError, match=words):
        sm.convert(value, folder / "a.zarr", **how)
    assert not any(folder.iterdir())


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([(1, 2, 3, 4, 5)], r"partition 0, bag 0 is of type tuple; expected \(rows, labels, id\)"),
        ([np.ones((2, 2))], r"bag 0 is of type ndarray; expected \(rows, labels, id\), or a dict"),
        (
            [{"rows": np.ones((1, 2)), "name": 3}],
            r"bag 0 has a field 'name'; known: rows, labels, id",
        ),
        ([{"labels": []}], r"partition 0, bag 0 has no 'rows'"),
        (
            [(np.ones(2), [])],
            r"bag 0 is float64 of shape \(2,\), expected numbers of shape \(rows,",
        ),
        (
            [(np.ones((1, 2)), [1.5])],
            r"partition 0, bag 0 has the label 1\.5, expected a name or a",
        ),
        (
            [(np.ones((1, 2)), ["a", 1])],
            r"partition 0: 'labels' are names and numbers; give one or",
        ),
        (
            [(np.ones((1, 2)), [1], "a"), (np.ones((1, 2)), [1])],
            r"partition 0, bag 1 has no 'id', unlike bag 0 of the partition",
        ),
        (
            [(np.ones((1, 2)), [1]), (np.ones((1, 2)), [1], "a")],
            r"partition 0, bag 1 has a field 'id', unlike bag 0 of the partition",
        ),
        (
            [(np.ones((1, 2)), [1]), (np.ones((1, 3)), [1])],
            r"partition 0 has rows of 2 and of 3 values",
        ),
        (
            [(np.ones((1, 2)), [1]), (scipy.sparse.csr_matrix(np.ones((1, 2))), [1])],
            r"partition 0: some bags are sparse and others dense",
        ),
        (
            [(np.ones((1, 2)), [0, 1]), (np.ones((1, 2)), [1, 0])],
            r"the labels of all bags are \[0, 1\] or \[1, 0\]: marks of two labels, or numbers of",
        ),
        ([], r"the Dask collection is empty: none of its partitions has records"),
    ],
)
def test_bags__that_cannot_be_meant_are_refused(tmp_path, items, words):
    lazy = dask.bag.from_delayed([dask.delayed(list)(items)])
    refused(lazy, words=words, folder=tmp_path)


def test_partitions__that_differ_are_refused(tmp_path):
    dense, sparse = np.ones((1, 2)), scipy.sparse.csr_matrix(np.ones((1, 3)))
    for items, words in (
        ([(dense, [1]), (sparse, [1])], "some bags of the dask.bag are sparse and others dense"),
        ([(sparse, [1]), (sparse[:, :2], [1])], "the dask.bag has rows of 2 and of 3 values"),
        ([(dense, [1]), (dense, ["a"])], "partitions have columns of different types: "),
        ([(dense, [1]), (dense,)], "partitions have different columns: instances, and instances, "),
        (
            [(dense, [1]), (dense[:, :1], [1])],
            "partitions have columns of different types: |a row of|expected",
        ),
    ):
        refused(dask.bag.from_sequence(items, npartitions=2), words=words, folder=tmp_path)


ROWS = np.concatenate([rows for rows, _, _ in BAGS])
IDS = np.repeat([key for _, _, key in BAGS], [len(rows) for rows, _, _ in BAGS])
TOPICS = pd.DataFrame({"bag": [key for _, _, key in BAGS]}).assign(
    topics=[";".join(labels) for _, labels, _ in BAGS]
)


@pytest.mark.parametrize("chunks", [(100, 100), (5, 3), (1, 4)])
def test_array__of_rows_with_the_bag_of_each(tmp_path, chunks):
    # Chunks are cut at any row and feature, so a bag may be in two of them.
    lazy = dask.array.from_array(ROWS, chunks=chunks)
    check(sm.convert(lazy, tmp_path / "a.zarr", bag=IDS, labels=TOPICS).store)


def test_array__on_a_client_with_lazy_ids(tmp_path, client):
    lazy = dask.array.from_array(ROWS, chunks=(7, 4))
    ids = dask.array.from_array(IDS, chunks=3)
    check(sm.convert(lazy, tmp_path / "a.zarr", bag=ids, labels=TOPICS, client=client).store)


def test_array__of_bags_has_their_numbers_as_ids(tmp_path):
    bags = RNG.integers(0, 9, (5, 3, 2)).astype(np.uint8)
    topics = pd.DataFrame({"bag": range(5), "sea": [1, 0, 1, 0, 1], "sky": [0, 1, 1, 0, 0]})
    lazy = dask.array.from_array(bags, chunks=(2, 2, 1))
    store = sm.convert(lazy, tmp_path / "a.zarr", labels=topics).store
    assert [bag.id for bag in store] == list("01234")
    assert [bag.labels.tolist() for bag in store] == [[0], [1], [0, 1], [], [0]]
    np.testing.assert_array_equal(np.stack([bag.rows for bag in store]), bags)


def test_array__what_cannot_be_bags_is_refused(tmp_path):
    lazy = dask.array.from_array(ROWS, chunks=(7, 4))
    for array, ids, words in (
        (lazy, None, r"which bag has each row of the dask.array\? give bag=…"),
        (
            lazy,
            IDS[1:],
            rf"bag=… has shape \({len(IDS) - 1},\), expected \({len(IDS)},\): an id for",
        ),
        (
            lazy[:, 0],
            IDS,
            r"the dask.array is float32 of shape \(\d+,\), expected numbers of shape",
        ),
        (lazy.astype(str), IDS, r"the dask.array is <U\d+ of shape"),
        (lazy[lazy[:, 0] > 1], IDS, r"the sizes of the chunks of the dask.array are not known"),
    ):
        refused(array, words=words, folder=tmp_path, bag=ids, labels=TOPICS)


def test_collections__of_other_kinds_are_refused(tmp_path):
    assert not is_collection(dask.delayed(1))
    frame = dask.dataframe.from_pandas(FRAME, npartitions=2)
    words = (
        r"which column of the table names the bag of a row\? give bag='…'; the columns are doc_id"
    )
    refused(frame, words=words, folder=tmp_path)
    words = r"^partition 0 of the source: no column is called 'slide' \(--bag-column\)"
    refused(frame, words=words, folder=tmp_path, bag="slide", labels="topics")
    with pytest.raises(
        StreammimlError, match=r"a\.zarr cannot be written: there is no folder .*no"
    ):
        sm.convert(frame, tmp_path / "no" / "a.zarr", bag="doc_id")
    assert not is_collection(FRAME)


def test_error__of_the_collection_itself_is_raised_as_it_is(tmp_path):
    lazy = dask.bag.from_sequence([0, 0], npartitions=2).map(lambda number: 1 / number)
    with pytest.raises(ZeroDivisionError):
        sm.convert(lazy, tmp_path / "a.zarr")
    assert not any(tmp_path.iterdir())
