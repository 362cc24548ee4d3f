"""convert: what goes in comes out, however it is cut, split, shuffled, limited and gone on with."""

import gzip
import json
import os
import re
from collections import Counter
from dataclasses import replace

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streammiml as sm
from streammiml.bags.block import BagBlock
from streammiml.bags.offsets import from_sizes
from streammiml.errors import StoreError, StreammimlError
from streammiml.verbs.main import run
from streammiml_tools import convert as module
from streammiml_tools.choosing import Split, joined_fragments, ranks_within, strata_of
from streammiml_tools.conversion import (
    GROWTH,
    ConvertConfig,
    Work,
    n_slots,
    slot_bytes,
    span_bytes,
    work_folder,
)
from streammiml_tools.convert import convert, understood
from streammiml_tools.readers.base import Scan, SourceError, SourceOptions, Span
from streammiml_tools.sources import find_sources
from tests.stores import (
    assert_same,
    content,
    made_block,
    made_spec,
    plain,
    scratch,
    write_parts,
    write_store,
)
from tests.strategies import blocks
from tests.tools.corpora import bags_of, save_npy, save_npz

SMALL = SourceOptions(span_bytes=256)


@pytest.fixture
def source(tmp_path):
    """Forty bags with ids, row labels and names, in spans of a few bags."""
    path = tmp_path / "source.zarr"
    write_parts(path, made_spec(), [made_block(40)])
    return path


def said(capsys):
    out, err = capsys.readouterr()
    return out.strip(), err.strip()


# What is no source, or no store.


def test_sources__named_twice_are_refused_whatever_they_are_called(source, tmp_path):
    again = tmp_path / "again.zarr"
    again.symlink_to(source)
    with pytest.raises(
        SourceError, match=r"again.zarr is named twice, also as .*source.zarr; name"
    ):
        convert([source, again], tmp_path / "out.zarr")
    with pytest.raises(SourceError, match=r"source.zarr is named twice; name it once$"):
        convert([source, source], tmp_path / "out.zarr")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", r"a.jsonl is empty$"),
        ("a.json", b' \n[{"id": 1}]', r"a.json is one JSON array; lines of JSON are read: jq -c"),
        (
            "images",
            b"\0\0\x08\x03",
            r"images is an idx file; python -m streammiml_tools.mnist makes",
        ),
    ],
)
def test_sources__that_are_known_not_to_be_read__say_what_to_do(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        convert(tmp_path / name, tmp_path / "out.zarr")


@pytest.mark.parametrize("shuffle", [False, True])
def test_convert__that_keeps_no_bag_says_why_and_leaves_nothing(tmp_path, shuffle):
    save_npz(tmp_path / "d.npz", made_block(5))
    settings = ConvertConfig(where_label=("0",), shuffle=shuffle)
    block = BagBlock.from_bags([np.ones((1, 2), np.float32)] * 3, [[1], [1], []])
    save_npz(tmp_path / "d.npz", block)
    says = (
        r"out.zarr would hold no bags: of 3 that were read, 3 have none of the wanted labels and 0"
    )
    with pytest.raises(SourceError, match=says):
        convert(tmp_path / "d.npz", tmp_path / "out.zarr", settings, SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["d.npz"]


def test_convert__values_that_do_not_fit_the_dtype_asked_for__say_the_way_out(tmp_path):
    block = BagBlock.from_bags([np.full((1, 2), 300, np.float32)], [[0]])
    save_npz(tmp_path / "d.npz", block)
    with pytest.raises(
        SourceError, match=r"300.0 does not fit into uint8; leave --dtype out, or ch"
    ):
        convert(tmp_path / "d.npz", tmp_path / "out.zarr", ConvertConfig(dtype="uint8"))


def test_convert__a_destination_that_is_there_is_seen_before_the_source_is_read(source, tmp_path):
    (tmp_path / "broken.csv").write_text("no separator")
    with pytest.raises(StoreError, match=r"source.zarr exists already; remove it or choose"):
        convert(tmp_path / "broken.csv", source)


def test_convert__leftovers_without_a_plan_are_taken_away_by_a_refusal_too(source):
    folder = work_folder(str(source))
    (folder / "store").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"source.zarr exists already"):
        convert(source, source)
    assert not folder.exists()


# What goes in comes out.


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


def test_convert__keeps_names_and_takes_new_order_of_labels(source, tmp_path):
    store = convert(source, tmp_path / "same.zarr").store
    assert store.label_names == ["sea", "sky", "sun", "tree"]
    assert store.feature_names == ["r", "g", "b"]
    wanted = ("tree", "moon", "sun", "sky", "sea")
    store = convert(source, tmp_path / "other.zarr", options=SourceOptions(labels=wanted)).store
    assert store.label_names == list(wanted)
    before, after = sm.open_store(source).read(0, 40), store.read(0, 40)
    names = ["sea", "sky", "sun", "tree"]
    for bag in range(40):
        assert {wanted[i] for i in after.labels_of(bag)} == {
            names[i] for i in before.labels_of(bag)
        }


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


# Sources.


def test_sources__by_glob_folder_and_format(tmp_path):
    block = plain(made_block(6))
    save_npz(tmp_path / "data.npz", block)
    (tmp_path / "folder").mkdir()
    save_npz(tmp_path / "folder" / "data.npz", block)
    (tmp_path / "folder" / "README.md").write_text("words")
    want = convert(tmp_path / "data.npz", tmp_path / "a.zarr").store.fingerprint
    for i, named in enumerate(("dat*.npz", "folder", "folder/*.npz")):
        assert convert(str(tmp_path / named), tmp_path / f"{i}.zarr").store.fingerprint == want
    (tmp_path / "data.bin").write_bytes((tmp_path / "data.npz").read_bytes())
    with pytest.raises(SourceError, match=r"data\.bin is of no known format; --format says which:"):
        convert(tmp_path / "data.bin", tmp_path / "b.zarr")
    options = SourceOptions(format="npz")
    assert convert(tmp_path / "data.bin", tmp_path / "b.zarr", options=options).store.n_bags == 6


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("none.npz", r"none\.npz does not exist"),
        ("none*.npz", r"none\*\.npz matches no file"),
        ("empty", r"empty is a folder without files"),
        ("words", r"words: no file of a known format; known: .*npz"),
    ],
)
def test_sources__that_are_not_there__are_refused(tmp_path, named, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "README.md").write_text("words")
    with pytest.raises(SourceError, match=message):
        convert(str(tmp_path / named), tmp_path / "out.zarr")
    assert not work_folder(str(tmp_path / "out.zarr")).exists()


