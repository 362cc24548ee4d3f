"""The verb convert: what it prints, the dry run, and the file of labels."""

import json
import re
import subprocess
import sys

import pytest

import streammiml as sm
from streammiml.errors import StreammimlError
from streammiml.verbs.main import run
from streammiml_tools.convert import conversion
from streammiml_tools.convert.verb import with_label_file
from streammiml_tools.readers.base import SourceOptions
from tests.stores import (
    made_block,
)
from tests.tools.convert.cases import said, stop_at_once
from tests.tools.source_files import save_npz


def test_verb__says_what_it_made_and_left_out(source, tmp_path, capsys):
    words = ["convert", str(source), str(tmp_path / "out.zarr"), "--where-label", "sky"]
    assert run(words) == 0
    out, _ = said(capsys)
    assert re.search(
        r"out\.zarr: \d+ bags, \d+ rows of 3 features, 4 labels; [\d.]+ labels and", out
    )
    assert re.search(r"\d+ bags had none of the labels of --where-label", out)


def test_verb__says_beforehand_what_is_not_expected(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(conversion, "WARN_BYTES", -1)
    (tmp_path / "folder").mkdir()
    save_npz(tmp_path / "folder" / "data.npz", made_block(40))
    (tmp_path / "folder" / "README.md").write_text("words")
    out = tmp_path / "out.zarr"
    stop_at_once(tmp_path / "folder", out)
    assert run(["convert", str(tmp_path / "folder"), str(out)]) == 0
    err = said(capsys)[1]
    assert re.search(r"data\.npz is loaded into memory as a whole: 0 B", err)
    assert re.search(r"README\.md is skipped: no reader knows its format", err)
    assert re.search(r"resuming the conversion to .*out\.zarr$", err)


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
    assert "convert needs a source and a store to write: convert SOURCE... STORE" in said(capsys)[1]


def test_verb__labels_from_an_empty_file_are_refused(tmp_path):
    (tmp_path / "labels.txt").write_text("\n")
    with pytest.raises(StreammimlError, match=r"labels.txt is empty; write one label name a line"):
        with_label_file(SourceOptions(labels=(str(tmp_path / "labels.txt"),)))


def test_verb__with_swapped_paths_says_their_order(source, tmp_path, capsys):
    (tmp_path / "d.csv").write_text("bag,x,labels\na,1,b\n")
    assert run(["convert", str(source), str(tmp_path / "d.csv")]) == 2
    assert said(capsys)[1].endswith(
        f"d.csv is no name of a store, which comes last: streammiml convert {tmp_path}/d.csv "
        f"{source}"
    )


def test_verb__a_store_as_a_file_is_an_export(source, tmp_path, capsys):
    assert run(["convert", str(source), str(tmp_path / "new.csv")]) == 2
    assert said(capsys)[1].endswith(
        f"new.csv is no name of a store; to write a store as a file: streammiml export {source} "
        f"{tmp_path}/new.csv"
    )


def test_export__into_a_url_is_refused(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert run(["export", str(source), "s3://bucket/d.jsonl"]) == 2
    assert "is a URL, and files of a store are written to files of this" in said(capsys)[1]
    assert sorted(tmp_path.iterdir()) == before


FIRST_MESSAGE = """
import sys
from streammiml.verbs.main import main

class Heard:
    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        if text.strip():
            tops = {name.partition(".")[0] for name in sys.modules}
            heavy = tops & {"numba", "zarr", "dask", "distributed"}
            sys.__stdout__.write(f"{sorted(heavy)} before: {text}")
            sys.__stdout__.flush()
            import os
            os._exit(0)
        return len(text)

    def __getattr__(self, name):
        return getattr(self.stream, name)

sys.stdout, sys.stderr = Heard(sys.stdout), Heard(sys.stderr)
main()
"""
"""Says which modules are loaded when a command writes for the first time, and ends there."""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["convert", "none.csv", "x.zarr"], "none.csv does not exist"),
        (["convert", "good.csv", "x.zarr", "--bogus"], "Unknown option"),
        (["convert", "--help"], "Usage"),
        (["convert", "good.csv", "x.zarr", "--labels", "none.txt"], "none.txt cannot be read"),
        (["convert", "bad.csv", "x.zarr"], "bad.csv"),
        (["convert", "bad.jsonl", "x.zarr"], "bad.jsonl, line 1"),
        (["convert", "good.csv", "x.zarr", "--bag-labels", "bad.csv"], "bad.csv"),
        (["convert", "good.csv", "x.zarr", "--dry-run"], "source"),
        (["convert", "good.csv", "x.zarr", "--dry-run", "--split", "a=.5,b=.5"], "source"),
        (["convert", "folder", "x.zarr"], "is skipped: no reader knows its format"),
        (["verify", "none.zarr"], "none.zarr does not exist"),
        (["export", "none.zarr", "x.csv"], "none.zarr does not exist"),
    ],
)
def test_verb__speaks_before_it_loads_a_compiler_or_dask(words, message, tmp_path):
    (tmp_path / "good.csv").write_text("bag,labels,x,y\na,sky,1,2\nb,sea,3,4\n")
    (tmp_path / "bad.csv").write_text("bag,labels,x,x\na,sky,1,2\nb,sea,3,4\n")
    (tmp_path / "bad.jsonl").write_text('{"instances": [[1, 2]], "labels": ["a"\n')
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "good.csv").write_text((tmp_path / "good.csv").read_text())
    (tmp_path / "folder" / "notes.md").write_text("words")
    done = subprocess.run(
        [sys.executable, "-c", FIRST_MESSAGE, *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.startswith("[] before: "), done.stdout + done.stderr
    assert message in done.stdout
