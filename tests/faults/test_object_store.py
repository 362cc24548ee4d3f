"""Row 8: an object store that answers wrongly, late or never.

What passes is mended, what stays is an error that names the object within the deadline, and no
value ever comes that was not written.
"""

import time
from threading import Thread

import obstore
import pytest
from obstore.store import from_url

from streammiml.bags import object_store, verified_array
from streammiml.bags.layout import MANIFEST, OWNER
from streammiml.bags.store import open_one
from streammiml.bags.writer import BagWriter
from streammiml.errors import StoreError, StreammimlError
from streammiml_tools.convert import convert
from streammiml_tools.readers.base import SourceOptions
from tests.faults.faulty_proxy import FOREVER, Fault, faulty_proxy
from tests.remote_servers import BUCKET, s3_server, s3_settings
from tests.stores import BACKENDS, assert_same, made_block, made_spec, sizes, write_parts

BLOCK = made_block()
SECONDS = 1.5
# A busy machine may add this to the deadline; without ours, a read would wait for 60 seconds.
GRACE = 28.5
DATA = {"zarr": "rows/c/0/0", "parquet": "part-00000000.parquet"}
KINDS = ("503", "500", "404", "reset", "cut", "short", "flip")
REST = [("zarr", key) for key in (MANIFEST, "c.zarr/zarr.json", "chunks-rows.bin")]
REST += [("parquet", "_streammiml/bag_offsets.bin")]
CASES = [(backend, key, kind) for backend, key in DATA.items() for kind in KINDS]
CASES += [(backend, key, kind) for backend, key in REST for kind in ("404", "flip")]


@pytest.fixture(scope="module")
def server():
    """An S3 server that holds a store of each backend."""
    with s3_server() as address, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_settings(address).items():
            patch.setenv(name, value)
        for backend in BACKENDS:
            # Chunks without padding: every bit of them is a value.
            spec = made_spec(chunk_bytes=BLOCK.rows.nbytes)
            with sizes(shard=4096, index_chunk=16, page=2048):
                write_parts(f"s3://{BUCKET}/c.{backend}", spec, [BLOCK])
        yield address


@pytest.fixture(scope="module")
def running(server):
    with faulty_proxy(server) as proxy:
        yield proxy


@pytest.fixture
def proxy(running, monkeypatch):
    """A proxy before the server, where the environment points to, with little time."""
    for name, value in s3_settings(running.address, SECONDS).items():
        monkeypatch.setenv(name, value)
    yield running
    running.calm()


def read_all(backend):
    there = open_one(f"s3://{BUCKET}/c.{backend}")
    return there.read(0, len(BLOCK))


def test_proxy__changes_nothing_without_a_fault(proxy):
    assert_same(read_all("zarr"), BLOCK)
    assert any(path.endswith(DATA["zarr"]) for _, path in proxy.asked)


def put_source(prefix):
    """A file of five hundred bags under a prefix of the bucket; returns its URL."""
    lines = "".join(f"b{number},{number},p\n" for number in range(500))
    url = f"s3://{BUCKET}/{prefix}"
    obstore.put(from_url(url), "d.csv", f"bag,x,labels\n{lines}".encode())
    return f"{url}/d.csv"


# What passes.


@pytest.mark.parametrize(("backend", "key", "kind"), CASES)
def test_fault__that_passes_is_mended(proxy, backend, key, kind):
    proxy.fault = Fault(kind, key)
    assert_same(read_all(backend), BLOCK)
    assert proxy.fault.hits >= 2


@pytest.mark.parametrize("kind", ["hang", "trickle"])
def test_fault__that_takes_too_long_once_is_mended(proxy, kind):
    proxy.fault = Fault(kind, DATA["zarr"])
    assert_same(read_all("zarr"), BLOCK)
    assert proxy.fault.hits >= 2


def test_fault__in_head_that_passes_is_mended(proxy):
    for kind in ("503", "404", "reset"):
        proxy.fault = Fault(kind, "c.zarr/zarr.json", methods=("HEAD",))
        assert_same(read_all("zarr"), BLOCK)
        assert proxy.fault.hits == 2


def test_verify__is_not_alarmed_by_what_passes(proxy):
    there = open_one(f"s3://{BUCKET}/c.zarr")
    for kind in ("flip", "404"):
        proxy.fault = Fault(kind, DATA["zarr"])
        assert there.check() == []
        assert proxy.fault.hits >= 2


