"""Locations: local folders, and the location of a path or URL."""

import gc
import os

import pytest
from crc32c import crc32c

import streammiml as sm
from streammiml.bags import location
from streammiml.bags.file_errors import MissingFile, Unreadable
from streammiml.bags.location import LocalFolder, file_crc
from streammiml.errors import StoreError, StreammimlError
from tests.bags.test_page_cache import open_descriptors


def test_local_folder__reads_files_by_key(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"0123456789")
    folder, buffer = LocalFolder(tmp_path), bytearray(3)
    folder.read_into("a/b", 4, memoryview(buffer))
    assert (bytes(buffer), folder.read_all("a/b")) == (b"456", b"0123456789")
    assert (folder.size("a/b"), folder.size("c"), folder.files()) == (10, None, ["a/b"])


def test_local_folder__tells_missing_files_from_others_by_class(tmp_path):
    (tmp_path / "few").write_bytes(b"12")
    os.mkfifo(tmp_path / "pipe")
    folder, buffer = LocalFolder(tmp_path), memoryview(bytearray(3))
    for key in ("none", "few/below"):
        with pytest.raises(MissingFile, match="is missing"):
            folder.read_all(key)
    with pytest.raises(Unreadable, match="is short: ends at byte 2, needed 3"):
        folder.read_into("few", 0, buffer)
    with pytest.raises(Unreadable, match="cannot be read: it is a pipe or a device, not a file"):
        folder.read_into("pipe", 0, buffer)


def test_file_crc__is_of_the_whole_file_or_of_its_beginning(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert file_crc(path) == (10, crc32c(b"0123456789"))
    assert file_crc(path, 4) == (4, crc32c(b"0123"))
    assert file_crc(path, 99) == (10, crc32c(b"0123456789"))


def test_url_of_unknown_kind__is_refused():
    with pytest.raises(StreammimlError, match=r"ftp://x/y.zarr: no such kind of URL; known: s3://"):
        sm.open_store("ftp://x/y.zarr")


def test_url_without_obstore__says_what_to_install(monkeypatch):
    def missing(_):
        raise ModuleNotFoundError(name="obstore")

    monkeypatch.setattr("streammiml.bags.location.import_module", missing)
    with pytest.raises(StreammimlError, match=r"needs obstore: pip install 'streammiml\[s3\]'"):
        sm.open_store("s3://bucket/x.zarr")


def test_stores__share_the_files_that_may_be_open(tmp_path, monkeypatch):
    monkeypatch.setattr(location, "OPEN_FILES", 3 * location.FEWEST_FILES)
    for i in range(20):
        (tmp_path / f"{i}").write_bytes(b"abc")
    gc.collect()
    folders = [location.LocalFolder(tmp_path) for _ in range(3)]
    before = open_descriptors()
    for folder in folders:
        for i in range(20):
            buffer = bytearray(3)
            folder.read_into(f"{i}", 0, memoryview(buffer))
            assert buffer == b"abc"
    assert open_descriptors() - before <= 3 * location.FEWEST_FILES
    del folders, folder
    assert open_descriptors() <= before


def test_size__of_an_unreadable_file_raises_store_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StoreError, match=r"/a cannot be read: Too many levels of symbolic links"):
        LocalFolder(tmp_path).size("a")