def test_sources__of_two_formats__are_refused(tmp_path, source):
    save_npz(tmp_path / "data.npz", plain(made_block(3)))
    with pytest.raises(
        SourceError, match=r"data\.npz is npz, but .*source\.zarr is store; convert"
    ):
        convert([tmp_path / "data.npz", source], tmp_path / "out.zarr")
    with pytest.raises(StreammimlError, match="no format is called 'xyz'; known:"):
        convert(source, tmp_path / "out.zarr", options=SourceOptions(format="xyz"))
    with pytest.raises(SourceError, match="no source was named"):
        convert([], tmp_path / "out.zarr")


# Refusals.


def test_convert__refuses_a_destination_that_is_there(source, tmp_path):
    convert(source, tmp_path / "out.zarr")
    with pytest.raises(StoreError, match=r"out\.zarr exists already; remove it or choose another"):
        convert(source, tmp_path / "out.zarr")
    (tmp_path / "s-test.zarr").mkdir()
    with pytest.raises(StoreError, match=r"s-test\.zarr exists already"):
        convert(source, tmp_path / "s.zarr", ConvertConfig(split="train=.5,test=.5"))
    with pytest.raises(StoreError, match=r"cannot be written: there is no folder"):
        convert(source, tmp_path / "none" / "out.zarr")
    with pytest.raises(StoreError, match=r"ends in \.zarr or \.parquet"):
        convert(source, tmp_path / "out.csv")


def test_convert__names_the_bag_of_the_source_that_is_wrong(tmp_path):
    block = plain(made_block(30))
    rows = block.rows.copy()
    row = int(block.bag_offsets[23]) + 1 - (np.diff(block.bag_offsets)[23] == 1)
    rows[row, 1] = np.nan
    save_npz(tmp_path / "data.npz", replace(block, rows=rows))
    said = r"data\.npz, bag '23', row \d: value is nan \(1 such values\); only finite numbers"
    for options in (SMALL, SourceOptions()):
        with pytest.raises(SourceError, match=said):
            convert(tmp_path / "data.npz", tmp_path / "out.zarr", options=options)
        for settings in (ConvertConfig(shuffle=True), ConvertConfig(split="a=.5,b=.5")):
            with pytest.raises(SourceError, match=said):
                convert(tmp_path / "data.npz", tmp_path / "o.zarr", settings, options)
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


