"""Files under URLs: paths that open, files that seek, windows that grow, and what is refused."""

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.remote_files import (
    CACHE_BLOCK,
    CACHE_BLOCKS,
    LEAST_WINDOW,
    MOST_WINDOW,
    BlockCache,
    FetchedFile,
    RemoteFile,
    UrlPath,
    arrow_file,
    fetched,
    files_matching,
    forget_files,
    is_url,
    keep_files_for,
    random_access,
    refuse_url,
    source_path,
    status_of,
    statuses_below,
    url_of,
)
from tests.remote_servers import http_server

obstore = pytest.importorskip("obstore")
from_url = pytest.importorskip("obstore.store").from_url
CONTENT = bytes(np.random.default_rng(0).integers(0, 256, 3_000_000, dtype=np.uint8))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    (folder / "a.bin").write_bytes(CONTENT)
    (folder / "empty.bin").write_bytes(b"")
    forget_files()
    with http_server(folder) as url:
        yield url, folder
    forget_files()


class CountedFile(RemoteFile):
    """Notes the ranges that are fetched."""

    def __init__(self, *args):
        super().__init__(*args)
        self.sizes = []
        inner = self._folder

        class Folder:
            def read_into(_, key, offset, buffer):
                self.sizes.append(len(buffer))
                inner.read_into(key, offset, buffer)

        self._folder = Folder()


def test_url_path__keeps_its_slashes_and_its_kind():
    path = source_path("s3://bucket/x/slides.csv.gz")
    assert isinstance(path, UrlPath)
    assert str(path) == "s3://bucket/x/slides.csv.gz"
    assert f"{path.parent}/{path.name}" == str(path)
    assert (path.suffix, path.stem) == (".gz", "slides.csv")
    assert path.with_name("b.csv") == source_path("s3://bucket/x/b.csv")
    assert isinstance(path.parent, UrlPath)
    assert pickle.loads(pickle.dumps(path)) == path
    assert path.absolute() is path
    assert not path.is_dir()
    assert source_path(path) is path
    assert source_path("a/b.csv") == Path("a/b.csv")
    assert [is_url(text) for text in ("s3:/b/x", "http://h/x", "s3.csv")] == [True, True, False]
    assert url_of(Path("https://host/c")) == "https://host/c"


@given(places=st.lists(st.tuples(st.integers(0, 3_100_000), st.integers(0, 700_000)), max_size=6))
def test_remote_file__reads_as_a_file_of_a_disk(served, places):
    url, folder = served
    with (folder / "a.bin").open("rb") as near, source_path(f"{url}/a.bin").open("rb") as far:
        for start, n_bytes in places:
            assert far.seek(start) == near.seek(start)
            assert far.read(n_bytes) == near.read(n_bytes)
            assert far.tell() == near.tell()
    assert source_path(f"{url}/empty.bin").open("rb").read() == b""


def test_remote_file__fetches_little_after_a_seek_and_more_as_it_goes_on(served):
    file = CountedFile(f"{served[0]}/a.bin", len(CONTENT))
    for _ in range(30):
        file.read(50_000)
    assert file.sizes == sorted(file.sizes)
    assert (file.sizes[0], file.sizes[-1]) == (LEAST_WINDOW, 16 * LEAST_WINDOW)
    file.seek(10)
    file.read(1)
    assert file.sizes[-1] == LEAST_WINDOW
    assert file.seek(-3, io.SEEK_END) == len(CONTENT) - 3
    assert file.read() == CONTENT[-3:]
    assert file.sizes[-1] == 3
    assert max(file.sizes) <= MOST_WINDOW
    with pytest.raises(OSError, match="a position before the first byte"):
        file.seek(-1)


def test_remote_file__is_read_by_pyarrow_and_zipfile(served):
    url, folder = served
    with arrow_file(f"{url}/a.bin") as file:
        assert file.size() == len(CONTENT)
        assert file.read_at(100, 2_000_000) == CONTENT[2_000_000:2_000_100]
    with arrow_file(folder / "a.bin") as file:
        assert isinstance(file, pa.OSFile)
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("inner", b"words" * 1000)
    with zipfile.ZipFile(source_path(f"{url}/a.zip").open("rb")) as archive:
        assert archive.read("inner") == b"words" * 1000


