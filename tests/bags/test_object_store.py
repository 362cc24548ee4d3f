"""Stores under URLs, against servers that the tests start themselves."""

import os
import pickle
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import obstore
import pytest

from streammiml.bags import object_store
from streammiml.bags.file_errors import Unreadable
from streammiml.bags.layout import MANIFEST, OWNER
from streammiml.bags.location import open_location
from streammiml.bags.object_store import ObjectFolder, client_for, deadline
from streammiml.bags.seal import seal
from streammiml.bags.store import open_one, open_store
from streammiml.bags.writer import BagWriter
from streammiml.errors import StoreError, StreammimlError
from tests.remote_servers import NOWHERE, http_server
from tests.stores import assert_same, made_block, made_spec, plain, sizes, write_parts, write_store

ROOT = Path(__file__).parents[2]
CLOSED = "http://127.0.0.1:9"


@pytest.fixture
def hurried(monkeypatch):
    """No credentials, no server that could provide them, and a short deadline."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    for name, value in {**NOWHERE, "STREAMMIML_STORE_SECONDS": "1"}.items():
        monkeypatch.setenv(name, value)


def parts_of(n_bags=24, n_parts=6):
    block = made_block(n_bags)
    cuts = np.linspace(0, n_bags, n_parts + 1).astype(int)
    return block, [block.slice(a, b) for a, b in pairwise(cuts)]


# Writing and reading.


def test_s3_store__is_the_same_as_the_local_one(s3, backend, tmp_path):
    block, parts = parts_of()
    with small():
        remote = write_parts(f"{s3}/a corpus.{backend}", SMALL, parts)
        local = write_parts(tmp_path / f"corpus.{backend}", SMALL, parts)
        for start, stop in ((0, 24), (0, 0), (3, 17), (23, 24)):
            assert_same(remote.read(start, stop), local.read(start, stop))
        assert_same(remote.read(0, 24), block)
        chosen = [20, 1, 1, 7, 13]
        assert_same(remote.read_bags(chosen), local.read_bags(chosen))
        assert remote.bag_ids(2, 9) == local.bag_ids(2, 9)
        assert remote.check() == []
    assert remote.location.files() == local.location.files()
    for field in ("n_bags", "n_rows", "n_features", "n_labels", "dtype", "label_names"):
        assert getattr(remote, field) == getattr(local, field)
    assert remote.fingerprint == local.fingerprint


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_s3_store__reads_coded_and_joined_rows(s3, backend, codec):
    block = plain(made_block(dtype="uint8"))
    one, two = f"{s3}/one.{backend}", f"{s3}/two.{backend}"
    write_store(one, block, codec=codec, n_labels=4)
    write_store(two, block.slice(0, 4), codec=codec, n_labels=4)
    both = open_store([one, two])
    assert_same(both.read(6, 14).slice(0, 6), block.slice(6, 12))
    assert_same(both.read(12, 16), block.slice(0, 4))


def test_s3_read__longer_than_a_piece_is_put_together(s3, monkeypatch):
    store = write_store(f"{s3}/long.zarr", plain(made_block(2000)))
    monkeypatch.setattr(object_store, "PIECE", 1000)
    assert_same(store.read(0, 2000), plain(made_block(2000)))


def test_s3_upload__of_many_pieces_is_whole(s3, tmp_path):
    location = ObjectFolder(f"{s3}/big")
    content = np.random.default_rng(0).bytes(2 * object_store.PIECE + 17)
    (tmp_path / "big").write_bytes(content)
    location.put("big", tmp_path / "big")
    assert location.size("big") == len(content)
    assert location.read_all("big") == content


def test_object_folder__survives_pickling(s3):
    store = write_store(f"{s3}/c.zarr", made_block())
    location = pickle.loads(pickle.dumps(store.location))
    assert location.read_all(MANIFEST) == store.location.read_all(MANIFEST)


def test_object_folder__refuses_to_work_in_a_forked_process(s3):
    location = write_store(f"{s3}/c.zarr", made_block()).location
    reader, sender = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            location.read_all(MANIFEST)
        except StoreError as error:
            os.write(sender, str(error).encode())
        finally:
            os._exit(0)
    os.close(sender)
    with os.fdopen(reader, "rb") as pipe:
        message = pipe.read().decode()
    assert os.waitpid(child, 0) == (child, 0)
    assert "cannot be read: this process was forked from one that used a URL" in message


def test_seal__is_for_local_folders():
    with pytest.raises(
        StoreError, match=r"c\.zarr cannot be sealed: seal a local copy, then upload"
    ):
        seal("s3://corpora/c.zarr")


# Absent or complete.


def test_s3_store__is_invisible_until_its_manifest_which_comes_last(s3, backend, monkeypatch):
    url, done = f"{s3}/c.{backend}", []

    def watched(plainly):
        def watching(self, key, content):
            if key != OWNER:
                with pytest.raises(StoreError, match=r"c\.\w+ is unfinished; run streammiml conv"):
                    open_one(url)
            done.append(key)
            return plainly(self, key, content)

        return watching

    for name in ("put", "create"):
        monkeypatch.setattr(ObjectFolder, name, watched(getattr(ObjectFolder, name)))
    store = write_parts(url, made_spec(), [made_block()])
    assert done[0] == OWNER
    assert done[-1] == MANIFEST
    assert set(store.location.files()) == set(done) - {OWNER}


def test_s3_store__that_exists_is_refused(s3, backend):
    url = f"{s3}/c.{backend}"
    write_store(url, made_block())
    with pytest.raises(StoreError, match=r"c\.\w+ exists already; remove it or choose"):
        BagWriter.begin(url, made_spec())


def test_s3_store__that_appears_meanwhile_is_not_overwritten(s3, backend, tmp_path):
    url = f"{s3}/c.{backend}"
    with BagWriter.begin(url, made_spec(), staging=tmp_path / "mine") as writer:
        writer.write_part(0, made_block())
        obstore.put(client_for(url, 10), MANIFEST, b"{}", mode="create")
        with pytest.raises(StoreError, match=r"c\.\w+ exists already"):
            writer.finish(1)
    assert open_location(url).read_all(MANIFEST) == b"{}"


def test_s3_store__has_one_writer_who_is_named(s3, tmp_path):
    url = f"{s3}/c.zarr"
    with (
        BagWriter.begin(url, made_spec(), staging=tmp_path / "one"),
        pytest.raises(
            StoreError, match=r"is being written by process \d+ on .*; wait for it, or r"
        ),
    ):
        BagWriter.begin(url, made_spec(), staging=tmp_path / "another")
    with (
        BagWriter.begin(url, made_spec(), staging=tmp_path / "one"),
        pytest.raises(StoreError, match=r"is being written by process \d+ on"),
    ):
        BagWriter.begin(url, made_spec(), staging=tmp_path / "one")


def test_s3_store__is_not_begun_among_other_objects(s3):
    url = f"{s3}/c.zarr"
    obstore.put(client_for(url, 10), "notes.txt", b"mine")
    with pytest.raises(StoreError, match=r"holds 1 other objects, the first is 'notes.txt'; rem"):
        BagWriter.begin(url, made_spec())
    assert open_location(url).files() == ["notes.txt"]


def test_s3_store__deletes_objects_of_an_attempt_with_other_settings(s3, backend, tmp_path):
    url, (block, parts) = f"{s3}/c.{backend}", parts_of()
    with sizes():
        with BagWriter.begin(url, made_spec(), source="old") as writer:
            for number, part in enumerate(parts):
                writer.write_part(number, part)
        staged = next(tmp_path.rglob("*.partial"))
        with pytest.raises(StoreError, match="begun with other settings or another source; rem"):
            BagWriter.begin(url, made_spec(), source="new")
        for path in sorted(staged.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        with BagWriter.begin(url, made_spec(), source="new") as writer:
            writer.write_part(0, block.slice(0, 2))
            store = writer.finish(1)
        assert_same(store.read(0, 2), block.slice(0, 2))
        assert (
            store.location.files()
            == write_parts(
                tmp_path / f"c.{backend}", made_spec(), [block.slice(0, 2)]
            ).location.files()
        )


def test_s3_store__is_not_complete_if_an_object_has_gone(s3, backend):
    url, (_, parts) = f"{s3}/c.{backend}", parts_of()
    with small(), BagWriter.begin(url, SMALL) as writer:
        for number, part in enumerate(parts):
            writer.write_part(number, part)
        location = ObjectFolder(url)
        gone = next(key for key in location.files() if key != OWNER)
        location.delete([gone])
        with pytest.raises(StoreError, match=f"{gone} was written, but has 0 bytes instead of"):
            writer.finish(len(parts))
    assert location.size(MANIFEST) is None


def test_s3_store__refuses_a_repeated_id(s3, backend):
    block = made_block()
    with BagWriter.begin(f"{s3}/c.{backend}", made_spec()) as writer:
        writer.write_part(0, block.slice(0, 3))
        writer.write_part(1, block.slice(0, 1))
        with pytest.raises(StoreError, match=r"the first is 'bag-0000' \(bags 0 and 3\)"):
            writer.finish(2)


# Resuming after a kill.


SMALL = made_spec(chunk_bytes=24)


def small():
    """Chunks and shards so small that every part fills shards of rows."""
    return sizes(shard=48, index_chunk=64)


class Killed(BaseException):
    pass


def resume(writer, parts, written=None):
    """Write the missing parts and finish; append the numbers of these parts to ``written``."""
    for number, part in enumerate(parts):
        if not writer.has_part(number):
            writer.write_part(number, part)
            if written is not None:
                written.append(number)
    return writer.finish(len(parts))


@pytest.mark.parametrize(
    ("after", "step"),
    [
        (False, 30),
        (True, 30),
        pytest.param(False, 1, marks=pytest.mark.slow),
        pytest.param(True, 1, marks=pytest.mark.slow),
    ],
)
def test_s3_upload__interrupted_anywhere_is_resumed(
    s3, backend, after, step, monkeypatch, tmp_path
):
    """Killed at every ``step``-th object, before or after its upload; complete parts are kept."""
    _, parts = parts_of(n_bags=10, n_parts=3)
    put, calls = ObjectFolder.put, {"left": 0, "made": 0}

    def put_or_die(self, key, source):
        calls["left"] -= 1
        calls["made"] += 1
        if calls["left"] == 0 and not after:
            raise Killed
        put(self, key, source)
        if calls["left"] == 0:
            raise Killed

    monkeypatch.setattr(ObjectFolder, "put", put_or_die)
    with small():
        reference = write_parts(f"{s3}/whole.{backend}", SMALL, parts)
        for n in range(2, calls["made"] + 1, step):
            url, staging = f"{s3}/{n}-{after}.{backend}", tmp_path / f"{n}"
            calls["left"], written = n, []
            with (
                BagWriter.begin(url, SMALL, staging=staging) as writer,
                pytest.raises(Killed),
            ):
                resume(writer, parts, written)
            with pytest.raises(StoreError, match="is unfinished; run"):
                open_one(url)
            with BagWriter.begin(url, SMALL, staging=staging) as writer:
                assert all(writer.has_part(number) for number in written)
                store = resume(writer, parts)
            assert store.fingerprint == reference.fingerprint
            assert store.location.sizes() == reference.location.sizes()
        assert store.check() == []


KILLED = """
import os, signal, sys
from streammiml.bags.writer import BagWriter
from tests.bags.test_object_store import SMALL, parts_of, small
with small(), BagWriter.begin(sys.argv[1], SMALL) as writer:
    for number, part in enumerate(parts_of(n_bags=12)[1]):
        writer.write_part(number, part)
        print(number, flush=True)
    signal.pause()