def test_convert__refuses_too_little_memory(source, tmp_path, monkeypatch):
    with pytest.raises(
        StreammimlError, match=r"--memory 64 KiB is too little for 1 processes; 512"
    ):
        convert(source, tmp_path / "out.zarr", ConvertConfig(memory="64KiB"))
    with pytest.raises(
        SourceError,
        match=r"must be held whole: 2 GiB by each of 2 processes, more "
        r"than --memory 1 GiB; --memory 4505MiB would do",
    ):
        module.check_memory(Scan(spans=(), n_features=1, holds_bytes=2 << 30), 1 << 30, 2, "x.mat")
    monkeypatch.setattr("streammiml_tools.conversion.free_bytes", lambda _: 100)
    with pytest.raises(StoreError, match=r"out\.zarr needs [\d,]+ bytes, 100 are free; make room"):
        convert(source, tmp_path / "out.zarr")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "train"}, "cannot read 'train'; it is name=share"),
        ({"split": "train=0"}, "cannot read 'train=0'"),
        ({"split": "a=.5,a=.5"}, "names a twice"),
        ({"split": "a=.5,b=.4"}, "shares add up to 0.9, expected 1"),
        ({"stratify": True}, "--stratify says how to split; give --split too"),
        ({"dtype": "float64"}, "no dtype is called 'float64'"),
        ({"codec": "zip"}, "no codec is called 'zip'"),
        ({"empty_bags": "keep"}, "no policy for empty bags is called 'keep'"),
        ({"limit": 0}, "limit must be a whole number at least 1"),
        ({"seed": -1}, "seed must be a whole number at least 0"),
        ({"memory": "much"}, "memory must be a size"),
    ],
)
def test_settings__that_mean_nothing__are_refused(settings, message):
    with pytest.raises(StreammimlError, match=re.escape(message)):
        ConvertConfig(**settings)


# Filters.


def test_where_label__keeps_bags_of_any_of_the_labels(source, tmp_path):
    want = [bag for bag in bags_of(sm.open_store(source)) if {1, 3} & set(bag[1])]
    settings = ConvertConfig(where_label=("sky", "3"))
    done = convert(source, tmp_path / "out.zarr", settings, SMALL)
    assert list(bags_of(done.store)) == want
    assert done.said()["left_out"]["without_label"] == 40 - len(want)
    with pytest.raises(
        SourceError, match=r"--where-label moon: there is no such label; known: sea"
    ):
        convert(source, tmp_path / "no.zarr", ConvertConfig(where_label=("moon",)))


@pytest.mark.parametrize("limit", [1, 7, 39, 40, 100])
def test_limit__keeps_the_first_bags(source, tmp_path, limit):
    want = list(bags_of(sm.open_store(source)))[:limit]
    done = convert(source, tmp_path / "out.zarr", ConvertConfig(limit=limit), SMALL)
    assert list(bags_of(done.store)) == want


def test_limit__of_a_shuffle_is_its_beginning(source, tmp_path):
    whole = convert(source, tmp_path / "a.zarr", ConvertConfig(shuffle=True), SMALL).store
    some = convert(source, tmp_path / "b.zarr", ConvertConfig(shuffle=True, limit=9), SMALL).store
    assert list(bags_of(some)) == list(bags_of(whole))[:9]


