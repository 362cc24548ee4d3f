"""export: what is written comes back to the last bit, whatever the format; whole or not at all."""

import errno
import gzip
import json
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import streammiml as sm
from streammiml.errors import StoreError, StreammimlError
from streammiml.verbs.main import run
from streammiml_tools.convert import convert
from streammiml_tools.convert import export as module
from streammiml_tools.convert.export import exact, export
from streammiml_tools.convert.plan import ConvertConfig
from streammiml_tools.readers.base import SourceOptions
from tests.stores import as_sparse, made_block, made_spec, plain, scratch, write_parts, write_store
from tests.strategies import blocks
from tests.tools.source_files import bags_of


@pytest.fixture
def store(tmp_path, backend):
    return write_parts(tmp_path / f"tiny.{backend}", made_spec(), [made_block(20)])


def options_for(store, beside) -> SourceOptions:
    labels = tuple(beside[0].read_text().splitlines()) if beside else None
    return SourceOptions(labels=labels, n_features=store.n_features if store.sparse else None)


@given(
    block=blocks(kept=True), suffix=st.sampled_from([".jsonl", ".jsonl.gz", ".jsonl.zst", ".npz"])
)
def test_export__comes_back(block, suffix):
    if block.bag_ids is not None:
        # NumPy cuts zeros off the end of text, and JSON has no empty id.
        block = replace(block, bag_ids=[f"{name}." for name in block.bag_ids])
    with scratch() as folder:
        first = write_store(folder / "a.zarr", block)
        out, *beside = export(folder / "a.zarr", folder / f"a{suffix}")
        second = convert(out, folder / "b.zarr", options=options_for(first, beside)).store
        assert second.fingerprint == first.fingerprint
        assert (second.n_labels, second.n_features) == (first.n_labels, first.n_features)
        if first.has_bag_ids:
            assert second.bag_ids(0, len(block)) == block.bag_ids


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz", ".csv.zst"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int16"])
def test_csv__comes_back(tmp_path, suffix, dtype):
    block = made_block(20, dtype=dtype)
    first = write_store(tmp_path / "a.zarr", block, label_names=("sea", "sky", "sun, red", 'a "b"'))
    out, *beside = export(first, tmp_path / f"a{suffix}")
    second = convert(out, tmp_path / "b.zarr", options=options_for(first, beside)).store
    assert second.fingerprint == first.fingerprint
    assert second.label_names == first.label_names
    assert [bag[0] for bag in bags_of(second)] == block.bag_ids


@pytest.mark.parametrize("sparse", [False, True])
def test_round_trip__through_every_format_gives_the_first_fingerprint(tmp_path, sparse):
    block = made_block(30)
    first = write_parts(
        tmp_path / "a.zarr", made_spec(sparse=sparse), [as_sparse(block) if sparse else block]
    )
    second = convert(first.name, tmp_path / "b.parquet").store
    lines, labels = export(second, tmp_path / "c.jsonl.zst")
    options = options_for(second, [labels])
    third = convert(lines, tmp_path / "c.zarr", options=options).store
    table, labels = export(third, tmp_path / "d.csv.gz")
    last = convert(table, tmp_path / "e.zarr", options=replace(options, n_features=None)).store
    assert last.fingerprint == first.fingerprint
    assert (last.n_features, last.n_labels) == (first.n_features, first.n_labels)
    assert last.label_names == first.label_names
    assert last.bag_ids(0, 30) == block.bag_ids
    assert np.array_equal(last.read(0, 30).row_labels, block.row_labels)


@given(hnp.arrays(np.float32, st.integers(0, 40), elements=st.floats(
    width=32, allow_nan=False, allow_infinity=False)))  # fmt: skip
def test_exact__comes_back_through_float64_text(values):
    texts = [repr(value) for value in exact(values).tolist()]
    assert np.array_equal(np.array([float(text) for text in texts], np.float32), values)


def test_exact__is_short_where_the_number_is():
    assert repr(exact(np.array([0.1], np.float32))[0].item()) == "0.1"
    assert exact(np.array([3], np.uint8)).dtype == np.uint8


def test_json_lines__are_as_described(store, tmp_path):
    export(store, tmp_path / "a.jsonl")
    block = store.read(0, 20)
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert len(lines) == 20
    names = store.label_names
    for bag, line in enumerate(lines):
        record = json.loads(line)
        assert record["id"] == f"bag-{bag:04d}"
        assert np.array_equal(np.array(record["instances"], np.float32), block.rows_of(bag))
        assert record["labels"] == [names[i] for i in block.labels_of(bag)]
        start, stop = block.bag_offsets[bag : bag + 2]
        known = block.row_labels[start:stop].tolist()
        assert record["instance_labels"] == [names[i] if i >= 0 else None for i in known]
    write_store(tmp_path / "s.zarr", as_sparse(plain(made_block(3))))
    export(tmp_path / "s.zarr", tmp_path / "s.jsonl")
    record = json.loads((tmp_path / "s.jsonl").read_text().splitlines()[0])
    assert set(record) == {"instances", "labels"}
    assert set(record["instances"][0]) == {"indices", "values"}


