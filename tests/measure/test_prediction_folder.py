"""A folder of parts: one owner, one set of settings, and no file that is half written."""

import errno

import pytest

from streammiml.errors import StreammimlError
from streammiml.measure.prediction_folder import (
    COMPLETE,
    RECORD,
    PartFolder,
    atomic_file,
    disk_errors,
    write_json,
)


def test_folder__goes_on_with_the_same_record_and_refuses_another(tmp_path):
    with PartFolder(tmp_path / "p", {"top_k": 3, "store": "f"}, "predictions") as folder:
        folder.finish({"n_parts": 2})
    assert (tmp_path / "p" / COMPLETE).read_bytes() == b'{\n "n_parts": 2\n}\n'
    with PartFolder(tmp_path / "p", {"top_k": 3, "store": "f"}, "predictions") as folder:
        folder.reopen()
    assert not (tmp_path / "p" / COMPLETE).exists()
    with pytest.raises(StreammimlError, match="was begun with top_k 3, not 4; name another folder"):
        PartFolder(tmp_path / "p", {"top_k": 4, "store": "g"}, "predictions")


def test_folder__has_one_owner(tmp_path):
    with (
        PartFolder(tmp_path / "p", {}, "predictions"),
        pytest.raises(StreammimlError, match="is being written by process"),
    ):
        PartFolder(tmp_path / "p", {}, "predictions")


def test_folder__refuses_what_is_not_its_own(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(StreammimlError, match=r"holds other files \(mine.txt\) and no predictions"):
        PartFolder(tmp_path, {}, "predictions")
    with pytest.raises(StreammimlError, match="is a file; name a folder for the predictions"):
        PartFolder(tmp_path / "mine.txt", {}, "predictions")
    with pytest.raises(
        StreammimlError, match="is a URL, and predictions are written to folders of this machine"
    ):
        PartFolder("s3://bucket/p", {}, "predictions")
    for what, word in (("search", "searches"), ("comparison", "comparisons")):
        with pytest.raises(StreammimlError, match=f"is a URL, and {word} are written to folders"):
            PartFolder("s3://bucket/p", {}, what)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_folder__removes_what_a_killed_process_left(tmp_path):
    with PartFolder(tmp_path / "p", {}, "predictions") as folder:
        (folder.path / ".part-000000.0badcafe.partial").mkdir()
        (folder.path / ".a.0badcafe.partial").write_text("half")
    with PartFolder(tmp_path / "p", {}, "predictions"):
        pass
    assert {path.name for path in (tmp_path / "p").iterdir()} == {RECORD, "_lock"}


def test_folder__control_without_the_cleaning_what_a_killed_process_left_stays(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(PartFolder, "remove_partial_files", lambda _: None)
    with PartFolder(tmp_path / "p", {}, "predictions") as folder:
        (folder.path / ".a.0badcafe.partial").write_text("half")
    with PartFolder(tmp_path / "p", {}, "predictions"):
        pass
    assert (tmp_path / "p" / ".a.0badcafe.partial").exists()


def test_atomic_file__a_failure_leaves_the_file_as_it_was(tmp_path):
    write_json(tmp_path / "x", {"b": 1, "a": 2})
    before = (tmp_path / "x").read_bytes()
    assert before == b'{\n "a": 2,\n "b": 1\n}\n'

    def fail():
        with atomic_file(tmp_path / "x") as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (tmp_path / "x").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_disk_errors__a_full_disk_says_what_is_free(tmp_path):
    with (
        pytest.raises(StreammimlError, match=r"all parts take about 1.* are free\); make room"),
        disk_errors(tmp_path / "x", needed=1 << 20),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
