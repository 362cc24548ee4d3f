"""Tasks: filters, splits, order and groups do not depend on how the source is cut."""

import gzip
from dataclasses import replace

import numpy as np
import pytest

import streammiml as sm
from streammiml.bags.block import BagBlock
from streammiml.bags.offsets import from_sizes
from streammiml.errors import StreammimlError
from streammiml.verbs.main import run
from streammiml_tools.convert import convert
from streammiml_tools.convert.plan import (
    GROWTH,
    ConvertConfig,
)
from streammiml_tools.convert.split_and_filter import (
    joined_fragments,
)
from streammiml_tools.readers.base import SourceError, SourceOptions
from tests.stores import (
    made_block,
    plain,
)
from tests.tools.convert.cases import SMALL, members
from tests.tools.source_files import bags_of, save_npz


def test_convert__values_that_do_not_fit_the_dtype_asked_for__say_the_way_out(tmp_path):
    block = BagBlock.from_bags([np.full((1, 2), 300, np.float32)], [[0]])
    save_npz(tmp_path / "d.npz", block)
    with pytest.raises(
        SourceError, match=r"300.0 does not fit into uint8; leave --dtype out, or ch"
    ):
        convert(tmp_path / "d.npz", tmp_path / "out.zarr", ConvertConfig(dtype="uint8"))
    # A wider type helps a value that does not fit, and no other.
    save_npz(tmp_path / "d.npz", BagBlock.from_bags([np.full((1, 2), np.nan, np.float32)], [[0]]))
    with pytest.raises(SourceError, match=r"value is nan .*only finite numbers[^;]*$"):
        convert(tmp_path / "d.npz", tmp_path / "out.zarr", ConvertConfig(dtype="float16"))


def test_convert__names_the_bag_of_the_source_that_is_wrong(tmp_path):
    block = plain(made_block(30))
    rows = block.rows.copy()
    row = int(block.bag_offsets[23]) + 1 - (np.diff(block.bag_offsets)[23] == 1)
    rows[row, 1] = np.nan
    save_npz(tmp_path / "data.npz", replace(block, rows=rows))
    message = r"data\.npz, bag '23', row \d: value is nan \(1 such values\); only finite numbers"
    for options in (SMALL, SourceOptions()):
        with pytest.raises(SourceError, match=message):
            convert(tmp_path / "data.npz", tmp_path / "out.zarr", options=options)
        for settings in (ConvertConfig(shuffle=True), ConvertConfig(split="a=.5,b=.5")):
            with pytest.raises(SourceError, match=message):
                convert(tmp_path / "data.npz", tmp_path / "o.zarr", settings, options)
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


def test_where_label__keeps_bags_of_any_of_the_labels(source, tmp_path):
    want = [bag for bag in bags_of(sm.open_store(source)) if {1, 3} & set(bag[1])]
    settings = ConvertConfig(where_label=("sky", "3"))
    done = convert(source, tmp_path / "out.zarr", settings, SMALL)
    assert list(bags_of(done.store)) == want
    assert done.summary()["left_out"]["without_label"] == 40 - len(want)
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
    store = convert(source, tmp_path / "a.zarr", ConvertConfig(shuffle=True), SMALL).store
    some = convert(source, tmp_path / "b.zarr", ConvertConfig(shuffle=True, limit=9), SMALL).store
    assert list(bags_of(some)) == list(bags_of(store))[:9]


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
        assert done.summary()["left_out"]["empty_bags"] == 2


def test_split__every_bag_once_whatever_the_spans(source, tmp_path):
    memberships = []
    for i, options in enumerate((SMALL, SourceOptions(), SourceOptions(span_bytes=1000))):
        settings = ConvertConfig(split="train=.6,valid=.2,test=.2", seed=5)
        done = convert(source, tmp_path / f"{i}.zarr", settings, options)
        names = [store.name.rsplit("/", 1)[-1] for store in done.stores]
        assert names == [f"{i}-train.zarr", f"{i}-valid.zarr", f"{i}-test.zarr"]
        memberships.append(members(done.stores))
        assert {store.n_labels for store in done.stores} == {4}
    assert memberships[0] == memberships[1] == memberships[2]
    assert sum(map(len, memberships[0])) == len(set.union(*memberships[0])) == 40


