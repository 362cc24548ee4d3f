"""Streams that are kept open between turns: the same bags as from streams that are opened anew."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from streammiml.blocks import replica_streams
from streammiml.blocks.plan import BlockPlan
from streammiml.blocks.replica_streams import ReplicaStreams, StreamPlace, StreamSource
from streammiml.blocks.stream import ReadSettings
from streammiml.errors import StoreError
from tests.planted import planted
from tests.stores import write_store

N_BAGS = 100


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("made") / "s.zarr", planted(N_BAGS))


def source_of(store, *, mix_blocks=3, replicas=3, key="run", order="blocks"):
    plan = BlockPlan(
        order=order, n_bags=N_BAGS, seed=5, block_bags=4, mix_blocks=mix_blocks, replicas=replicas
    )

    def leave_out(_, bags):
        return bags % 10 == 0

    return StreamSource(
        key=key, store=store, leave_out=leave_out, plan=plan, read=ReadSettings(batch_bags=8)
    )


def taken(streams, source, at, n):
    """Bag numbers of the next ``n`` visits, their first rows, and where the stream then stands."""
    stream, was_open = streams.take(source, at)
    numbers, rows = [], []
    while len(numbers) < n:
        batch = stream.take(n - len(numbers))
        numbers += batch.numbers.tolist()
        rows += [batch.bags.rows[batch.bags.bag_offsets[bag]] for bag in batch.visit]
    streams.give_back(source, stream)
    return numbers, np.array(rows), stream.at, was_open


@pytest.mark.parametrize("mix_blocks", [3, 100])
@pytest.mark.parametrize("order", ["blocks", "full", "uniform"])
def test_streams__a_kept_stream_gives_what_a_new_one_gives(store, mix_blocks, order):
    source = source_of(store, mix_blocks=mix_blocks, order=order)
    kept, at = ReplicaStreams(), StreamPlace(1, 0, 0)
    for turn in range(6):
        numbers, rows, end, was_open = taken(kept, source, at, 17)
        assert was_open == (turn > 0)
        anew = ReplicaStreams()
        again, same_rows, same_end, was_open = taken(anew, source, at, 17)
        anew.close(source.key)
        assert not was_open
        assert again == numbers
        assert same_end == end
        np.testing.assert_array_equal(same_rows, rows)
        at = end
    assert at.epoch > 0
    kept.close(source.key)


@pytest.mark.parametrize("mix_blocks", [3, 100])
def test_streams__replicas_visit_every_bag_once_in_an_epoch(store, mix_blocks):
    source, streams = source_of(store, mix_blocks=mix_blocks), ReplicaStreams()
    visited = []
    for replica in range(3):
        stream, _ = streams.take(source, StreamPlace(replica, 0, 0))
        while (batch := stream.take(7)).epoch == 0:
            visited += batch.numbers.tolist()
        stream.close()
    assert sorted(visited) == [bag for bag in range(N_BAGS) if bag % 10]


def test_streams__a_stream_at_another_place_is_closed_and_opened_anew(store):
    source, streams = source_of(store), ReplicaStreams()
    first, *_ = taken(streams, source, StreamPlace(0, 0, 0), 5)
    again, *_, was_open = taken(streams, source, StreamPlace(0, 0, 0), 5)
    assert again == first
    assert not was_open
    assert len(streams) == 1
    streams.close(source.key)


def test_streams__replicas_that_mix_all_blocks_share_bags_that_are_read_once(store, monkeypatch):
    reads = []
    real = replica_streams.hold_all
    monkeypatch.setattr(replica_streams, "hold_all", lambda *args: reads.append(1) or real(*args))
    source, streams = source_of(store, mix_blocks=100), ReplicaStreams()
    for replica in range(3):
        taken(streams, source, StreamPlace(replica, 0, 0), 5)
    assert len(reads) == 1
    streams.close(source.key)
    taken(streams, source, StreamPlace(0, 0, 0), 5)
    assert len(reads) == 2
    streams.close(source.key)


def test_streams__above_the_limit_the_least_recently_used_is_closed(store):
    source, streams = replace(source_of(store), n_kept=2), ReplicaStreams()
    places = [taken(streams, source, StreamPlace(replica, 0, 0), 5)[2] for replica in (0, 1, 2)]
    assert len(streams) == 2
    were_open = [taken(streams, source, at, 1)[3] for at in (places[2], places[1], places[0])]
    assert were_open == [True, True, False]
    streams.close(source.key)


def test_bags__of_a_run_without_streams_are_dropped(store):
    source, streams = source_of(store, mix_blocks=100), ReplicaStreams()
    stream, _ = streams.take(source, StreamPlace(0, 0, 0))
    other, _ = streams.take(source, StreamPlace(1, 0, 0))
    streams.give_back(source, stream)
    other.close()
    streams.drop_unused_bags(source.key)
    assert streams._held
    streams.take(source, stream.at)[0].close()
    streams.drop_unused_bags(source.key)
    assert not streams._held


def test_close__ends_the_threads_of_its_run_alone(store):
    before, streams = threading.active_count(), ReplicaStreams()
    mine, others = source_of(store), source_of(store, key="another")
    for source in (mine, others):
        taken(streams, source, StreamPlace(0, 0, 0), 5)
    streams.close("run")
    assert len(streams) == 1
    assert taken(streams, others, StreamPlace(0, 0, 5), 1)[3] in (True, False)
    streams.close("another")
    assert len(streams) == 0
    deadline = time.monotonic() + 60
    # One thread stays: the timer that closes idle streams.
    while threading.active_count() > before + 1:
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.01)


def test_streams__that_nobody_uses_are_closed_after_a_while(store, monkeypatch):
    monkeypatch.setattr(replica_streams, "IDLE_SECONDS", 0.05)
    source, streams = source_of(store, mix_blocks=100), ReplicaStreams()
    stream, _ = streams.take(source, StreamPlace(0, 0, 0))
    streams.give_back(source, stream)
    deadline = time.monotonic() + 60
    while len(streams) or streams._held:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # The stream is closed: it ends after the batches that were ready.
    with pytest.raises(StoreError, match="reading has been stopped"):
        list(iter(lambda: stream.take(100), None))