def test_csv__is_long_form(store, tmp_path):
    export(store, tmp_path / "a.csv.gz")
    lines = gzip.decompress((tmp_path / "a.csv.gz").read_bytes()).decode().splitlines()
    assert lines[0] == '"bag","row_label","r","g","b","labels"'
    assert len(lines) == 1 + store.n_rows
    write_store(tmp_path / "f.zarr", plain(made_block(3)), feature_names=("bag", "x", "y"))
    export(tmp_path / "f.zarr", tmp_path / "f.csv")
    assert (tmp_path / "f.csv").read_text().startswith('"bag","f0","f1","f2","labels"\n')


def test_npz__is_the_same_bytes_every_time(store, tmp_path):
    for name in "ab":
        export(store, tmp_path / f"{name}.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    arrays = np.load(tmp_path / "a.npz")
    block = store.read(0, 20)
    assert np.array_equal(arrays["instances"], block.rows)
    assert np.array_equal(arrays["offsets"], block.bag_offsets)
    assert arrays["label_names"].tolist() == store.label_names


def test_labels__without_names_are_numbers_and_their_number_is_kept(tmp_path):
    write_store(tmp_path / "a.zarr", plain(made_block(5)), n_labels=9)
    out, labels = export(tmp_path / "a.zarr", tmp_path / "a.jsonl")
    assert labels.read_text().split() == list(map(str, range(9)))
    options = SourceOptions(labels=tuple(labels.read_text().split()))
    second = convert(out, tmp_path / "b.zarr", options=options).store
    assert second.n_labels == 9
    assert second.fingerprint == sm.open_store(tmp_path / "a.zarr").fingerprint


# Refusals.


def test_export__refuses_what_it_cannot_write(store, tmp_path):
    for name in ("a.xml", "a.npz.gz", "a", "a.gz"):
        with pytest.raises(
            StreammimlError, match=r"the suffix must be one of \.jsonl, \.csv, \.tsv, \.npz; "
        ):
            export(store, tmp_path / name)
    (tmp_path / "there.csv").touch()
    with pytest.raises(
        StreammimlError, match=r"there\.csv exists already; remove it or choose ano"
    ):
        export(store, tmp_path / "there.csv")
    with pytest.raises(StreammimlError, match=r"a\.csv cannot be written: there is no folder"):
        export(store, tmp_path / "none" / "a.csv")
    with pytest.raises(
        StreammimlError, match=r"label_separator must be one character other than ','"
    ):
        export(store, tmp_path / "a.csv", label_separator=",")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"there.csv", store.name.rsplit("/", 1)[-1]}


def test_csv__refuses_what_lines_cannot_hold(tmp_path, monkeypatch):
    block = made_block(3)
    write_store(tmp_path / "i.zarr", replace(block, bag_ids=["a", "b\nc", "d"]))
    with pytest.raises(
        StreammimlError, match=r"the bag id 'b\\nc' has a line break, which no line"
    ):
        export(tmp_path / "i.zarr", tmp_path / "i.csv")
    write_store(tmp_path / "l.zarr", block, label_names=("a;b", "c", "d", "e"))
    with pytest.raises(
        StreammimlError, match=r"the label 'a;b' cannot be written in a list separated by ';'"
    ):
        export(tmp_path / "l.zarr", tmp_path / "l.csv")
    export(tmp_path / "l.zarr", tmp_path / "l.csv", label_separator="|")
    monkeypatch.setattr(module, "CSV_FEATURES", 2)
    with pytest.raises(StreammimlError, match=r"has 3 features, too many for columns \(up to 2\)"):
        export(tmp_path / "l.zarr", tmp_path / "m.csv")


FORMULAS = ['=HYPERLINK("http://x","y")', "+SUM(A1)", "-2+3+cmd|' /C calc'!A0", "@SUM(A1)"]
FORMULAS += ["\t=1", "\r=1", "="]


@pytest.mark.parametrize("suffix", [".csv", ".tsv.gz"])
@pytest.mark.parametrize("text", FORMULAS)
def test_csv__refuses_names_that_a_spreadsheet_would_compute(tmp_path, suffix, text):
    block = made_block(3)
    message = r"would be a formula in a spreadsheet; export to \.jsonl"
    write_store(tmp_path / "i.zarr", replace(block, bag_ids=["a", f"{text}", "d"]))
    has_break = "\r" in text
    with pytest.raises(StreammimlError, match="has a line break" if has_break else message):
        export(tmp_path / "i.zarr", tmp_path / f"i{suffix}")
    write_store(tmp_path / "l.zarr", block, label_names=("a", text, "d", "e"))
    bad_list = text != text.strip()
    with pytest.raises(
        StreammimlError, match="cannot be written in a list" if bad_list else message
    ):
        export(tmp_path / "l.zarr", tmp_path / f"l{suffix}")
    assert {path.name for path in tmp_path.iterdir()} == {"i.zarr", "l.zarr"}
    export(tmp_path / "l.zarr", tmp_path / "l.jsonl")