def test_split__does_not_move_bags_when_others_are_left_out(source, tmp_path):
    split = {"split": "a=.5,b=.5"}
    halves = members(convert(source, tmp_path / "w.zarr", ConvertConfig(**split)).stores)
    some = convert(source, tmp_path / "s.zarr", ConvertConfig(**split, where_label=("sky",)))
    for part, half in zip(members(some.stores), halves, strict=True):
        assert part <= half


def test_stratify__holds_for_whatever_spans(source, tmp_path):
    memberships = []
    for i, options in enumerate((SMALL, SourceOptions())):
        settings = ConvertConfig(split="a=.5,b=.5", stratify=True, seed=1)
        done = convert(source, tmp_path / f"{i}.zarr", settings, options)
        memberships.append(members(done.stores))
    assert memberships[0] == memberships[1]
    settings = ConvertConfig(split="a=.5,b=.5", stratify=True, seed=1, shuffle=True)
    assert members(convert(source, tmp_path / "s.zarr", settings, SMALL).stores) == memberships[0]


def test_shuffle__is_a_permutation_that_depends_on_the_seed_alone(source, tmp_path, backend):
    want = list(bags_of(sm.open_store(source)))
    orders = []
    for i, options in enumerate((SMALL, SourceOptions(), SourceOptions(span_bytes=700))):
        settings = ConvertConfig(shuffle=True, seed=2)
        orders.append(
            list(bags_of(convert(source, tmp_path / f"{i}.{backend}", settings, options).store))
        )
    assert orders[0] == orders[1] == orders[2] != want
    assert sorted(orders[0]) == sorted(want)
    other = ConvertConfig(shuffle=True, seed=3)
    assert (
        list(bags_of(convert(source, tmp_path / f"o.{backend}", other, SMALL).store)) != orders[0]
    )


def scattered(block: BagBlock, seed: int) -> BagBlock:
    """Rows of bags apart from each other, each row a bag of its bag's id."""
    n_rows = block.n_rows
    order = np.random.default_rng(seed).permutation(n_rows)
    of_row = np.repeat(np.arange(len(block)), np.diff(block.bag_offsets))[order]
    labels = [block.labels_of(bag) for bag in of_row]
    return BagBlock(
        np.arange(n_rows + 1),
        block.rows[order],
        from_sizes([len(bag_labels) for bag_labels in labels]),
        np.concatenate(labels).astype(np.int32),
        block.row_labels[order],
        [block.bag_ids[bag] for bag in of_row],
    )


@pytest.mark.parametrize("shuffle", [False, True])
def test_group__joins_rows_by_first_appearance(tmp_path, shuffle):
    block = made_block(30)
    apart = scattered(block, 4)
    save_npz(tmp_path / "apart.npz", apart)
    groupings = []
    for i, span in enumerate((256, 1000, 1 << 20)):
        options = SourceOptions(group=True, span_bytes=span)
        settings = ConvertConfig(shuffle=shuffle)
        done = convert(tmp_path / "apart.npz", tmp_path / f"{i}.zarr", settings, options)
        groupings.append(list(bags_of(done.store)))
    assert groupings[0] == groupings[1] == groupings[2]
    appearance = list(dict.fromkeys(apart.bag_ids))
    assert sorted(bag[0] for bag in groupings[0]) == sorted(appearance)
    assert ([bag[0] for bag in groupings[0]] == appearance) != shuffle
    for name, labels, rows, row_labels in groupings[0]:
        mine = [i for i, bag_id in enumerate(apart.bag_ids) if bag_id == name]
        assert rows == apart.rows[mine].tobytes()
        assert row_labels == tuple(apart.row_labels[mine].tolist())
        assert labels == tuple(block.labels_of(block.bag_ids.index(name)).tolist())


