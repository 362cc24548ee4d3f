"""A turn of a replica is a pure function: the same bits wherever and however often it runs."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from streammiml.blocks.replica_streams import StreamPlace
from streammiml.config import TrainConfig
from streammiml.kernel.score import Weights
from streammiml.learn import replica as turns
from streammiml.learn.begin import begin, settle
from streammiml.learn.replica import (
    TurnCancelled,
    end_turns,
    known_start,
    replica_seed,
    take_sent_turn,
    take_turn,
)
from streammiml.learn.round_weights import RoundStart, SentStart, weight_tables
from streammiml.learn.rounds import replica_job
from tests.planted import planted
from tests.stores import write_store

CONFIG = TrainConfig(
    shared_dim=8, subconcepts=2, replicas=3, block_bags=8, mix_blocks=4, epochs=9, validation=0.1
)


@pytest.fixture(scope="module", params=["dense", "sparse"])
def store(request, tmp_path_factory):
    bags = planted(sparse=request.param == "sparse")
    return write_store(tmp_path_factory.mktemp("made") / "s.zarr", bags)


@pytest.fixture
def job_and_start(store):
    ready = begin(settle(store, CONFIG))
    job = replica_job(ready)
    yield job, RoundStart(0, 100, True, ready.state.weights)
    end_turns(job.key)


def arrays_of(result):
    return [*result.shared, *result.labels, result.tally.counts, result.tally.loss]


def assert_same(one, other):
    assert one.at == other.at
    for a, b in zip(arrays_of(one), arrays_of(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_take_turn__has_the_same_bits_again_and_in_another_process(job_and_start):
    job, start = job_and_start
    first = take_turn(StreamPlace(1, 0, 0), start, job)
    assert_same(take_turn(StreamPlace(1, 0, 0), start, job), first)
    sent = pickle.loads(pickle.dumps(replace(job, key=job.key + "again")))
    there = pickle.loads(pickle.dumps(SentStart.of(start)))
    assert_same(take_sent_turn(StreamPlace(1, 0, 0), there, sent), first)
    end_turns(sent.key)
    assert first.tally.counts[0] == 100
    assert len(first.labels.rows) > 0


def test_job_and_start__arrive_at_addresses_that_kernels_can_use(job_and_start):
    job, start = job_and_start
    # Protocol 5 sends arrays beside the bytes; they may arrive at any address.
    for sent in (job, SentStart.of(start)):
        buffers = []
        content = pickle.dumps(sent, protocol=5, buffer_callback=buffers.append)
        moved = []
        for buffer in buffers:
            room = bytearray(len(buffer.raw()) + 1)
            room[1:] = buffer.raw()
            moved.append(memoryview(room)[1:])
        received = pickle.loads(content, buffers=moved)
        arrays = received.lift if sent is job else known_start(received, job).weights
        for array in arrays:
            if isinstance(array, np.ndarray) and array.size:
                assert array.ctypes.data % 64 == 0
                assert array.flags.writeable


def test_take_turn__does_not_change_the_weights_of_the_round(job_and_start):
    job, start = job_and_start
    before = [table.copy() for table in start.weights]
    take_turn(StreamPlace(0, 0, 0), start, job)
    for table, kept in zip(start.weights, before, strict=True):
        np.testing.assert_array_equal(table, kept)


def test_take_turn__goes_on_where_the_turn_before_ended(job_and_start):
    job, start = job_and_start
    first = take_turn(StreamPlace(2, 0, 0), start, job)
    later = replace(start, step=100)
    kept = take_turn(first.at, later, job)
    assert kept.kept_stream
    turns._STREAMS.close(job.key)
    opened = take_turn(first.at, later, job)
    assert not opened.kept_stream
    assert_same(opened, kept)
    assert kept.at > first.at


def test_take_turn__in_a_space_of_the_round_before_has_the_same_bits(job_and_start):
    """Only vectors that changed are copied: by this turn, by others, and in another run."""
    job, start = job_and_start
    first = take_turn(StreamPlace(1, 0, 0), start, job)
    changed = [np.union1d(change.rows, [0, 2]) for change in (first.shared, first.labels)]
    weights = Weights(*(table.copy() for table in start.weights))
    for table, rows in zip(weight_tables(*weights), changed, strict=True):
        table[rows] *= 0.5
    later = RoundStart(100, 100, True, weights, before=0, changed=changed)
    for at in (first.at, StreamPlace(2, 0, 0), StreamPlace(0, 0, 0)):
        assert turns._SPACES
        warm = take_turn(at, later, job)
        turns._SPACES.clear()
        assert_same(take_turn(at, later, job), warm)
    unknown = replace(later, step=300, before=-1, changed=())
    warm = take_turn(first.at, unknown, job)
    turns._SPACES.clear()
    assert_same(take_turn(first.at, unknown, job), warm)


def test_take_turn__replicas_differ(job_and_start):
    job, start = job_and_start
    one, other = (take_turn(StreamPlace(replica, 0, 0), start, job) for replica in (0, 1))
    assert one.labels.vectors.tobytes() != other.labels.vectors.tobytes()


def test_take_turn__says_where_it_diverged(job_and_start):
    job, start = job_and_start
    start.weights.labels[...] = np.nan
    assert take_turn(StreamPlace(0, 0, 0), start, job).diverged_at == 0


def test_end_turns__cancels_the_turns_of_the_run(job_and_start):
    job, start = job_and_start
    end_turns(job.key)
    with pytest.raises(TurnCancelled, match="the run was stopped"):
        take_turn(StreamPlace(0, 0, 0), start, job)
    assert len(turns._STREAMS) == 0


def test_replica_seed__is_that_of_the_run_for_replica_0_and_another_for_the_others():
    seeds = [replica_seed(seed, replica) for seed in (0, 7) for replica in range(50)]
    assert seeds[0] == 0
    assert seeds[50] == 7
    assert len({*seeds}) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