def test_empty_bags__are_refused_or_dropped_and_counted(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    block = BagBlock(from_sizes([2, 0, 3, 0, 1]), rows, np.arange(6), np.zeros(5, np.int32))
    save_npz(tmp_path / "data.npz", block)
    with pytest.raises(
        SourceError, match=r"data.npz: 2 bags have no rows, the first is bag '1'; --"
    ):
        convert(tmp_path / "data.npz", tmp_path / "out.zarr")
    for settings in (
        ConvertConfig(empty_bags="drop"),
        ConvertConfig(empty_bags="drop", shuffle=True),
        ConvertConfig(empty_bags="drop", limit=3),
    ):
        out = tmp_path / f"{settings.shuffle}{settings.limit}.zarr"
        done = convert(tmp_path / "data.npz", out, settings)
        assert done.store.n_bags == 3
        assert done.said()["left_out"]["empty_bags"] == 2


# Splits.


def members(stores):
    return [{bag[0] for bag in bags_of(store)} for store in stores]


def test_split__every_bag_once_whatever_the_spans(source, tmp_path):
    found = []
    for i, options in enumerate((SMALL, SourceOptions(), SourceOptions(span_bytes=1000))):
        settings = ConvertConfig(split="train=.6,valid=.2,test=.2", seed=5)
        done = convert(source, tmp_path / f"{i}.zarr", settings, options)
        names = [store.name.rsplit("/", 1)[-1] for store in done.stores]
        assert names == [f"{i}-train.zarr", f"{i}-valid.zarr", f"{i}-test.zarr"]
        found.append(members(done.stores))
        assert {store.n_labels for store in done.stores} == {4}
    assert found[0] == found[1] == found[2]
    assert sum(map(len, found[0])) == len(set.union(*found[0])) == 40


def test_split__does_not_move_bags_when_others_are_left_out(source, tmp_path):
    split = {"split": "a=.5,b=.5"}
    whole = members(convert(source, tmp_path / "w.zarr", ConvertConfig(**split)).stores)
    some = convert(source, tmp_path / "s.zarr", ConvertConfig(**split, where_label=("sky",)))
    for part, of in zip(members(some.stores), whole, strict=True):
        assert part <= of


def test_split__of_unnamed_labels_agrees_on_their_number(tmp_path):
    rows = np.ones((20, 2), np.float32)
    labels = np.arange(20, dtype=np.int32)
    save_npz(tmp_path / "d.npz", BagBlock(np.arange(21), rows, np.arange(21), labels))
    done = convert(tmp_path / "d.npz", tmp_path / "d.zarr", ConvertConfig(split="a=.5,b=.5"))
    assert [store.n_labels for store in done.stores] == [20, 20]


@given(
    shares=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    n_bags=st.integers(0, 3000),
    seed=st.integers(0, 10**6),
)
def test_split__shares_are_probabilities(shares, n_bags, seed):
    split = Split(tuple("abcd"[: len(shares)]), tuple(s / sum(shares) for s in shares))
    counts = np.bincount(split.of_numbers(np.arange(n_bags), seed), minlength=len(shares))
    assert counts.sum() == n_bags
    for count, share in zip(counts, split.shares, strict=True):
        assert abs(count - n_bags * share) <= 6 * np.sqrt(n_bags * share * (1 - share)) + 1e-9


@given(n_bags=st.integers(1, 500), seed=st.integers(0, 1000), cut=st.integers(0, 500))
def test_stratify__every_stratum_has_its_shares(n_bags, seed, cut):
    split = Split(("a", "b", "c"), (0.6, 0.3, 0.1))
    strata = np.random.default_rng(seed).integers(0, 4, n_bags)
    starts, ranks = np.zeros(4, np.int64), []
    for part in (strata[:cut], strata[cut:]):
        ranks.append(ranks_within(part, starts))
    which = split.of_ranks(strata, np.concatenate(ranks), seed)
    for stratum in range(4):
        mine = which[strata == stratum]
        for number, share in enumerate(split.shares):
            assert abs((mine == number).sum() - share * len(mine)) < 4


def test_strata__are_the_rarest_labels():
    offsets, labels = np.array([0, 2, 2, 5, 6]), np.array([0, 1, 0, 1, 2], np.int32)
    offsets[-1] = 5
    assert strata_of(offsets, labels, np.array([9, 4, 4])).tolist() == [1, 3, 1, 3]


def test_stratify__holds_for_whatever_spans(source, tmp_path):
    found = []
    for i, options in enumerate((SMALL, SourceOptions())):
        settings = ConvertConfig(split="a=.5,b=.5", stratify=True, seed=1)
        done = convert(source, tmp_path / f"{i}.zarr", settings, options)
        found.append(members(done.stores))
    assert found[0] == found[1]
    settings = ConvertConfig(split="a=.5,b=.5", stratify=True, seed=1, shuffle=True)
    assert members(convert(source, tmp_path / "s.zarr", settings, SMALL).stores) == found[0]


def test_split__with_an_id_in_two_stores__is_refused(tmp_path):
    block = replace(made_block(20), bag_ids=[f"b{i % 19}" for i in range(20)])
    save_npz(tmp_path / "d.npz", block)
    for split in (None, "a=.5,b=.5"):
        with pytest.raises(
            SourceError,
            match=r"1 bag ids come twice, the first is 'b0' \(bags 0 and "
            r"19\); --group brings the rows of a bag together",
        ):
            convert(tmp_path / "d.npz", tmp_path / "d.zarr", ConvertConfig(split=split), SMALL)
        assert not work_folder(str(tmp_path / "d.zarr")).exists()


def test_split__with_too_few_bags__shows_no_store(tmp_path):
    save_npz(tmp_path / "d.npz", made_block(2))
    with pytest.raises(
        SourceError, match=r"d-\w+.zarr would hold no bags: 2 are too few for --split"
    ):
        convert(
            tmp_path / "d.npz", tmp_path / "d.zarr", ConvertConfig(split="a=.3,b=.3,c=.4"), SMALL
        )
    assert [path.name for path in tmp_path.iterdir()] == ["d.npz"]


# Order.


def test_shuffle__is_a_permutation_that_depends_on_the_seed_alone(source, tmp_path, backend):
    want = list(bags_of(sm.open_store(source)))
    found = []
    for i, options in enumerate((SMALL, SourceOptions(), SourceOptions(span_bytes=700))):
        settings = ConvertConfig(shuffle=True, seed=2)
        found.append(
            list(bags_of(convert(source, tmp_path / f"{i}.{backend}", settings, options).store))
        )
    assert found[0] == found[1] == found[2] != want
    assert sorted(found[0]) == sorted(want)
    other = ConvertConfig(shuffle=True, seed=3)
    assert list(bags_of(convert(source, tmp_path / f"o.{backend}", other, SMALL).store)) != found[0]


def scattered(block: BagBlock, seed: int) -> BagBlock:
    """Rows of bags apart from each other, each row a bag of its bag's id."""
    n_rows = block.n_rows
    order = np.random.default_rng(seed).permutation(n_rows)
    of_row = np.repeat(np.arange(len(block)), np.diff(block.bag_offsets))[order]
    labels = [block.labels_of(bag) for bag in of_row]
    return BagBlock(
        np.arange(n_rows + 1),
        block.rows[order],
        from_sizes([len(of) for of in labels]),
        np.concatenate(labels).astype(np.int32),
        block.row_labels[order],
        [block.bag_ids[bag] for bag in of_row],
    )


@pytest.mark.parametrize("shuffle", [False, True])
def test_group__joins_rows_by_first_appearance(tmp_path, shuffle):
    block = made_block(30)
    apart = scattered(block, 4)
    save_npz(tmp_path / "apart.npz", apart)
    found = []
    for i, span in enumerate((256, 1000, 1 << 20)):
        options = SourceOptions(group=True, span_bytes=span)
        settings = ConvertConfig(shuffle=shuffle)
        done = convert(tmp_path / "apart.npz", tmp_path / f"{i}.zarr", settings, options)
        found.append(list(bags_of(done.store)))
    assert found[0] == found[1] == found[2]
    appearance = list(dict.fromkeys(apart.bag_ids))
    assert sorted(bag[0] for bag in found[0]) == sorted(appearance)
    assert ([bag[0] for bag in found[0]] == appearance) != shuffle
    for name, labels, rows, row_labels in found[0]:
        mine = [i for i, of in enumerate(apart.bag_ids) if of == name]
        assert rows == apart.rows[mine].tobytes()
        assert row_labels == tuple(apart.row_labels[mine].tolist())
        assert labels == tuple(block.labels_of(block.bag_ids.index(name)).tolist())


def test_group__refuses_what_it_cannot_join(tmp_path):
    block = made_block(4)
    save_npz(tmp_path / "plain.npz", plain(block))
    with pytest.raises(
        SourceError, match=r"has no ids of bags that --group could go by; give --bag"
    ):
        convert(tmp_path / "plain.npz", tmp_path / "o.zarr", options=SourceOptions(group=True))
    settings = ConvertConfig(split="a=.5,b=.5", stratify=True)
    save_npz(tmp_path / "ids.npz", block)
    with pytest.raises(StreammimlError, match="--stratify needs whole bags, and --group makes"):
        convert(tmp_path / "ids.npz", tmp_path / "o.zarr", settings, SourceOptions(group=True))
    uneven = BagBlock.from_bags([block.rows[:1], block.rows[1:2]], [[0], [1]], bag_ids=["x", "x"])
    with pytest.raises(SourceError, match=r"bag 'x' lies in 2 places, with different labels; all"):
        joined_fragments(uneven, ["x", "x"], np.arange(2))


# Going on.


def test_convert__goes_on_after_an_error_with_what_is_written(source, tmp_path, backend):
    want = convert(source, tmp_path / f"clean.{backend}", options=SMALL)
    stopped = tmp_path / f"out.{backend}"

    def stop(progress):
        if progress.n_bytes > progress.total_bytes / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, stopped, options=SMALL, watch=stop)
    with pytest.raises(StoreError, match="is unfinished; run streammiml convert again"):
        sm.open_store(stopped)
    seen = []
    done = convert(source, stopped, options=SMALL, watch=seen.append)
    assert seen[-1].bytes_before > 0
    assert content(stopped) == content(tmp_path / f"clean.{backend}")
    assert done.facts == want.facts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": ConvertConfig(codec="zstd")}, r"begun with other options \(--codec\)"),
        ({"settings": ConvertConfig(seed=1)}, r"begun with other options \(--seed\)"),
        ({"options": SourceOptions(sparse=True)}, r"begun with other options \(--sparse\)"),
    ],
)
def test_convert__does_not_go_on_with_other_settings(source, tmp_path, change, message):
    stop_at_once(source, tmp_path / "out.zarr")
    with pytest.raises(
        StoreError, match=rf"out\.zarr was {message}; remove .*\.out\.zarr\.partial"
    ):
        convert(source, tmp_path / "out.zarr", **change)
    other = replace(ConvertConfig(), memory="64MiB")
    assert convert(source, tmp_path / "out.zarr", other, SMALL).store.n_bags == 40


