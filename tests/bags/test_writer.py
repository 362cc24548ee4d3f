"""Writing: parts in any order and from any process, interrupted anywhere; refusals."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streammiml as sm
from streammiml.bags.block import BagBlock
from streammiml.bags.layout import MANIFEST
from streammiml.bags.staging import staging_of
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter
from streammiml.errors import StoreError
from tests.stores import (
    BACKENDS,
    as_sparse,
    assert_same,
    content,
    made_block,
    made_spec,
    plain,
    scratch,
    sizes,
    write_parts,
    write_store,
)
from tests.strategies import corpora, cuttings


@given(corpus=corpora(), backend=st.sampled_from(BACKENDS), cut=cuttings(), data=st.data())
def test_parts__in_any_order_from_anyone_give_the_same_files(corpus, backend, cut, data):
    numbers = list(range(len(corpus.parts)))
    order = data.draw(st.permutations(numbers))
    joined = data.draw(st.sets(st.sampled_from(numbers)))
    stops = data.draw(st.sets(st.sampled_from(numbers)))
    with scratch() as folder, sizes(**cut):
        clean, path = folder / f"a.{backend}", folder / f"b.{backend}"
        write_parts(clean, corpus.spec, corpus.parts)
        writer = BagWriter.begin(path, corpus.spec)
        for number in order:
            if number in stops:
                writer.close()
                writer = BagWriter.begin(path, corpus.spec)
            part_writer = BagWriter.join(path) if number in joined else writer
            part_writer.write_part(number, corpus.parts[number])
            assert writer.has_part(number)
        store = writer.finish(len(numbers))
        assert_same(store.read(0, len(store)), corpus.block)
        assert content(path) == content(clean)
        assert sorted(file.name for file in folder.iterdir()) == [clean.name, path.name]


def test_finished_store__has_the_given_names(backend, tmp_path):
    block = made_block()
    with sm.BagWriter.begin(tmp_path / f"x.{backend}", made_spec(label_names=None)) as writer:
        writer.write_part(0, block)
        store = writer.finish(1, label_names=("a", "b", "c", "d", "e"))
    assert (store.n_labels, store.label_names) == (5, ["a", "b", "c", "d", "e"])
    assert store.manifest.longest_bag == int(np.diff(block.bag_offsets).max())
    assert store.manifest.dropped_bags == 0


def test_number_of_labels__is_given_or_counted(backend, tmp_path):
    block = plain(made_block())
    top = int(block.label_indices.max())
    assert write_store(tmp_path / f"a.{backend}", block).n_labels == top + 1
    assert write_store(tmp_path / f"b.{backend}", block, n_labels=9).n_labels == 9
    bare = replace(
        block, label_offsets=np.zeros(13, np.int64), label_indices=block.label_indices[:0]
    )
    store = write_store(tmp_path / f"c.{backend}", bare)
    assert store.n_labels == 0
    assert_same(store.read(0, 12), bare)
    assert store.check() == []


def test_row_labels__count_as_labels(backend, tmp_path):
    rows = np.ones((1, 1), np.float32)
    block = type(made_block()).from_bags([rows], [[0]], row_labels=[[6]])
    assert write_store(tmp_path / f"x.{backend}", block).n_labels == 7


def test_bags_with_every_label_and_with_none__are_stored(backend, tmp_path):
    rows = [np.ones((1, 2), np.float32)] * 3
    block = type(made_block()).from_bags(rows, [[0, 1, 2], [], [0, 1, 2]])
    store = write_store(tmp_path / f"x.{backend}", block)
    assert_same(store.read(0, 3), block)
    assert store.with_label(1).indices.tolist() == [0, 2]
    assert store.check() == []


def test_empty_bags__are_dropped_and_counted_across_parts(backend, tmp_path):
    block = made_block()
    nothing = replace(
        block.slice(0, 2),
        bag_offsets=np.zeros(3, np.int64),
        rows=block.rows[:0],
        row_labels=block.row_labels[:0],
        bag_ids=["x", "y"],
    )
    parts = [nothing, block.slice(0, 5), replace(nothing, bag_ids=["z", "w"]), block.slice(5, 12)]
    store = write_parts(tmp_path / f"x.{backend}", made_spec(empty_bags="drop"), parts)
    assert store.manifest.dropped_bags == 4
    assert_same(store.read(0, 12), block)
    assert store.check() == []


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_rows_of_zeros__are_written_like_any_other(backend, kind, tmp_path):
    block = plain(made_block())
    block = replace(block, rows=np.zeros_like(block.rows))
    block = as_sparse(block) if kind == "sparse" else block
    store = write_store(tmp_path / f"x.{backend}", block)
    assert_same(store.read(0, 12), block)
    assert store.check() == []


def test_sparse_store__takes_billions_of_features(backend, tmp_path):
    block = as_sparse(plain(made_block()))
    columns = block.rows.columns.astype(np.int64) + 2**32 - 3
    wide = replace(block.rows, columns=columns, n_features=2**32)
    store = write_store(tmp_path / f"x.{backend}", replace(block, rows=wide))
    assert store.n_features == 2**32
    rows_read = store.read(0, 12).rows
    assert rows_read.columns.tolist() == columns.tolist()
    assert store.check() == []


def test_part_written_again__stays_as_it_is(backend, tmp_path):
    first, second = made_block(seed=1), made_block(seed=2)
    path = tmp_path / f"x.{backend}"
    with BagWriter.begin(path, made_spec()) as writer:
        writer.write_part(1, replace(first, bag_ids=[f"one-{i}" for i in range(12)]))
        writer.write_part(1, replace(second, bag_ids=[f"other-{i}" for i in range(12)]))
        writer.write_part(0, first)
        store = writer.finish(2)
    assert_same(store.read(12, 24), first)
    assert store.bag_ids(12, 13) == ["one-0"]
    assert store.check() == []


def test_has_part__is_true_of_written_parts(backend, tmp_path):
    path = tmp_path / f"x.{backend}"
    with BagWriter.begin(path, made_spec()) as writer:
        writer.write_part(0, made_block())
        writer.write_part(2, made_block())
        assert [writer.has_part(n) for n in range(4)] == [True, False, True, False]
        assert [BagWriter.join(path).has_part(n) for n in (1, 2, 3)] == [False, True, False]


def test_writer__leaves_nothing_behind(backend, tmp_path):
    write_store(tmp_path / f"x.{backend}", made_block())
    assert [path.name for path in tmp_path.iterdir()] == [f"x.{backend}"]


# Refusals.


@pytest.fixture
def writer(backend, tmp_path):
    with BagWriter.begin(tmp_path / f"x.{backend}", made_spec()) as writer:
        yield writer


def test_missing_parts__are_listed(writer):
    for number in (0, 2, 5):
        writer.write_part(number, made_block())
    with pytest.raises(StoreError, match=r"is unfinished: parts 1, 3, 4 of 6 are missing; run str"):
        writer.finish(6)
    with pytest.raises(StoreError, match=r"parts 1, 3, 4, 6, 7, 8, 9, 10, 11, 12, … of 20 are"):
        writer.finish(20)


@pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 2)])
def test_parts_beyond_the_last__are_refused(writer, numbers):
    for number in numbers:
        writer.write_part(number, made_block())
    with pytest.raises(StoreError, match=r"has 3 parts, expected 1"):
        writer.finish(1)


def test_repeated_ids__are_refused_with_their_bags(writer):
    one, other = made_block(4), made_block(4)
    writer.write_part(0, one)
    writer.write_part(1, replace(other, bag_ids=["a", "bag-0002", "c", "bag-0000"]))
    path = Path(writer.destination)
    message = r"2 bag ids come twice, the first is 'bag-000[02]' \(bags [02] and [57]\)"
    for _ in range(2):
        with pytest.raises(StoreError, match=message):
            writer.finish(2)
        assert not path.exists()


def test_writer__goes_on_after_a_refusal(writer):
    writer.write_part(0, made_block(4))
    with pytest.raises(StoreError, match=r"part 1, bag 'bag-0000', row 0: value is nan"):
        writer.write_part(1, replace(made_block(4), rows=made_block(4).rows * np.nan))
    other = replace(made_block(4, seed=1), bag_ids=list("abcd"))
    writer.write_part(1, replace(other, bag_ids=["a", "b", "c", "bag-0000"]))
    with pytest.raises(StoreError, match=r"1 bag ids come twice"):
        writer.finish(2)
    with pytest.raises(StoreError, match=r"2 label names were given|there are 2 names"):
        writer.finish(2, label_names=("a", "b"))
    writer.write_part(2, other)
    with pytest.raises(StoreError, match=r"4 bag ids come twice"):
        writer.finish(3)


def test_finish_again__after_an_error_gives_the_whole_store(backend, tmp_path):
    block = made_block()
    path, clean = tmp_path / f"x.{backend}", tmp_path / f"y.{backend}"
    spec = made_spec(label_names=None)
    parts = [block.slice(0, 5), block.slice(5, 12)]
    write_parts(clean, spec, parts)
    with BagWriter.begin(path, spec) as writer:
        for number, part in enumerate(parts):
            writer.write_part(number, part)
        with pytest.raises(StoreError, match=r"label 3 occurs, but there are 2 names"):
            writer.finish(2, label_names=("a", "b"))
        assert_same(writer.finish(2).read(0, 12), block)
    assert content(path) == content(clean)


def test_part_after_a_failed_finish__still_enters(backend, tmp_path):
    block = made_block()
    parts = [block.slice(0, 5), block.slice(5, 9), block.slice(9, 12)]
    with BagWriter.begin(tmp_path / f"x.{backend}", made_spec()) as writer:
        writer.write_part(0, parts[0])
        writer.write_part(1, parts[1])
        with pytest.raises(StoreError, match="parts 2 of 3 are missing"):
            writer.finish(3)
        writer.write_part(2, parts[2])
        assert_same(writer.finish(3).read(0, 12), block)


def test_store_without_bags__is_refused(backend, tmp_path):
    spec = made_spec(empty_bags="drop")
    empty = replace(
        made_block(2),
        bag_offsets=np.zeros(3, np.int64),
        rows=np.empty((0, 3), np.float32),
        row_labels=np.empty(0, np.int32),
    )
    with BagWriter.begin(tmp_path / f"x.{backend}", spec) as writer:
        writer.write_part(0, empty)
        with pytest.raises(StoreError, match=r"would hold no bags \(2 empty ones dropped\)"):
            writer.finish(1)
    none = pytest.raises(StoreError, match=r"would hold no bags \(0 empty ones dropped\)")
    with BagWriter.begin(tmp_path / f"y.{backend}", spec) as writer, none:
        writer.finish(0)


def test_refusal__names_the_part_and_the_bag(writer):
    with pytest.raises(StoreError, match=r"x\.\w+, part 7, bag 'bag-0000', row 0: value is nan"):
        writer.write_part(7, replace(made_block(), rows=made_block().rows * np.nan))


def test_other_settings_or_source__are_refused(backend, tmp_path):
    path = tmp_path / f"x.{backend}"
    BagWriter.begin(path, made_spec(), source="a.csv").close()
    for spec, source in ((made_spec(), "b.csv"), (made_spec(codec="zstd"), "a.csv")):
        with pytest.raises(
            StoreError, match=r"was begun with other settings or another source; rem"
        ):
            BagWriter.begin(path, spec, source=source)
    BagWriter.begin(path, made_spec(), source="a.csv").close()


def test_destination_that_exists__is_refused(backend, tmp_path):
    path = tmp_path / f"x.{backend}"
    write_store(path, made_block())
    before = content(path)
    with pytest.raises(StoreError, match=r"exists already; remove it or choose another name"):
        BagWriter.begin(path, made_spec())
    assert content(path) == before
    assert not staging_of(path).exists()


def test_destination_that_appears_meanwhile__is_refused(writer):
    writer.write_part(0, made_block())
    Path(writer.destination).mkdir()
    with pytest.raises(StoreError, match=r"exists already; remove it or choose another name"):
        writer.finish(1)


def test_joining__needs_a_beginning(backend, tmp_path):
    path = tmp_path / f"x.{backend}"
    with pytest.raises(StoreError, match=r"has not been begun; nothing to join"):
        BagWriter.join(path)
    with (
        BagWriter.begin(path, made_spec()),
        pytest.raises(StoreError, match=r"can only be finished by the process that began it"),
    ):
        BagWriter.join(path).finish(0)


def test_writer_that_was_closed__does_not_finish(writer):
    writer.write_part(0, made_block())
    writer.close()
    with pytest.raises(StoreError, match=r"can only be finished by the process that began it"):
        writer.finish(1)


def test_http__is_for_reading():
    for name in ("http://x/y.zarr", "https://x/y.parquet"):
        with pytest.raises(StoreError, match=r"cannot be written: http is for reading only"):
            BagWriter.begin(name, made_spec())


def test_name_without_a_backend__is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"x.npz: a store's name ends in .zarr or .parquet"):
        BagWriter.begin(tmp_path / "x.npz", made_spec())


def test_list_too_long_for_parquet__says_what_to_write_instead(monkeypatch, tmp_path):
    monkeypatch.setattr("streammiml.bags.parquet_write.LIST_LIMIT", 10)
    with pytest.raises(StoreError, match=r"\d+ values are too many for a Parquet row group; write"):
        write_store(tmp_path / "x.parquet", made_block())


def test_chunk_size__bounds_what_one_read_fetches(tmp_path):
    block = plain(made_block(400))
    store = write_store(tmp_path / "x.zarr", block, chunk_bytes=120)
    table = store.tables()[3]
    sizes = list(itertools.chain(*(table.page(n).sizes for n in range(len(table)))))
    assert set(sizes) == {120}
    assert (tmp_path / "x.zarr" / MANIFEST).exists()
    assert StoreSpec(n_features=3).chunk_bytes == 256 << 10


def test_finish__waits_for_no_one_and_loses_no_part_that_comes_meanwhile(tmp_path, monkeypatch):
    """A joined writer spools the last part just after the other parts were absorbed."""
    block = made_block()
    parts = [block.slice(0, 3), block.slice(3, 5), block.slice(5, len(block))]
    path = tmp_path / "s.zarr"
    with BagWriter.begin(path, made_spec()) as writer:
        joiner = BagWriter.join(path)
        for number in (0, 1):
            writer.write_part(number, parts[number])
        absorb, late = writer._parts.absorb, [True]

        def absorb_then_deliver():
            absorb()
            if late:
                late.clear()
                joiner.write_part(2, parts[2])

        monkeypatch.setattr(writer._parts, "absorb", absorb_then_deliver)
        assert writer.finish(3).n_bags == len(block)


def test_has_part__is_known_to_those_who_join_and_parts_stay_as_they_are(tmp_path, backend):
    block = made_block()
    path = tmp_path / f"s.{backend}"
    with BagWriter.begin(path, made_spec()) as writer:
        writer.write_part(0, block.slice(0, 3))
        joiner = BagWriter.join(path)
        assert joiner.has_part(0)
        assert not joiner.has_part(1)
        joiner.write_part(0, block.slice(3, 6))
        writer.write_part(0, block.slice(3, 6))
        assert writer.finish(1).bag_ids(0, 3) == block.bag_ids[:3]


def test_write_part__numbers_below_zero_are_refused(tmp_path, backend):
    with (
        BagWriter.begin(tmp_path / f"s.{backend}", made_spec()) as writer,
        pytest.raises(StoreError, match="parts are numbered from 0, got -1"),
    ):
        writer.write_part(-1, made_block())


def test_begin__a_torn_journal_costs_what_came_after_the_synced_one(tmp_path):
    """A power cut may tear the journal; shards that were closed are kept."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(4, 6)).astype(np.float32) for _ in range(40)]
    blocks = [BagBlock.from_bags(rows[i : i + 10], [[0]] * 10) for i in range(0, 40, 10)]
    path = tmp_path / "s.zarr"
    spec = StoreSpec(n_features=6, chunk_bytes=48)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streammiml.bags.zarr_write.SHARD_BYTES", 1500)
        with BagWriter.begin(path, spec) as writer:
            for number in (0, 1, 2):
                writer.write_part(number, blocks[number])
        journal = tmp_path / ".s.zarr.partial" / "journal"
        journal.write_bytes(journal.read_bytes()[:-1])
        with BagWriter.begin(path, spec) as writer:
            kept = [number for number in range(4) if writer.has_part(number)]
            assert kept
            for number in range(4):
                writer.write_part(number, blocks[number])
            store = writer.finish(4)
    np.testing.assert_array_equal(store.read(0, 40).rows, np.concatenate(rows))
