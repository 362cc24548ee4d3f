"""Views of some bags, and several stores as one."""

import pickle

import numpy as np
import pytest

import streammiml as sm
from streammiml.bags import views
from streammiml.errors import StoreError
from tests.stores import assert_same, made_block, plain, write_store


def test_view__takes_slices_masks_and_labels_by_name(tiny):
    store = sm.open_store(tiny.path)
    assert_same(store.view(slice(-3, None)).read(0, 3), tiny.block.slice(9, 12))
    mask = np.arange(12) % 5 == 0
    assert store.view(mask).indices.tolist() == [0, 5, 10]
    assert store.with_label("sky").indices.tolist() == store.with_label(1).indices.tolist()
    assert store.view(mask).label_names == ["sea", "sky", "sun", "tree"]
    assert store.view([]).read(0, 0).n_rows == 0
    assert store.view([]).n_rows == store.view([]).n_label_entries == 0


def test_fingerprints__of_views_and_joins_tell_them_apart(tiny):
    store = sm.open_store(tiny.path)
    joined = sm.open_store([tiny.path, tiny.path])
    seen = [store, joined, store.view([0, 1]), store.view([1, 0]), joined.view([0, 1])]
    assert len({bags.fingerprint for bags in seen}) == len(seen)
    assert store.view([0, 1]).fingerprint == sm.open_store(tiny.path).view([0, 1]).fingerprint


def test_joined_stores__drop_what_one_of_them_lacks(backend, tmp_path):
    block = made_block()
    write_store(tmp_path / f"a.{backend}", block)
    write_store(tmp_path / f"b.{backend}", plain(block), n_labels=4)
    joined = sm.open_store([tmp_path / f"a.{backend}", tmp_path / f"b.{backend}"])
    assert (joined.has_row_labels, joined.has_bag_ids) == (False, False)
    assert joined.read(0, 24).row_labels is None
    assert joined.bag_ids(11, 13) == ["11", "12"]


def test_bags_by_fractions__are_refused(tiny):
    store = sm.open_store(tiny.path)
    with pytest.raises(StoreError, match=r"numbers of bags must be integers, got float64"):
        store.read_bags([0.5])
    with pytest.raises(StoreError, match=r"numbers of bags must be integers, got float64"):
        store.view([0.5])


def test_mask_of_another_length__is_refused(tiny):
    store = sm.open_store(tiny.path)
    with pytest.raises(StoreError, match=r"has 12 bags, the mask of a view has 5"):
        store.view(np.ones(5, bool))


def test_unknown_label__is_refused_with_those_that_are_known(tiny, tmp_path):
    store = sm.open_store(tiny.path)
    for label in ("sand", 4, -1):
        with pytest.raises(StoreError, match=f"has no label {label!r}; known: sea, sky, sun, tree"):
            store.with_label(label)
    nameless = write_store(tmp_path / "x.zarr", made_block())
    with pytest.raises(StoreError, match=r"has no label 'sea'; known: 0 to 3"):
        nameless.with_label("sea")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_labels": 9}, "n_labels is 4 and 9"),
        ({"dtype": "float16"}, "dtype is float32 and float16"),
        ({"label_names": ("a", "b", "c", "d")}, r"label_names is None and \['a', 'b', 'c', 'd'\]"),
    ],
)
def test_stores_that_differ__cannot_be_joined(tiny, tmp_path, changes, message):
    a = write_store(tmp_path / f"a.{tiny.backend}", tiny.block)
    b = write_store(tmp_path / f"b.{tiny.backend}", tiny.block, **changes)
    with pytest.raises(StoreError, match=f"cannot be read as one: {message}"):
        sm.open_store([a.name, b.name])


def test_names_that_differ__are_shortened(tmp_path):
    names_a, names_b = (tuple(f"{a}{i:030d}" for i in range(4)) for a in "ab")
    a = write_store(tmp_path / "a.zarr", made_block(), label_names=names_a)
    b = write_store(tmp_path / "b.zarr", made_block(), label_names=names_b)
    with pytest.raises(StoreError, match=r"label_names is \['a0+.*\.\.\. and \['b0+.*\.\.\.$"):
        sm.open_store([a.name, b.name])


