"""The file of --labels: one name a line, or a vocabulary."""

from pathlib import Path

import pytest

from streammiml.errors import StreammimlError
from streammiml_tools.convert.label_file import label_names_in
from tests.measure.models import made_model
from tests.remote_servers import http_server
from tests.stores import made_block, write_store


def test_lines__are_names_in_order(tmp_path):
    (tmp_path / "l.txt").write_text("\ufeffsky\n sea \nmoon\n\n")
    assert label_names_in(tmp_path / "l.txt") == ("sky", "sea", "moon")
    (tmp_path / "l.txt").write_text("index,finger\nthumb\n")
    assert label_names_in(tmp_path / "l.txt") == ("index,finger", "thumb")
    (tmp_path / "l.csv").write_text('sky\n"sea, deep"\n\n')
    assert label_names_in(tmp_path / "l.csv") == ("sky", "sea, deep")


def test_vocabulary__of_youtube_8m(tmp_path):
    (tmp_path / "v.csv").write_text(
        "Index,TrainVideoCount,KnowledgeGraphId,Name\n1,9,/m/b,\n0,5,/m/a,Game\n2,7,/m/c,Game\n"
    )
    assert label_names_in(tmp_path / "v.csv") == ("Game", "/m/b", "Game (2)")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("0,a\n2,b\n", r"has no line for index 1; indices are counted 0, 1, 2, …"),
        ("", r"has no line for index 0"),
        ("0,a\n0,b\n", r"line 3: index 0 occurs twice"),
        ("x,a\n", r"line 2: expected an index and a name in columns 'index' and 'name'"),
        ("0\n", r"line 2: expected an index and a name"),
    ],
)
def test_vocabulary__that_lacks_something_is_refused(tmp_path, lines, words):
    (tmp_path / "v.csv").write_text(f"index,name\n{lines}")
    with pytest.raises(StreammimlError, match=words):
        label_names_in(tmp_path / "v.csv")


def test_run_model_and_store__give_their_names(tmp_path):
    names = ("sea", "sky", "sun", "tree")
    (tmp_path / "run").mkdir()
    made_model(label_names=names).save(tmp_path / "run" / "model.safetensors")
    write_store(tmp_path / "s.zarr", made_block(3), label_names=names)
    for path in ("run", "run/model.safetensors", "s.zarr"):
        assert label_names_in(tmp_path / path) == names
    made_model().save(tmp_path / "m.safetensors")
    with pytest.raises(
        StreammimlError, match=r"m\.safetensors has no names of labels, only their nu"
    ):
        label_names_in(tmp_path / "m.safetensors")


@pytest.mark.parametrize(("suffix", "cut"), [("csv", ","), ("csv", ";"), ("tsv", "\t")])
def test_vocabulary__may_have_quotes_and_other_separators(tmp_path, suffix, cut):
    path = tmp_path / f"v.{suffix}"
    path.write_text(f'"index"{cut}"name"\n1{cut}"sea"\n0{cut}"sky{cut} blue"\n')
    assert label_names_in(path) == (f"sky{cut} blue", "sea")


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_table__of_other_columns_is_refused(tmp_path, suffix):
    path = tmp_path / f"v.{suffix}"
    cut = "," if suffix == "csv" else "\t"
    for text, line in ((f"code{cut}title\n1{cut}a\n", 1), (f"sky\nsea{cut} deep\n", 2)):
        path.write_text(text)
        message = (
            rf"v\.{suffix}, line {line} has 2 columns; a vocabulary has a column index and a "
            r"column name, display_name, label or label_name; in a file of names, each is one"
        )
        with pytest.raises(StreammimlError, match=message):
            label_names_in(path)


def test_labels__of_a_text_under_a_url(tmp_path):
    (tmp_path / "l.txt").write_text("sky\nsea\n")
    (tmp_path / "v.csv").write_text("index,name\n1,b\n0,a\n")
    with http_server(tmp_path) as server:
        assert label_names_in(Path(f"{server}/l.txt")) == ("sky", "sea")
        assert label_names_in(Path(f"{server}/v.csv")) == ("a", "b")
        with pytest.raises(StreammimlError, match=r"^--labels http://.*/no.txt cannot be read: th"):
            label_names_in(Path(f"{server}/no.txt"))