def stop_at_once(source, out, **how):
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, out, **{"options": SMALL, **how}, watch=stop)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda path: path.write_bytes(path.read_bytes() + b"x"),
            r"has [\d,]+ bytes, [\d,]+ before",
        ),
        (lambda path: os.utime(path, ns=(1, 1)), "was written to again"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"), "holds something else"),
    ],
)
def test_convert__does_not_go_on_with_another_source(tmp_path, change, message):
    source = save_npy(tmp_path / "source", plain(made_block(40)))
    out = tmp_path / "out.zarr"
    stop_at_once(source, out)
    change(source / "instances.npy")
    with pytest.raises(
        StoreError, match=rf"cannot be gone on with: .*instances.npy {message} since"
    ):
        convert(source, out, options=SMALL)


def test_convert__sees_a_source_change_under_its_hands(tmp_path):
    source = save_npy(tmp_path / "source", plain(made_block(40)))

    def touch(_):
        os.utime(source / "label_indices.npy", ns=(1, 1))

    with pytest.raises(
        SourceError, match=r"label_indices.npy was written to again while it was con"
    ):
        convert(source, tmp_path / "out.zarr", options=SMALL, watch=touch)
    assert not (tmp_path / "out.zarr").exists()


def test_convert__does_not_go_on_with_less_memory_than_its_spans_need(source, tmp_path):
    out, folder = tmp_path / "out.zarr", work_folder(str(tmp_path / "out.zarr"))

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, out, watch=stop)
    says = (
        r"out.zarr was begun in spans of 32 MiB, which need --memory 256MiB; give that, or remove"
    )
    with pytest.raises(StreammimlError, match=says):
        convert(source, out, ConvertConfig(memory="255MiB"))
    assert folder.exists()
    convert(source, out, ConvertConfig(memory="256MiB"))
    assert not folder.exists()