def test_bags__by_number_slice_and_iteration(tiny):
    store, block = sm.open_store(tiny.path), tiny.block
    for number, bag in enumerate(store):
        np.testing.assert_array_equal(bag.rows, block.rows_of(number))
        np.testing.assert_array_equal(bag.labels, block.labels_of(number))
        assert bag.id == block.bag_ids[number]
    assert number == len(store) - 1
    assert [bag.id for bag in store[2:9:3]] == [block.bag_ids[i] for i in (2, 5, 8)]
    assert store[-1].id == block.bag_ids[-1]
    rows, labels, name = store[4]
    assert (len(rows), labels.tolist(), name) == (
        len(block.rows_of(4)),
        block.labels_of(4).tolist(),
        block.bag_ids[4],
    )
    assert store[3:3] == []
    with pytest.raises(IndexError):
        store[12]


def test_iteration__reads_some_bags_at_a_time(tiny, monkeypatch):
    store = sm.open_store(tiny.path)
    want = [bag.rows.tolist() for bag in store]
    monkeypatch.setattr(views, "ITERATED_BYTES", 3 * store.n_features * 4)
    monkeypatch.setattr(views, "SCAN_BAGS", 5)
    assert [bag.rows.tolist() for bag in store] == want
    sizes = [int(store.bag_sizes(*span).sum()) for span in store._iterated()]
    assert max(sizes) <= max(3, int(store.bag_sizes(0, 12).max()))
    assert len(sizes) > 3


def test_views_and_joined_stores__are_pickled_as_locations(tiny):
    store, joined = sm.open_store(tiny.path), sm.open_store([tiny.path, tiny.path])
    for bags in (
        joined,
        joined.view([20, 3, 3]),
        store.view(slice(3, 9)),
        store.view([]),
        joined.view(slice(2, 20)).view(np.arange(18) % 2 == 0),
    ):
        bags.read(0, bags.n_bags)
        for other in (pickle.loads(pickle.dumps(bags)), bags.reopened()):
            assert type(other) is type(bags)
            assert (other.name, other.fingerprint) == (bags.name, bags.fingerprint)
            assert_same(other.read(0, other.n_bags), bags.read(0, bags.n_bags))


def test_view__of_a_range_takes_no_room_for_each_bag(tmp_path):
    store = write_store(tmp_path / "s.zarr", plain(made_block(2000)), n_labels=4)
    view = store.view(slice(5, 1900))
    assert len(pickle.dumps(view)) < 1000
    assert pickle.loads(pickle.dumps(view)).indices.tolist() == list(range(5, 1900))


def test_read_bags__reads_no_long_bag_that_lies_between_them(tmp_path, monkeypatch):
    block = made_block(30, n_features=4)
    store = write_store(tmp_path / "s.zarr", block)
    sizes = store.bag_sizes(0, 30)
    # Rows of four float32 numbers: only the longest bags are long.
    monkeypatch.setattr(views, "GAP_BYTES", 16 * (int(sizes.max()) - 1))
    real, ranges = store.read, []

    def tracked(start, stop, **options):
        ranges.append((start, stop))
        return real(start, stop, **options)

    monkeypatch.setattr(store, "read", tracked)
    is_long = sizes == sizes.max()
    long = int(np.flatnonzero(is_long[2:-2])[0]) + 2
    for numbers in ([long - 1, long + 1], [long + 1, 0, long - 2, long + 1], [long - 1, long]):
        ranges.clear()
        assert_same(store.read_bags(numbers), block.take(np.array(numbers)))
        read = {bag for start, stop in ranges for bag in range(start, stop)}
        assert not any(is_long[bag] for bag in read - set(numbers))
        assert set(numbers) <= read


def test_reads_in_place__only_of_values_that_are_stored_as_they_are_in_memory(tmp_path):
    block = plain(made_block(30))
    raw = write_store(tmp_path / "a.zarr", block, codec="none")
    coded = write_store(tmp_path / "b.zarr", block, codec="zstd")
    parquet = write_store(tmp_path / "c.parquet", block)
    assert raw.reads_in_place
    assert not coded.reads_in_place
    assert not parquet.reads_in_place
    assert not raw.view([1, 2]).reads_in_place
    assert sm.open_store([tmp_path / "a.zarr", tmp_path / "a.zarr"]).reads_in_place
    assert not sm.open_store([tmp_path / "a.zarr", tmp_path / "b.zarr"]).reads_in_place
