"""The staging folder: its path never changes; in a shared folder it is private."""

import os
import tempfile
from pathlib import Path

import pytest

from streammiml.bags.staging import staging_for, staging_of
from streammiml.errors import StoreError


def test_staging_for_a_path__is_a_hidden_folder_beside_it(tmp_path):
    assert staging_for(str(tmp_path / "a.zarr")) == tmp_path / ".a.zarr.partial"
    assert staging_of(Path("b.parquet")) == Path(".b.parquet.partial")


@pytest.fixture
def private(tmp_path, monkeypatch):
    """The user's folder in an empty temporary folder; not made yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"streammiml-{os.getuid()}"


def test_staging_for_a_url__is_found_again_and_private(private):
    folder = staging_for("s3://b/corpus.zarr")
    assert folder.parent == private
    assert private.stat().st_mode & 0o777 == 0o700
    assert staging_for("s3://b/corpus.zarr") == folder
    assert staging_for("s3://b/other.zarr") != folder


def test_staging_for_a_url__refuses_a_link(private, tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o700)
    private.symlink_to(tmp_path / "theirs")
    with pytest.raises(StoreError, match=r"is a link or a file, so others could read or replace"):
        staging_for("s3://b/corpus.zarr")
    private.unlink()
    private.symlink_to(tmp_path / "nothing")
    with pytest.raises(StoreError, match=r"is a link or a file, so others could read or replace"):
        staging_for("s3://b/corpus.zarr")


def test_staging_for_a_url__refuses_a_folder_that_is_open_to_others(private):
    for mode in (0o750, 0o702):
        private.mkdir()
        private.chmod(mode)
        message = (
            rf"is open to other users \(mode {mode:o}\), so others .* or set TMPDIR to a folder"
        )
        with pytest.raises(StoreError, match=message):
            staging_for("s3://b/corpus.zarr")
        private.rmdir()


def test_staging_for_a_url__refuses_a_folder_of_another_user(private, tmp_path, monkeypatch):
    private.mkdir(mode=0o700)
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    private.rename(tmp_path / f"streammiml-{other}")
    with pytest.raises(StoreError, match=rf"belongs to another user \({other - 1}\), so others"):
        staging_for("s3://b/corpus.zarr")


def test_staging_for_a_url__that_cannot_be_made_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(StoreError, match=r"cannot be made: No such file .* set TMPDIR to a folder"):
        staging_for("s3://b/corpus.zarr")