@pytest.mark.parametrize("kind", ["503", "reset", "cut", "short", "404"])
def test_source__of_a_conversion_is_mended(proxy, tmp_path, kind):
    lines = "".join(f"b{number},{number},p\n" for number in range(500))
    obstore.put(
        from_url(f"s3://{BUCKET}/{tmp_path.name}"), "d.csv", f"bag,x,labels\n{lines}".encode()
    )
    proxy.fault = Fault(kind, f"{tmp_path.name}/d.csv")
    store = convert(f"s3://{BUCKET}/{tmp_path.name}/d.csv", tmp_path / "x.zarr").store
    assert proxy.fault.hits >= 2
    assert store.read(0, 500).rows.ravel().tolist() == list(range(500))


# What stays.


@pytest.mark.parametrize("kind", ["503", "hang", "cut"])
def test_source__of_a_conversion_that_stays_away_is_an_error_and_resumes(proxy, tmp_path, kind):
    url = put_source(tmp_path.name)
    options = SourceOptions(span_bytes=1000)

    def fail(_):
        proxy.fault = Fault(kind, f"{tmp_path.name}/d.csv", FOREVER)

    begun = time.monotonic()
    with pytest.raises(StreammimlError, match=r"/d\.csv (cannot be read|is short)"):
        convert(url, tmp_path / "x.zarr", options=options, watch=fail)
    assert time.monotonic() - begun < 3 * SECONDS + GRACE
    assert (tmp_path / ".x.zarr.partial" / "plan.json").exists()
    proxy.fault = None
    store = convert(url, tmp_path / "x.zarr", options=options).store
    assert store.read(0, 500).rows.ravel().tolist() == list(range(500))


@pytest.mark.parametrize("kind", ["503", "500", "reset", "hang", "trickle", "cut"])
def test_fault__that_stays_is_an_error_within_the_deadline(proxy, kind):
    proxy.fault = Fault(kind, DATA["zarr"], FOREVER)
    begun = time.monotonic()
    with pytest.raises(
        StoreError, match=rf"{DATA['zarr']} cannot be read within 1\.5 s: "
    ) as caught:
        read_all("zarr")
    assert time.monotonic() - begun < SECONDS + GRACE
    assert "\n" not in str(caught.value)
    assert "{" not in str(caught.value)


@pytest.mark.parametrize(
    ("backend", "key", "kind"), [case for case in CASES if case[2] in ("404", "short", "flip")]
)
def test_fault__that_stays_is_never_wrong_data(proxy, backend, key, kind):
    proxy.fault = Fault(kind, key, FOREVER)
    begun = time.monotonic()
    with pytest.raises(StoreError, match=rf"c\.{backend}.*{key.rsplit('/', 1)[-1]}") as caught:
        read_all(backend)
    assert time.monotonic() - begun < SECONDS + GRACE
    assert "\n" not in str(caught.value)


def test_fault__at_the_manifest_is_an_error_within_the_deadline(proxy):
    proxy.fault = Fault("503", MANIFEST, FOREVER)
    begun = time.monotonic()
    with pytest.raises(
        StoreError, match=rf"{MANIFEST} cannot be read within .*: 503 Service Un.* after \d+ tries"
    ):
        open_one(f"s3://{BUCKET}/c.zarr")
    assert time.monotonic() - begun < SECONDS + GRACE


def test_access__refused_is_said_at_once(proxy):
    proxy.fault = Fault("403", DATA["zarr"], FOREVER)
    with pytest.raises(StoreError, match=r"rows/c/0/0 cannot be read: .*403.*check the credentia"):
        read_all("zarr")
    assert proxy.fault.hits == 1


def test_verify__names_what_stays(proxy):
    there = open_one(f"s3://{BUCKET}/c.zarr")
    proxy.fault = Fault("flip", DATA["zarr"], FOREVER)
    assert there.check() == [f"{there.name}/{DATA['zarr']} is damaged: it fails its checksum"]
    proxy.fault = Fault("503", DATA["zarr"], FOREVER)
    with pytest.raises(StoreError, match=r"rows/c/0/0 cannot be read within 1\.5 s"):
        there.check()


# Writing.