def test_work__a_lock_taken_away_under_its_hands_is_taken_anew(tmp_path):
    first, second = Work(str(tmp_path / "a.zarr")), Work(str(tmp_path / "a.zarr"))
    taken = second._locked

    def late():
        # The first ends between the moment the second opens the lock and the one it has it.
        lock = taken()
        if first.folder.exists() and not seen:
            seen.append(lock)
            first.remove()
        return lock

    seen = []
    second._locked = late
    with second:
        assert (second.folder / "lock").exists()
        with pytest.raises(StoreError, match=r"a.zarr is being written by process"), first:
            pass
    assert len(seen) == 1


def test_convert__refuses_a_damaged_plan_and_one_of_another_version(source, tmp_path):
    out = tmp_path / "out.zarr"
    stop_at_once(source, out)
    plan = work_folder(str(out)) / "plan.json"
    whole = json.loads(plan.read_text())
    plan.write_text(json.dumps({**whole, "version": 0}))
    with pytest.raises(StoreError, match="was begun by another version of streammiml; remove"):
        convert(source, out, options=SMALL)
    plan.write_text("{")
    with pytest.raises(StoreError, match="cannot be gone on with: its plan is damaged; remove"):
        convert(source, out, options=SMALL)


def test_convert__does_not_take_leftovers_for_its_own(source, tmp_path):
    out, other = tmp_path / "out.zarr", tmp_path / "other.npz"
    stop_at_once(source, out)
    # As if killed while it cleaned up: the plan goes first.
    (work_folder(str(out)) / "plan.json").unlink()
    save_npz(other, made_block(40, seed=9))
    want = convert(other, tmp_path / "want.zarr").store.fingerprint
    assert convert(other, out, options=SMALL).store.fingerprint == want