def test_stat__has_size_and_time_and_is_kept_until_files_are_forgotten(served):
    url, folder = served
    path, near = source_path(f"{url}/b.bin"), folder / "b.bin"
    near.write_bytes(b"1")
    forget_files()
    assert path.is_file()
    assert path.stat().st_size == 1
    assert path.stat().st_mtime_ns == int(near.stat().st_mtime) * 10**9
    near.write_bytes(b"22")
    assert path.stat().st_size == 1
    forget_files()
    assert path.stat().st_size == 2
    for session, content, size in (("a", b"333", 3), ("a", b"4444", 3), ("b", b"4444", 4)):
        near.write_bytes(content)
        keep_files_for(session)
        assert path.stat().st_size == size
    assert status_of(f"{url}/b.bin").size == 4
    assert status_of(f"{url}/none") is None
    assert not source_path(f"{url}/none").exists()
    assert status_of("s3://bucket") is None
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        source_path(f"{url}/none").stat()


def test_remote_file__that_is_gone_or_shorter_is_an_error_that_names_it(served):
    url, folder = served
    (folder / "c.bin").write_bytes(b"123")
    file = RemoteFile(f"{url}/c.bin", 10)
    with pytest.raises(SourceError, match=r"/c.bin is short: got 3 bytes, expected 10") as caught:
        file.read()
    assert caught.value.may_pass
    (folder / "c.bin").unlink()
    with pytest.raises(SourceError, match=r"/c.bin is missing$") as caught:
        file.read()
    assert not caught.value.may_pass


def test_remote_file__of_a_server_without_ranges_says_what_to_do(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"123")
    forget_files()
    with (
        http_server(tmp_path, ranges=False) as url,
        pytest.raises(SourceError, match="does not support range requests; use a server that"),
    ):
        RemoteFile(f"{url}/a.bin", 3).read(2)


def test_listing__has_all_files_below_and_those_that_match(s3):
    forget_files()
    for name in ("a.csv", "b.csv", "sub/c.csv", "d.txt"):
        obstore.put(from_url(s3), name, name.encode())
    below = statuses_below(f"{s3}/")
    assert list(below) == [f"{s3}/{name}" for name in ("a.csv", "b.csv", "d.txt", "sub/c.csv")]
    assert below[f"{s3}/sub/c.csv"].size == 9
    assert below[f"{s3}/a.csv"].tag == status_of(f"{s3}/a.csv").tag != below[f"{s3}/b.csv"].tag
    assert list(files_matching(f"{s3}/*.csv")) == [f"{s3}/a.csv", f"{s3}/b.csv"]
    assert list(files_matching(f"{s3}/*/[cd].csv")) == [f"{s3}/sub/c.csv"]


def test_refuse_url__names_the_kind_and_the_way_out():
    refuse_url("a.h5", "HDF5")
    with pytest.raises(SourceError, match=r"s3://b/a.h5: HDF5 files cannot be read from a URL; co"):
        refuse_url(Path("s3://b/a.h5"), "HDF5")


@given(places=st.lists(st.tuples(st.integers(0, 3_100_000), st.integers(0, 400_000)), max_size=8))
def test_block_cache__reads_as_a_file_of_a_disk(served, places):
    url, _ = served
    with BlockCache(RemoteFile(f"{url}/a.bin", len(CONTENT))) as file:
        for start, count in places:
            file.seek(start)
            assert file.read(count) == CONTENT[start : start + count]
            assert file.tell() == max(start, min(start + count, len(CONTENT)))
        assert file.seek(-5, io.SEEK_END) == len(CONTENT) - 5
        assert file.read() == CONTENT[-5:]
        with pytest.raises(OSError, match="a position before the first byte"):
            file.seek(-1)


def test_block_cache__fetches_a_block_once_and_keeps_few(served):
    url, _ = served
    inner = CountedFile(f"{url}/a.bin", len(CONTENT))
    file = BlockCache(inner)
    assert inner.sizes == [CACHE_BLOCK]
    for start in (100, 5, 200_000, CACHE_BLOCK - 3):
        file.seek(start)
        file.read(2)
    assert inner.sizes == [CACHE_BLOCK]
    file.seek(5 * CACHE_BLOCK)
    file.read(10)
    assert len(inner.sizes) == 2
    assert len(CONTENT) < CACHE_BLOCKS * CACHE_BLOCK


def test_fetched_file__is_read_without_requests_if_it_is_small_enough(served):
    url, folder = served
    path = source_path(f"{url}/a.bin")
    assert fetched(path, len(CONTENT) - 1) is path
    assert fetched(folder / "a.bin", len(CONTENT)) == folder / "a.bin"
    held = fetched(path, len(CONTENT))
    assert isinstance(held, FetchedFile)
    assert (str(held), held.suffix, held.stat().st_size) == (str(path), ".bin", len(CONTENT))
    with held.open() as file:
        assert isinstance(file, io.BytesIO)
        assert file.read() == CONTENT
    assert random_access(held).read() == CONTENT
    assert isinstance(random_access(path), BlockCache)
    # A file beside it is another file.
    beside = held.with_name("empty.bin")
    assert (str(beside), beside.open().read()) == (f"{url}/empty.bin", b"")