"""


def test_s3_upload__killed_by_the_system_is_resumed(s3, backend, tmp_path):
    url, (block, parts) = f"{s3}/c.{backend}", parts_of(n_bags=12)
    settings = {**os.environ, "TMPDIR": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, url], cwd=ROOT, env=settings, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    with child:
        for _ in range(3):
            assert child.stdout.readline()
        child.send_signal(signal.SIGKILL)
    with small():
        with BagWriter.begin(url, SMALL) as writer:
            assert all(writer.has_part(number) for number in range(3))
            store = resume(writer, parts)
        assert_same(store.read(0, len(block)), block)
        clean = write_parts(tmp_path / f"clean.{backend}", SMALL, parts)
    assert store.location.files() == clean.location.files()
    assert store.fingerprint == clean.fingerprint
    assert list(tmp_path.rglob("*.partial")) == []


# HTTP.


@pytest.mark.usefixtures("hurried")
def test_http__reads_a_local_store(tiny):
    with http_server(tiny.path.parent) as address:
        store = open_one(f"{address}/{tiny.path.name}")
        assert_same(store.read(0, 12), tiny.block)
        assert_same(store.read_bags([11, 2]), open_one(tiny.path).read_bags([11, 2]))
        assert store.bag_ids(0, 12) == tiny.block.bag_ids
        assert store.check() == []
        with pytest.raises(StoreError, match=r"/other\.zarr is no store: it has no _streammiml"):
            open_one(f"{address}/other.zarr")
        with pytest.raises(StoreError, match="cannot be listed: an http server has no list of f"):
            store.location.files()


@pytest.mark.usefixtures("hurried")
def test_http__without_ranges_is_refused_at_open(tiny):
    with (
        http_server(tiny.path.parent, ranges=False) as address,
        pytest.raises(
            StoreError, match=r"tiny\.\w+/\S+ cannot be read: its server does not support range"
        ),
    ):
        open_one(f"{address}/{tiny.path.name}")


@pytest.mark.usefixtures("hurried")
def test_http__is_for_reading_only():
    with pytest.raises(StoreError, match=r"c\.zarr cannot be written: http is for reading only"):
        BagWriter.begin("https://127.0.0.1:9/c.zarr", made_spec())


@pytest.mark.usefixtures("hurried")
def test_http__a_missing_server_raises_an_error_before_the_deadline():
    begun = time.monotonic()
    with pytest.raises(
        StoreError,
        match=r"c\.zarr/_streammiml/manifest\.json cannot be read within 0\.25 s: GET "
        r"http://127\.0\.0\.1:9: Connection refused after \d+ tries; check address and network",
    ):
        open_one(f"{CLOSED}/c.zarr")
    assert time.monotonic() - begun < 30


def test_http__a_server_that_never_answered_is_given_up_after_a_quarter_of_the_deadline(
    monkeypatch,
):
    monkeypatch.setenv("STREAMMIML_STORE_SECONDS", "12")
    begun = time.monotonic()
    with pytest.raises(StoreError, match=r"cannot be read within 3 s: .* refused after"):
        open_one(f"{CLOSED}/c.zarr")
    assert time.monotonic() - begun < 6


# Other clouds, by the same code.


@pytest.mark.usefixtures("hurried")
def test_urls__choose_the_kind_of_store(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "somebody")
    kinds = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore", "https": "HTTPStore"}
    for scheme, kind in kinds.items():
        location = open_location(f"{scheme}://corpora/deep/c.zarr/")
        assert isinstance(location, ObjectFolder)
        assert location.name == f"{scheme}://corpora/deep/c.zarr"
        assert type(client_for(location.name, 1)).__name__ == kind


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("s3://corpora/c.zarr", "AWS_ACCESS_KEY_ID"),
        ("gs://corpora/c.zarr", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://corpora/c.zarr", "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
@pytest.mark.usefixtures("hurried")
def test_urls__without_credentials_say_what_to_set(monkeypatch, url, variable):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "somebody")
    begun = time.monotonic()
    with pytest.raises(StoreError, match=f"json cannot be read: no credentials .* set {variable}"):
        open_one(url)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("s3://corpora/c.zarr", {"AWS_ENDPOINT_URL": CLOSED, "AWS_SKIP_SIGNATURE": "true"}),
        ("az://corpora/c.zarr", {"AZURE_STORAGE_ENDPOINT": CLOSED, "AZURE_SKIP_SIGNATURE": "true"}),
        ("gs://corpora/c.zarr", {"GOOGLE_BASE_URL": CLOSED, "GOOGLE_SKIP_SIGNATURE": "true"}),
    ],
)
@pytest.mark.usefixtures("hurried")
def test_urls__without_an_answer_raise_an_error_before_the_deadline(monkeypatch, url, settings):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "somebody")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    begun = time.monotonic()
    with pytest.raises(
        StoreError, match=r"manifest.json cannot be read within 0\.25 s: .* refused"
    ):
        open_one(url)
    assert time.monotonic() - begun < 30


@pytest.mark.usefixtures("hurried")
def test_azure__without_an_account_says_so():
    with pytest.raises(StreammimlError, match=r"cannot be opened: .* AZURE_STORAGE_ACCOUNT_NAME"):
        open_location("az://corpora/c.zarr")


@pytest.mark.usefixtures("hurried")
def test_plain_http__is_refused_unless_asked_for(monkeypatch):
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert not object_store._plain_http("s3://corpora/c.zarr")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert object_store._plain_http("s3://corpora/c.zarr")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    monkeypatch.setenv("AWS_ENDPOINT", CLOSED)
    assert object_store._plain_http("s3://corpora/c.zarr")


# Mistakes of users.


def test_urls__of_another_kind_are_refused():
    with pytest.raises(
        StreammimlError, match=r"ftp://x/c\.zarr: no such kind of URL; known: s3://"
    ):
        open_location("ftp://x/c.zarr")


@pytest.mark.usefixtures("s3")
def test_s3__a_bucket_that_is_not_there():
    with pytest.raises(StoreError, match=r"manifest.json is missing: there is no such bucket"):
        open_one("s3://no-such/c.zarr")
    with pytest.raises(StoreError, match=r"no-such/c\.zarr cannot be listed: .*bucket does not ex"):
        BagWriter.begin("s3://no-such/c.zarr", made_spec())


def test_s3__an_object_that_is_short_is_not_read(s3):
    location = ObjectFolder(f"{s3}/c")
    obstore.put(client_for(location.name, 10), "few", b"12345")
    with pytest.raises(Unreadable, match="is short: got 3 bytes, expected 4"):
        location.read_into("few", 2, memoryview(bytearray(4)))
    with pytest.raises(Unreadable, match=r"cannot be read: GET .*: 416 Range Not Satisfiable"):
        location.read_into("few", 20, memoryview(bytearray(4)))
    location.read_into("none", 0, memoryview(bytearray()))


def test_delete__ignores_missing_objects(s3):
    location = ObjectFolder(f"{s3}/c")
    obstore.put(client_for(location.name, 10), "one", b"1")
    location.delete(["one", "two"])
    assert location.files() == []


def test_status__changes_with_the_content(s3):
    location = ObjectFolder(f"{s3}/c")
    client = client_for(location.name, 10)
    assert location.status("one") is None
    obstore.put(client, "one", b"1")
    before = location.status("one")
    assert (before.size, location.size("one")) == (1, 1)
    assert before.changed > 0
    assert location.statuses() == {"one": before}
    obstore.put(client, "one", b"2")
    assert location.status("one").tag != before.tag


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan", "inf"])
def test_deadline__must_be_seconds(monkeypatch, text):
    monkeypatch.setenv("STREAMMIML_STORE_SECONDS", text)
    with pytest.raises(StreammimlError, match=f"STORE_SECONDS must be a number of seco.*'{text}'"):
        deadline()


def test_deadline__has_a_default(monkeypatch):
    monkeypatch.delenv("STREAMMIML_STORE_SECONDS", raising=False)
    assert deadline() == 60
    # The time that a dead endpoint gets.
    assert ObjectFolder("s3://bucket/x.zarr")._patience == 15


def test_urls__without_obstore_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "streammiml.bags.object_store")
    with pytest.raises(
        StreammimlError, match=r"s3://b/c\.zarr needs obstore: pip install 'streammiml\[s3\]'"
    ):
        open_store("s3://b/c.zarr")