def test_convert__of_two_processes_at_once__is_refused(source, tmp_path):
    with (
        module.Work(str(tmp_path / "out.zarr")),
        pytest.raises(
            StoreError,
            match=r"out\.zarr is being written by process \d+ on .*; wait for it or stop it",
        ),
    ):
        convert(source, tmp_path / "out.zarr")


# Cutting.


@given(n_bytes=st.integers(1, 10**9), part=st.integers(1 << 22, 1 << 25))
def test_slots__hold_what_a_compressed_file_may_grow_to(n_bytes, part):
    slots = n_slots(Span("a.csv.gz", 0, 1, n_bytes), part)
    room = sum(slot_bytes(slot, slots, part) for slot in range(slots))
    assert room >= 60 * n_bytes * (n_bytes > part)
    assert max(slot_bytes(slot, slots, part) for slot in range(slots)) <= 8 * part
    assert n_slots(Span("a.csv", 0, 1, min(n_bytes, part)), part) == 1


def test_file_that_grows_beyond_measure__is_refused(tmp_path, monkeypatch):
    rows = "".join(f"b{i:04d},0,0,0,x\n" for i in range(400))
    with gzip.open(tmp_path / "d.csv.gz", "wt") as file:
        file.write(f"bag,f0,f1,f2,labels\n{rows}")
    options = SourceOptions(span_bytes=64)
    assert convert(tmp_path / "d.csv.gz", tmp_path / "a.zarr", options=options).store.n_bags == 400
    monkeypatch.setattr("streammiml_tools.readers.cells.BLOCK_BYTES", 100)
    monkeypatch.setitem(GROWTH, ".gz", 1e-9)
    said = (
        r"d\.csv\.gz grows to more than [\d.]+ \w+ from [\d.]+ \w+ when it is read; decompress it"
    )
    with pytest.raises(SourceError, match=said):
        convert(tmp_path / "d.csv.gz", tmp_path / "b.zarr", options=options)


def test_spans__follow_memory():
    assert span_bytes(1 << 30, 1) == 32 << 20
    assert span_bytes(64 << 20, 2) == 4 << 20


def test_spans__of_what_is_put_in_order_are_long(source, tmp_path):
    out, settings = tmp_path / "out.zarr", ConvertConfig(memory="4GiB", shuffle=True)
    found = find_sources([str(source)], SourceOptions())
    plan = understood(found, str(out), settings, SourceOptions(), 1)
    assert plan.options.span_bytes == 256 << 20

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, out, settings, watch=stop)
    convert(source, out, settings)
    convert(source, tmp_path / "other.zarr", ConvertConfig(memory="8MiB", shuffle=True))
    assert sm.open_store(out).fingerprint == sm.open_store(tmp_path / "other.zarr").fingerprint


# The verb.


def test_verb__says_what_it_made_and_left_out(source, tmp_path, capsys):
    words = ["convert", str(source), str(tmp_path / "out.zarr"), "--where-label", "sky"]
    assert run(words) == 0
    out, _ = said(capsys)
    assert re.search(
        r"out\.zarr: \d+ bags, \d+ rows of 3 features, 4 labels; [\d.]+ labels and", out
    )
    assert re.search(r"\d+ bags had none of the wanted labels", out)


def test_verb__says_beforehand_what_is_not_expected(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "SAID_BYTES", -1)
    (tmp_path / "folder").mkdir()
    save_npz(tmp_path / "folder" / "data.npz", made_block(40))
    (tmp_path / "folder" / "README.md").write_text("words")
    out = tmp_path / "out.zarr"
    stop_at_once(tmp_path / "folder", out)
    assert run(["convert", str(tmp_path / "folder"), str(out)]) == 0
    err = said(capsys)[1]
    assert re.search(r"data\.npz is held whole: 0 B", err)
    assert re.search(r"README\.md is left out: of no known format", err)
    assert re.search(r"going on with what was written to .*out\.zarr before", err)


