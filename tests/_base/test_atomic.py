"""Files are there whole or as before, and a lock names its owner."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streammiml._base import atomic
from streammiml._base.atomic import (
    FolderLock,
    local_input,
    local_path,
    save_whole,
    write_atomically,
)
from streammiml.errors import StreammimlError
from tests.stores import file_limit

WRITERS = [
    lambda path, content: write_atomically(path, content),
    lambda path, content: save_whole(path, [content[:2], memoryview(content)[2:]]),
]


def failing(*_, **__):
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("write", WRITERS)
def test_write__replaces_the_file_and_leaves_nothing_beside_it(write, tmp_path):
    for content in (b"first", b"second one"):
        write(tmp_path / "file", content)
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
        assert (tmp_path / "file").read_bytes() == content


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_write__that_fails_before_the_rename_leaves_the_old_file(
    write, call, tmp_path, monkeypatch
):
    write(tmp_path / "file", b"old")
    monkeypatch.setattr(os, call, failing)
    with pytest.raises((OSError, StreammimlError)):
        write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("write", WRITERS)
def test_write__syncs_the_content_before_the_rename_and_the_folder_after(
    write, tmp_path, monkeypatch
):
    calls, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("sync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda *args: (calls.append("rename"), replace(*args)))
    write(tmp_path / "file", b"new")
    assert calls == ["sync", "rename", "sync"]


def test_write_atomically__takes_over_the_leftover_of_a_kill(tmp_path):
    (tmp_path / "file.partial").write_bytes(b"longer than what comes")
    write_atomically(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"


def test_save_whole__says_how_much_room_a_full_disk_lacks(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "write_atomically", full)
    monkeypatch.setattr(atomic, "free_bytes", lambda _: 1 << 20)
    message = r"file is not saved: No space left on device; it takes 3 MiB and 1 MiB are free; make"
    with pytest.raises(StreammimlError, match=message):
        save_whole(tmp_path / "file", [bytes(3 << 20)])


def test_folder_lock__has_one_owner_and_names_it(tmp_path):
    lock = FolderLock(tmp_path / "lock", "run x")
    code = (
        "import sys; from pathlib import Path; from streammiml._base.atomic import FolderLock\n"
        "try:\n    FolderLock(Path(sys.argv[1]), 'run x')\nexcept ValueError as error:\n"
        "    print(error)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "lock")], capture_output=True, text=True
    )
    owner = f"process {os.getpid()} on "
    assert process.stdout.startswith(f"run x is being written by {owner}"), process.stderr
    assert lock.is_in_place
    lock.release()
    FolderLock(tmp_path / "lock", "run x").release()


def test_folder_lock__that_cannot_name_its_owner_is_free_again(tmp_path):
    with pytest.raises(OSError, match="File too large") as caught, file_limit(0):
        FolderLock(tmp_path / "lock", "run x")
    FolderLock(tmp_path / "lock", "run x").release()
    assert caught.value.__traceback__ is not None


def test_folder_lock__notices_that_its_file_was_replaced(tmp_path):
    lock = FolderLock(tmp_path / "lock", "run x")
    (tmp_path / "lock").unlink()
    assert not lock.is_in_place
    (tmp_path / "lock").touch()
    assert not lock.is_in_place


@pytest.mark.parametrize("path", ["s3://bucket/run", "gs://b", Path("https://host/page.html")])
def test_local_path__refuses_urls(path):
    with pytest.raises(StreammimlError, match=r"is a URL, and runs are written to folders of this"):
        local_path(path, "runs")


@pytest.mark.parametrize("path", ["run", "a:b", "./s3:/x", Path("/tmp/c:/d")])
def test_local_path__takes_paths(path):
    assert local_path(path, "runs") == Path(path)


@pytest.mark.parametrize("given", ["s3://bucket/run", Path("s3://bucket/run")])
def test_local_input__refuses_urls_and_names_them_with_both_slashes(given):
    message = (
        r"^s3://bucket/run is a URL, and runs are read from this machine only; copy it here first, "
        r"and name the copy$"
    )
    with pytest.raises(StreammimlError, match=message):
        local_input(given, "runs")
    with pytest.raises(StreammimlError, match=r"^s3://bucket/run is a URL, and pages are writ"):
        local_path(given, "pages", "file")
    assert local_input("runs/s3", "runs") == Path("runs/s3")
