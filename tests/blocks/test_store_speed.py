"""Speeds of a store: the stream is compared with the disk by the bytes that are on it."""

import os

import numpy as np
import pytest

from streammiml.bags.object_store import ObjectFolder
from streammiml.bags.store import BagStore
from streammiml.blocks import store_speed as module
from streammiml.blocks.disk_speed import Limit
from streammiml.blocks.store_speed import StoreSpeed, StreamSpeed, store_speed, stream_speed
from streammiml.errors import StreammimlError
from tests.stores import as_sparse, made_block, write_store


@pytest.fixture
def quick(monkeypatch):
    """Every store is large enough, and every measurement short."""
    monkeypatch.setattr(module, "LEAST_BYTES", 1)
    monkeypatch.setattr(module, "CASE_SECONDS", 0.01)


def wide_block(n_bags=600):
    return made_block(n_bags, n_features=100)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_store_speed__measures_both_backends(backend, kind, tmp_path):
    block = wide_block() if kind == "dense" else as_sparse(wide_block())
    store = write_store(tmp_path / f"x.{backend}", block)
    speed = store_speed(store)
    assert speed.limit.bytes_per_second > 0
    assert speed.cached > 0
    assert speed.blocks > 0
    assert speed.mixed.bytes_per_second > 0
    assert speed.mixed.cpu_seconds_per_gb > 0
    assert speed.mixed.vif >= 1
    assert speed.cold == hasattr(os, "posix_fadvise")
    rows = block.rows
    n_bytes = rows.nbytes if kind == "dense" else rows.columns.nbytes + rows.values.nbytes
    # Row labels and ids are not streamed; Parquet has them in the same files.
    unread = ("row_labels/", "bag_id_bytes/", "bag_id_offsets/")
    n_stored = sum(size for key, size, _ in store.manifest.files if not key.startswith(unread))
    assert speed.stored_share == pytest.approx(n_stored / n_bytes)


@pytest.mark.usefixtures("quick")
def test_store_speed__works_without_calls_of_linux(tmp_path, monkeypatch):
    store = write_store(tmp_path / "x.zarr", wide_block())
    monkeypatch.delattr(os, "O_DIRECT", raising=False)
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    speed = store_speed(store)
    assert not speed.limit.direct
    assert not speed.cold
    assert speed.mixed.bytes_per_second > 0


def test_figures__compare_stored_bytes_with_the_disk():
    speed = StoreSpeed(
        limit=Limit(2e9, 1 << 20, 8, True),
        cached=8e9,
        blocks=2e9,
        mixed=StreamSpeed(bytes_per_second=4e9, cpu_seconds_per_gb=0.5, vif=1.25),
        stored_share=0.25,
        cold=True,
    )
    assert speed.figures() == {
        "limit_mb_s": 2000,
        "limit_read": "1MiB x 8",
        "limit_direct": True,
        "pread_mb_s": 8000,
        "read_mb_s": 2000,
        "read_stored_mb_s": 500,
        "mixed_mb_s": 4000,
        "mixed_stored_mb_s": 1000,
        "mixed_of_limit": 0.5,
        "mixed_cold": True,
        "cpu_seconds_per_gb": 0.5,
        "vif": 1.25,
    }


class Clock:
    """Stands for the module ``time``: every look at it takes a second, a fifth of it computing."""

    def __init__(self):
        self.now = 0

    def perf_counter(self):
        self.now += 1
        return float(self.now)

    def process_time(self):
        return self.now / 5


class FakeLoader:
    """Ten batches of one hundred bytes; a stream that holds ``held`` bytes."""

    vif = 1.5

    def __init__(self, held):
        self.held, self.n_taken = {"store": 10**9, "mixing": held}, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __iter__(self):
        for _ in range(10):
            self.n_taken += 1
            yield type("FakeBatch", (), {"rows": np.zeros((5, 5), np.float32)})


@pytest.fixture
def played(monkeypatch):
    def play(held, **changes):
        loader = FakeLoader(held)
        monkeypatch.setattr(module, "open_one", lambda _: None)
        monkeypatch.setattr(module, "stream", lambda _: loader)
        monkeypatch.setattr(module, "_all_row_bytes", lambda _: 1000)
        monkeypatch.setattr(module, "time", Clock())
        limits = {"STREAM_BYTES": 10**9, "STREAM_SECONDS": 1e9, **changes}
        for name, value in limits.items():
            monkeypatch.setattr(module, name, value)
        return stream_speed("x.zarr"), loader.n_taken

    return play


def test_stream_speed__leaves_out_the_first_batch_and_what_the_stream_holds(played):
    # Batches come every second. Two of ten are held, so that the epoch counts up to the eighth.
    speed, n_taken = played(200)
    assert n_taken == 8
    assert (speed.bytes_per_second, speed.vif) == (100, 1.5)
    assert speed.cpu_seconds_per_gb == pytest.approx(0.2 / 100 * 1e9)


def test_stream_speed__counts_a_whole_epoch_if_the_stream_holds_most_of_it(played):
    speed, n_taken = played(600)
    assert n_taken == 10
    assert speed.bytes_per_second == 100


@pytest.mark.parametrize("held", [0, 600])
def test_stream_speed__stops_after_its_limit_of_bytes_or_seconds(played, held):
    # Both count from the first batch on.
    assert played(held, STREAM_BYTES=300)[1] == 4
    assert played(held, STREAM_SECONDS=2.0)[1] == 3


def test_stream_speed__a_single_batch_counts_from_the_start(played):
    speed, n_taken = played(0, STREAM_BYTES=0)
    assert n_taken == 1
    assert speed.bytes_per_second == 100


def test_store_speed__small_stores_are_refused(tiny):
    store = module.open_one(tiny.path)
    with pytest.raises(
        StreammimlError, match=r"is too small to measure its speed: it has .*iB, .* at least 8 MiB$"
    ):
        store_speed(store)


def test_store_speed__needs_a_local_store(tiny):
    pytest.importorskip("obstore")
    store = module.open_one(tiny.path)
    afar = BagStore(ObjectFolder("http://localhost:1/x.zarr"), store.manifest)
    with pytest.raises(StreammimlError, match=r"under a URL; --speed needs a local store$"):
        store_speed(afar)