def test_group__refuses_what_it_cannot_join(tmp_path):
    block = made_block(4)
    save_npz(tmp_path / "plain.npz", plain(block))
    with pytest.raises(SourceError, match=r"has no bag ids, which --group needs; give --bag"):
        convert(tmp_path / "plain.npz", tmp_path / "o.zarr", options=SourceOptions(group=True))
    settings = ConvertConfig(split="a=.5,b=.5", stratify=True)
    save_npz(tmp_path / "ids.npz", block)
    with pytest.raises(
        StreammimlError, match="--stratify needs complete bags, but --group has yet to join"
    ):
        convert(tmp_path / "ids.npz", tmp_path / "o.zarr", settings, SourceOptions(group=True))
    uneven = BagBlock.from_bags([block.rows[:1], block.rows[1:2]], [[0], [1]], bag_ids=["x", "x"])
    with pytest.raises(SourceError, match=r"bag 'x' is in 2 places, with different labels; all"):
        joined_fragments(uneven, ["x", "x"], np.arange(2))


def test_file_that_grows_beyond_measure__is_refused(tmp_path, monkeypatch):
    rows = "".join(f"b{i:04d},0,0,0,x\n" for i in range(400))
    with gzip.open(tmp_path / "d.csv.gz", "wt") as file:
        file.write(f"bag,f0,f1,f2,labels\n{rows}")
    options = SourceOptions(span_bytes=64)
    assert convert(tmp_path / "d.csv.gz", tmp_path / "a.zarr", options=options).store.n_bags == 400
    monkeypatch.setattr("streammiml_tools.readers.csv_cells.BLOCK_BYTES", 100)
    monkeypatch.setitem(GROWTH, ".gz", 1e-9)
    message = (
        r"d\.csv\.gz grows to more than [\d.]+ \w+ from [\d.]+ \w+ when it is read; "
        r"decompress or cut the file first"
    )
    with pytest.raises(SourceError, match=message):
        convert(tmp_path / "d.csv.gz", tmp_path / "b.zarr", options=options)


def test_hostile_sizes__are_refused_by_memory_and_gone_on_with_by_more(tmp_path, capsys):
    rows = np.zeros((1 << 20, 2), np.float32)
    labels = {"label_indptr": np.arange(2), "label_indices": np.zeros(1, np.int32)}
    np.savez_compressed(tmp_path / "d.npz", rows=rows, offsets=np.array([0, 1 << 20]), **labels)
    words = ["convert", str(tmp_path / "d.npz"), str(tmp_path / "d.zarr"), "--memory"]
    assert run([*words, "16MiB"]) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert "member rows.npy, elements 0 to 1,048,576 declares 8 MiB in " in message
    assert message.endswith("more than --memory 16 MiB; --memory 24MiB would be enough")
    assert list(tmp_path.glob(".*")) == []
    convert(tmp_path / "d.npz", tmp_path / "d.zarr", ConvertConfig(memory="24MiB"))
    assert sm.open_store(tmp_path / "d.zarr").n_rows == 1 << 20


def test_bags__that_grow_beyond_memory_between_blocks_are_refused(tmp_path, monkeypatch):
    line = '{"id": %d, "labels": [0], "instances": [{"indices": [99999], "values": [1]}]}\n'
    (tmp_path / "d.jsonl").write_text("".join(line % bag for bag in range(40)))
    monkeypatch.setattr("streammiml_tools.readers.jsonl.BLOCK_BYTES", 80)
    settings, options = ConvertConfig(memory="4MiB"), SourceOptions(sparse=False)
    message = r"d\.jsonl: a block of 4\.2 MiB needs about 12\.6 MiB, more than --memory 4 MiB; "
    with pytest.raises(SourceError, match=message):
        convert(tmp_path / "d.jsonl", tmp_path / "d.zarr", settings, options)
    convert(tmp_path / "d.jsonl", tmp_path / "d.zarr", ConvertConfig(memory="64MiB"), options)
