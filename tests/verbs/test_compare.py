"""compare as a user runs it: a table on stdout, progress on stderr, one line for bad input."""

import json

import pytest

from streammiml.bags.block import BagBlock
from streammiml.verbs import compare as module
from streammiml.verbs.main import run
from tests.planted import planted
from tests.stores import plain, write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("compare") / "x.zarr"
    return write_store(path, planted(60), n_labels=5).name


def test_compare__prints_a_table_and_its_progress(store, tmp_path, capsys, monkeypatch):
    pytest.importorskip("sklearn")
    out = tmp_path / "out"
    words = ["compare", store, str(out), "--methods", "dba,mimlknn", "--splits", "2"]
    assert run([*words, "--threads", "1"]) == 0
    text, err = capsys.readouterr()
    lines = text.splitlines()
    assert lines[0].split()[:4] == ["method", "hamming", "loss", "↓"]
    assert [line.split()[0] for line in lines[1:3]] == ["DBA", "MIMLkNN"]
    assert "±" in lines[1]
    assert lines[-1] == f"{out}/report.html shows this as charts"
    errors = err.splitlines()
    assert errors[0] == "0 of 4 cells"
    assert errors[-1].startswith("4 of 4 cells: MIMLkNN, split 1: ranking loss 0.")
    # Everything is there, so that the same command only writes the results again.
    monkeypatch.setattr(module, "has_pages", lambda: False)
    assert run(words) == 0
    text, err = capsys.readouterr()
    assert err.splitlines() == ["4 of 4 cells"]
    assert text.splitlines()[-1].startswith("for a page, pip install 'streammiml[report]'")
    assert run([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["methods"] == {"dba": "DBA", "mimlknn": "MIMLkNN"}
    assert result["reference"] is None


def test_compare__says_why_a_figure_is_missing(store, tmp_path, capsys):
    pytest.importorskip("sklearn")
    words = ["compare", store, str(tmp_path / "out"), "--methods", "mimlsvm", "--splits", "1"]
    assert run([*words, "--memory", "100kB"]) == 0
    text, err = capsys.readouterr()
    assert "MIMLSVM would need about" in text
    assert "1 of 1 cells: MIMLSVM, split 0: N/A: MIMLSVM would need about" in err
    assert "N/A" in text.splitlines()[1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--methods", "knn"], "no method is called 'knn'; known: all, dba, "),
        (["--splits", "0"], "splits must be at least 1, got 0"),
        (["--time-limit", "10"], "time_limit must be a time such as 90s, 10min or 2h, got '10'"),
        (["--folds", "41"], "40 bags cannot be cut into 41 folds"),
        (["--sizes", "1,2"], "sizes must be from 2 to 40, the training bags of a split, got 1"),
        (["--threads", "2", "--workers", "2"], "give one of --threads and --workers, not both"),
        (["--scheduler", "nowhere"], "no Dask scheduler answers at nowhere"),
    ],
)
def test_compare__bad_options_get_one_line_and_exit_code_2(store, tmp_path, more, message, capsys):
    assert run(["compare", store, str(tmp_path / "out"), *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "\n" not in err.strip()
    assert not (tmp_path / "out").exists()


def test_compare__stores_without_labels_and_other_folders_get_one_line(tmp_path, store, capsys):
    block = plain(planted(12))
    bags = [block.rows_of(i) for i in range(12)]
    unlabelled = BagBlock.from_bags(bags, [[]] * 12)
    bare = write_store(tmp_path / "bare.zarr", unlabelled, n_labels=0).name
    assert run(["compare", bare, str(tmp_path / "out")]) == 2
    assert "has 0 labels, and methods are compared by the order of" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("")
    assert run(["compare", store, str(tmp_path / "other")]) == 2
    message = "other holds other files (notes.txt) and no comparison; name a new folder"
    assert message in capsys.readouterr().err