@pytest.mark.parametrize(
    ("kind", "key", "method"),
    [
        ("503", DATA["zarr"], "PUT"),
        ("reset", DATA["zarr"], "PUT"),
        ("lost", DATA["zarr"], "PUT"),
        ("500", OWNER, "PUT"),
        ("lost", OWNER, "PUT"),
        ("lost", MANIFEST, "PUT"),
    ],
)
def test_writing__mends_what_passes(proxy, tmp_path, kind, key, method):
    url = f"s3://{BUCKET}/{tmp_path.name}.zarr"
    proxy.fault = Fault(kind, f"{tmp_path.name}.zarr/{key}", methods=(method,))
    with BagWriter.begin(url, made_spec(), staging=tmp_path / "staging") as writer:
        writer.write_part(0, BLOCK)
        there = writer.finish(1)
    assert proxy.fault.hits >= 2
    assert_same(there.read(0, len(BLOCK)), BLOCK)
    assert OWNER not in there.location.files()


@pytest.mark.parametrize("key", [DATA["zarr"], MANIFEST])
def test_writing__that_fails_leaves_nothing_visible_and_goes_on_later(
    proxy, tmp_path, monkeypatch, key
):
    monkeypatch.setattr(object_store, "WRITE_FACTOR", 1)
    url = f"s3://{BUCKET}/{tmp_path.name}.zarr"
    proxy.fault = Fault("503", f"{tmp_path.name}.zarr/{key}", FOREVER, methods=("PUT",))
    with BagWriter.begin(url, made_spec(), staging=tmp_path / "staging") as writer:
        writer.write_part(0, BLOCK)
        with pytest.raises(StoreError, match=rf"{key} cannot be written within 1\.5 s: .*503"):
            writer.finish(1)
        with pytest.raises(StoreError, match="is unfinished; run"):
            open_one(url)
        proxy.fault = None
        there = writer.finish(1)
    assert_same(there.read(0, len(BLOCK)), BLOCK)
    assert there.check() == []


# Controls: with a protection off, the tests above would fail.


def test_control__without_checks_wrong_data_come(proxy, monkeypatch):
    plainly = object_store.ObjectFolder.read_into

    def zeros_if_missing(self, key, offset, buffer):
        try:
            plainly(self, key, offset, buffer)
        except verified_array.Unreadable:
            buffer[:] = bytes(len(buffer))

    def trusting(_, attempt):
        attempt()
        return ""

    monkeypatch.setattr(object_store.ObjectFolder, "read_into", zeros_if_missing)
    monkeypatch.setattr(verified_array, "tried_twice", trusting)
    for kind in ("flip", "404", "short"):
        proxy.fault = Fault(kind, DATA["zarr"], FOREVER)
        got = read_all("zarr").rows
        proxy.fault = None
        assert got.tobytes() != BLOCK.rows.tobytes()


@pytest.mark.parametrize("kind", ["404", "flip", "short"])
def test_control__without_a_second_try_what_passes_is_an_error(proxy, monkeypatch, kind):
    def once(_, attempt):
        try:
            return attempt()
        except verified_array.Unreadable as error:
            return str(error)

    monkeypatch.setattr(verified_array, "tried_twice", once)
    proxy.fault = Fault(kind, DATA["zarr"])
    with pytest.raises(StoreError, match="rows/c/0/0"):
        read_all("zarr")


def test_control__without_retries_a_503_stays(proxy, monkeypatch):
    plainly = object_store.from_url

    def hasty(url, **options):
        return plainly(url, **{**options, "retry_config": {"max_retries": 0}})

    monkeypatch.setattr(object_store, "from_url", hasty)
    proxy.fault = Fault("503", DATA["zarr"], 2)
    with pytest.raises(StoreError, match=r"rows/c/0/0 cannot be read: GET .*503"):
        read_all("zarr")


def test_control__without_a_deadline_a_hang_hangs(proxy, monkeypatch):
    monkeypatch.setenv(object_store.SECONDS_VARIABLE, "100")
    proxy.fault = Fault("hang", DATA["zarr"], FOREVER)
    there = open_one(f"s3://{BUCKET}/c.zarr")
    reading = Thread(target=lambda: there.read(0, 1), daemon=True)
    reading.start()
    reading.join(SECONDS + 0.5)
    assert reading.is_alive()
    proxy.calm()
    reading.join(20)
    assert not reading.is_alive()