def test_verb__json_has_counts_and_stores(source, tmp_path, capsys):
    words = ["convert", str(source), str(tmp_path / "c.zarr"), "--json"]
    assert run([*words, "--split", "train=.7,test=.3", "--seed", "3", "--shuffle"]) == 0
    facts = json.loads(said(capsys)[0])
    assert facts["source"] == {"n_bags": 40, "n_rows": sm.open_store(source).n_rows}
    assert [store["path"] for store in facts["stores"]] == [
        str(tmp_path / f"c-{name}.zarr") for name in ("train", "test")
    ]
    assert sum(store["n_bags"] for store in facts["stores"]) == 40


def test_verb__dry_run_writes_nothing(source, tmp_path, capsys):
    words = ["convert", str(source), str(tmp_path / "c.zarr"), "--dry-run", "--split", "a=.5,b=.5"]
    assert run(words) == 0
    out, _ = said(capsys)
    assert re.search(r"understood +a store of dense float32 rows", out)
    assert re.search(r"n bags +40\n", out)
    assert re.search(r"would make +.*c-b\.zarr", out)
    assert run([*words, "--json"]) == 0
    assert json.loads(said(capsys)[0])["n_features"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["source.zarr"]


def test_verb__labels_come_from_a_file(source, tmp_path, capsys):
    names = tmp_path / "names.txt"
    names.write_text("tree\nsun\nsky\nsea\n")
    words = ["convert", str(source), str(tmp_path / "out.zarr"), "--labels", str(names)]
    assert run(words) == 0
    assert sm.open_store(tmp_path / "out.zarr").label_names == ["tree", "sun", "sky", "sea"]
    said(capsys)
    for text, message in (
        ("tree\nsun\nsky\n", "label 'sea' is not known; known: tree, sun, sky; add it to --labels"),
        ("tree\n\nsun\n", "line 2 is empty"),
        ("tree\ntree\n", "names 'tree' twice"),
    ):
        names.write_text(text)
        assert run([*words[:2], str(tmp_path / "no.zarr"), *words[3:]]) == 2
        assert message in said(capsys)[1]
    assert run([*words[:2], str(tmp_path / "no.zarr"), "--labels", str(tmp_path / "none")]) == 2
    assert "cannot be read" in said(capsys)[1]
    assert run(["convert", str(source)]) == 2
    assert "convert needs a source and a store to make of it" in said(capsys)[1]


# Workers.


def test_verb__labels_from_an_empty_file_are_refused(tmp_path):
    (tmp_path / "labels.txt").write_text("\n")
    with pytest.raises(StreammimlError, match=r"labels.txt is empty; it holds the name of a label"):
        module.with_label_file(SourceOptions(labels=(str(tmp_path / "labels.txt"),)))


def die(*_):
    os._exit(1)


@pytest.mark.slow
def test_workers__that_die_say_which_option_to_lower(source, tmp_path, monkeypatch):
    # Loaded before its settings are changed: they would replace its own otherwise.
    pytest.importorskip("distributed")
    monkeypatch.setattr(module, "_elsewhere", die)
    said = r"its workers died .*; lower --memory, or give workers more memory$"
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        pytest.raises(StreammimlError, match=said),
    ):
        convert(source, tmp_path / "out.zarr", None, SMALL, workers=1)
    convert(source, tmp_path / "out.zarr", None, SMALL)
    assert content(tmp_path / "out.zarr") == content(source)


@pytest.mark.slow
def test_workers__leave_nothing_of_a_source_that_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("bag,f1,labels\na,1,cat\nb,x,cat\n")
    with pytest.raises(SourceError, match=r"a.csv, line 3: column 'f1' is 'x'"):
        convert(tmp_path / "a.csv", tmp_path / "a.zarr", workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ConvertConfig(),
        ConvertConfig(split="a=.5,b=.5", seed=4),
        ConvertConfig(split="a=.5,b=.5", seed=4, stratify=True),
        ConvertConfig(shuffle=True),
        ConvertConfig(limit=17, where_label=("sky",)),
    ],
    ids=["plain", "split", "stratify", "shuffle", "limit"],
)
def test_workers__give_the_same_files(source, tmp_path, backend, settings):
    convert(source, tmp_path / f"one.{backend}", settings, SMALL)
    convert(source, tmp_path / f"two.{backend}", settings, SMALL, workers=2)
    names = [name for name in ("", "-a", "-b") if (tmp_path / f"one{name}.{backend}").exists()]
    assert names
    for name in names:
        one, two = (content(tmp_path / f"{of}{name}.{backend}") for of in ("one", "two"))
        assert one == two


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