def test_csv__names_of_features_that_a_spreadsheet_would_compute_are_left_out(tmp_path):
    first = write_store(tmp_path / "f.zarr", made_block(3), feature_names=("=1+1", "b", "c"))
    out, *_ = export(first, tmp_path / "f.csv")
    assert out.read_text().splitlines()[0] == '"bag","row_label","f0","f1","f2","labels"'


def test_csv__ids_that_call_nothing_stay(tmp_path):
    ids = ["-5", "+7", "-1e3", "a=b", "-AbC_1", "@home", "-"]
    first = write_store(tmp_path / "n.zarr", replace(made_block(7), bag_ids=ids))
    out, *beside = export(first, tmp_path / "n.csv")
    second = convert(out, tmp_path / "m.zarr", options=options_for(first, beside)).store
    assert second.bag_ids(0, 7) == ids


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".npz"])
def test_export__of_labels_without_names_holds_no_list_of_them(tmp_path, suffix, monkeypatch):
    store = write_store(tmp_path / "n.zarr", made_block(4), n_labels=3_000_000)
    monkeypatch.setattr(module, "_label_lines", lambda _: iter(["many"]))
    tracemalloc.start()
    try:
        export(store, tmp_path / f"n{suffix}")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_export__a_read_only_folder_is_refused_before_bags_are_read(store, tmp_path, monkeypatch):
    def refuse(self, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(module.Path, "open", refuse)
    monkeypatch.setattr(module.Path, "unlink", refuse)
    monkeypatch.setattr(module, "_top_label", lambda _: pytest.fail("bags were read"))
    for suffix in (".csv", ".jsonl.gz", ".npz"):
        with pytest.raises(
            StoreError, match=r"cannot be written: Read-only file system; choose another folder$"
        ):
            export(store, tmp_path / "out" / f"a{suffix}")


def test_export__an_error_while_cleaning_up_hides_no_other(store, tmp_path, monkeypatch):
    """As on a file system that becomes read-only in between."""

    def refuse(self, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(module, "_refuse_unwritable", lambda _: None)
    monkeypatch.setattr(module, "_stream", refuse)
    monkeypatch.setattr(module.Path, "unlink", refuse)
    with pytest.raises(StoreError, match=r"cannot be written: Read-only file system \([\d,]+ byt"):
        export(store, tmp_path / "a.csv")


def test_export__a_folder_in_its_place_is_refused(store, tmp_path):
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(StreammimlError, match=r"a\.csv exists already; remove it or choose anoth"):
        export(store, tmp_path / "a.csv")
    (tmp_path / "file").touch()
    with pytest.raises(StreammimlError, match=r"cannot be written: there is no folder"):
        export(store, tmp_path / "file" / "a.csv")
    with pytest.raises(StoreError, match=r"cannot be written: File name too long"):
        export(store, tmp_path / f"{'a' * 300}.csv")


def test_damage__leaves_no_half_file(store, tmp_path):
    export(store, tmp_path / "whole.jsonl")
    folder = tmp_path / store.name.rsplit("/", 1)[-1]
    largest = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    raw = bytearray(largest.read_bytes())
    for at in range(0, len(raw), 7):
        raw[at] ^= 0xFF
    largest.write_bytes(raw)
    with pytest.raises(StoreError):
        export(sm.open_store(folder), tmp_path / "half.jsonl")
    assert not list(tmp_path.glob("*half*")) + list(tmp_path.glob(".half*"))


def test_verb__says_what_it_wrote(store, tmp_path, capsys):
    assert run(["export", store.name, str(tmp_path / "a.csv")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"a\.csv: 20 bags, \d+ rows, [\d,]+ bytes", out)
    assert re.search(
        r"a\.labels\.txt: the labels in their order; give this file to convert as --labels", out
    )
    again = [str(tmp_path / "a.csv"), str(tmp_path / "b.zarr")]
    assert run(["convert", *again, "--labels", str(tmp_path / "a.labels.txt")]) == 0
    assert sm.open_store(tmp_path / "b.zarr").fingerprint == store.fingerprint
    convert(store.name, tmp_path / "s.zarr", ConvertConfig(), SourceOptions(sparse=True))
    assert run(["export", str(tmp_path / "s.zarr"), str(tmp_path / "s.jsonl")]) == 0
    assert "rows are sparse: give --n-features 3 to convert" in capsys.readouterr().out
