"""Hive partitions: keys of folders as columns, and the choice of files by them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streammiml as sm
from streammiml.verbs.main import run
from streammiml_tools.convert import convert
from streammiml_tools.convert.plan import ConversionFolder
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.partitions import NULL, in_partitions, keys_of, value_of
from tests.tools.source_files import bags_of

SITES = ("a", "b")


def rows_of(number):
    return np.full((2, 3), number, np.float32)


def corpus(root, suffix=".parquet"):
    """Two splits at two sites, with three bags of two rows in each file."""
    number = 0
    for split in ("train", "test"):
        for site in SITES:
            folder = root / f"split={split}" / f"site={site}"
            folder.mkdir(parents=True)
            numbers = range(number, number + 3)
            number += 3
            rows = np.concatenate([rows_of(i) for i in numbers])
            bags = np.repeat([f"bag_{i}" for i in numbers], 2)
            table = pa.table({"bag": bags, "x": rows[:, 0], "y": rows[:, 1], "z": rows[:, 2]})
            if suffix == ".parquet":
                pq.write_table(table, folder / "part-0.parquet", row_group_size=2)
            else:
                with (
                    pa.OSFile(str(folder / "part-0.arrow"), "wb") as file,
                    pa.ipc.new_file(file, table.schema) as writer,
                ):
                    writer.write_table(table, max_chunksize=2)
    return root


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_keys__are_columns_of_labels(tmp_path, suffix):
    root = corpus(tmp_path / "data", suffix)
    options = SourceOptions(label_columns=("site",))
    store = convert(root, tmp_path / "o.zarr", options=options).store
    assert store.label_names == ["a", "b"]
    assert store.n_features == 3
    want = {f"bag_{i}": (int(i // 3 % 2),) for i in range(12)}
    # Folders in the order of their names: test before train.
    assert [name for name, *_ in bags_of(store)] == [f"bag_{i}" for i in (*range(6, 12), *range(6))]
    assert {name: labels for name, labels, *_ in bags_of(store)} == want
    small = SourceOptions(label_columns=("site",), span_bytes=16)
    again = convert(root, tmp_path / "w.parquet", options=small, workers=2).store
    assert again.fingerprint == store.fingerprint


def test_key__may_name_the_bag_or_mark_a_label(tmp_path):
    for number in range(3):
        folder = tmp_path / f"data/bag={number}/label_odd={number % 2}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"x": [1.0, number]}), folder / "part-0.parquet")
    store = convert(tmp_path / "data", tmp_path / "o.zarr").store
    assert [(name, labels) for name, labels, *_ in bags_of(store)] == [
        ("0", ()),
        ("1", (0,)),
        ("2", ()),
    ]
    assert store.label_names == ["odd"]
    pq.write_table(pa.table({"x": [5.0]}), tmp_path / "data/bag=1/label_odd=1" / "part-1.parquet")
    with pytest.raises(SourceError, match=r"bag '1'.*twice|'1'.*--group"):
        convert(tmp_path / "data", tmp_path / "p.zarr")
    grouped = convert(tmp_path / "data", tmp_path / "g.zarr", options=SourceOptions(group=True))
    assert [len(grouped.store[bag].rows) for bag in range(3)] == [2, 3, 2]


def test_where__chooses_files_before_any_is_read(tmp_path):
    root = corpus(tmp_path / "data")
    # A file that is not chosen may be damaged.
    (root / "split=test" / "site=a" / "part-0.parquet").write_bytes(b"PAR1")
    words = ["convert", str(root), str(tmp_path / "o.zarr"), "--label-columns", "site"]
    assert run([*words, "--where", "split=train"]) == 0
    assert sm.open_store(tmp_path / "o.zarr").n_bags == 6
    both = sm.convert(
        root,
        tmp_path / "p.zarr",
        labels="site",
        where=["site=b", "split=train", "split=test"],
    ).store
    assert [name for name, *_ in bags_of(both)] == [f"bag_{i}" for i in (9, 10, 11, 3, 4, 5)]
    one = sm.convert(root, tmp_path / "q.zarr", labels="site", where="split=train").store
    assert one.fingerprint == sm.open_store(tmp_path / "o.zarr").fingerprint


def test_where__works_with_a_file_a_bag_and_other_formats(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"csv/split={split}").mkdir(parents=True)
        text = f"bag,x,labels\n{split},1,a\n"
        (tmp_path / f"csv/split={split}/a.csv").write_text(text)
        (tmp_path / f"npy/split={split}").mkdir(parents=True)
        np.save(tmp_path / f"npy/split={split}/{split}_1.npy", rows_of(1))
    (tmp_path / "labels.csv").write_text("bag,labels\ntest_1,a\n")
    options = SourceOptions(where=("split=test",))
    store = convert(tmp_path / "csv", tmp_path / "a.zarr", options=options).store
    assert store[0].id == "test"
    options = SourceOptions(where=("split=test",), bag_labels=str(tmp_path / "labels.csv"))
    store = convert(tmp_path / "npy", tmp_path / "b.zarr", options=options).store
    assert (store.n_bags, store[0].id) == (1, "test_1")


def test_conversion__is_resumed_with_the_same_choice_only(tmp_path):
    root = corpus(tmp_path / "data")
    options = SourceOptions(label_columns=("site",), where=("split=train",), span_bytes=16)
    want = convert(root, tmp_path / "a.zarr", options=options).store.fingerprint

    def stop(progress):
        if progress.bags > 2:
            raise KeyboardInterrupt

    out = tmp_path / "b.zarr"
    with pytest.raises(KeyboardInterrupt):
        convert(root, out, options=options, watch=stop)
    with pytest.raises(sm.StreammimlError, match=r"b\.zarr cannot be resumed: .* has replaced"):
        convert(root, out, options=SourceOptions(label_columns=("site",), span_bytes=16))
    assert convert(root, out, options=options).store.fingerprint == want


def test_plan__without_a_choice_is_as_before(tmp_path):
    # Conversions that an earlier version began, without this option, are resumed.
    root = corpus(tmp_path / "data")
    out = tmp_path / "o.zarr"

    def stop(progress):
        del progress
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(root, out, options=SourceOptions(label_columns=("site",)), watch=stop)
    with ConversionFolder(str(out)) as folder:
        assert b'"where":' not in (folder.folder / "plan.json").read_bytes()
    convert(root, out, options=SourceOptions(label_columns=("site",)))


def test_column__of_the_file_is_kept_instead_of_a_key(tmp_path):
    folder = tmp_path / "x=7" / "bag_number=1"
    folder.mkdir(parents=True)
    content = {"bag": ["a", "b"], "x": [1.5, 2.5], "labels": [["u"], ["v"]]}
    pq.write_table(pa.table(content), folder / "a.parquet")
    store = convert(tmp_path / "x=7", tmp_path / "o.zarr").store
    assert (store.feature_names, store[1].rows.tolist()) == (["x"], [[2.5]])


def test_partition__without_a_value_is_null(tmp_path):
    folder = tmp_path / f"site={NULL}"
    folder.mkdir()
    pq.write_table(pa.table({"bag": ["a"], "x": [1.5]}), folder / "a.parquet")
    with pytest.raises(
        SourceError, match=r"a\.parquet, record 0: 'site' is null or contains a null"
    ):
        convert(folder, tmp_path / "o.zarr", options=SourceOptions(label_columns=("site",)))


def test_files__without_a_key_of_the_others_are_refused(tmp_path):
    root = corpus(tmp_path / "data")
    row = {"bag": ["z"], **{name: np.ones(1, np.float32) for name in "xyz"}}
    pq.write_table(pa.table(row), root / "z.parquet")
    with pytest.raises(
        SourceError, match=r"z\.parquet has no column 'site', but .*part-0\.parquet ha"
    ):
        convert(root, tmp_path / "o.zarr", options=SourceOptions(label_columns=("site",)))


def test_dry_run__names_the_keys(tmp_path, capsys):
    root = corpus(tmp_path / "data")
    words = ["convert", str(root), str(tmp_path / "o.zarr"), "--label-columns", "site"]
    assert run([*words, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "columns from the names of folders: split, site" in out
    assert "left out: columns split" in out


def test_keys__are_read_from_folders_only():
    assert keys_of("data/a=1/b=x%20y/c=/d=2.parquet") == {"a": "1", "b": "x y", "c": ""}
    assert keys_of(Path("a=1/=2/b/a=3=4/x")) == {"a": "3=4"}
    assert [value_of(NULL), value_of("")] == [None, ""]


FILES = [Path(f"d/split={split}/site={site}/p") for split, site in ("xa", "xb", "ya")]


@pytest.mark.parametrize(
    ("where", "files", "words"),
    [
        (("split",), FILES, r"--where split: expected KEY=VALUE, as the folders are called"),
        (
            ("year=1",),
            FILES,
            r"--where year=1: no folder is called year=…; the keys of the folders are site, split",
        ),
        (("a=1",), [Path("d/p")], r"a=…; the sources have no folders called KEY=VALUE"),
        (("split=z",), FILES, r"--where split=z leaves no file; the values of 'split' are x, y"),
        (
            ("split=y", "site=b"),
            FILES,
            r"--where split=y, site=b: no file has a value of each key; leave one out",
        ),
    ],
)
def test_choice__that_leaves_no_file_is_refused(where, files, words):
    with pytest.raises(SourceError, match=words):
        in_partitions(files, where)
