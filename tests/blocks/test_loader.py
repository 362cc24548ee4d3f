"""sm.stream: every bag once, exact batches, the same after a stop, one line for bad input."""

import gc
import itertools
import json
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streammiml as sm
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.memory import MemoryBags
from streammiml.errors import StoreError, StreammimlError
from tests.stores import as_sparse, made_block, plain, write_store

N_BAGS = 211
SMALL = {"block_bags": 4, "mix_blocks": 5, "memory": "200MiB"}


@pytest.fixture(scope="module", params=["zarr", "parquet", "sparse", "memory"])
def store(request, tmp_path_factory):
    block = plain(made_block(N_BAGS))
    if request.param == "memory":
        return MemoryBags(block, n_labels=4)
    suffix = "parquet" if request.param == "parquet" else "zarr"
    path = tmp_path_factory.mktemp("loader") / f"s.{suffix}"
    block = as_sparse(block) if request.param == "sparse" else block
    return write_store(path, block, n_labels=4)


def as_lists(batch):
    """A batch as plain values, with rows that are dense."""
    rows = batch.rows.dense() if isinstance(batch.rows, SparseRows) else batch.rows
    arrays = (batch.offsets, batch.label_offsets, batch.label_indices, batch.bag_numbers)
    return (batch.epoch, batch.place, rows.tolist(), *(array.tolist() for array in arrays))


def epochs_of(store, n_epochs, **options):
    with sm.stream(store, **{**SMALL, **options}) as bags:
        return [[as_lists(batch) for batch in bags] for _ in range(n_epochs)]


@pytest.mark.parametrize("order", ["blocks", "full"])
@pytest.mark.parametrize("batch_bags", [1, 7, 64, 1000, None])
def test_stream__delivers_every_bag_once_an_epoch_in_batches_of_exact_size(
    store, order, batch_bags
):
    with sm.stream(store, order=order, batch_bags=batch_bags, **SMALL) as bags:
        for epoch in range(2):
            n_batches, batches = len(bags), list(bags)
            assert len(batches) == n_batches
            assert {batch.epoch for batch in batches} == {epoch}
            assert {len(batch) for batch in batches[:-1]} <= {bags.batch_bags}
            numbers = np.concatenate([batch.bag_numbers for batch in batches])
            assert sorted(numbers.tolist()) == list(range(N_BAGS))
            for batch in batches:
                want = store.read_bags(batch.bag_numbers, row_labels=False)
                rows = want.rows.dense() if store.sparse else want.rows
                got = batch.rows.dense() if store.sparse else batch.rows
                np.testing.assert_array_equal(got, rows)
                np.testing.assert_array_equal(batch.offsets, want.bag_offsets)
                np.testing.assert_array_equal(batch.label_offsets, want.label_offsets)
                np.testing.assert_array_equal(batch.label_indices, want.label_indices)


def test_stream__uniform_draws_as_many_bags_as_there_are(store):
    first, second = epochs_of(store, 2, order="uniform", batch_bags=50)
    for batches in (first, second):
        assert [len(batch[-1]) for batch in batches] == [50, 50, 50, 50, 11]
    assert first != second


@settings(max_examples=30, deadline=None)
@given(
    order=st.sampled_from(["blocks", "full", "uniform"]),
    replicas=st.integers(1, 5),
    batch_bags=st.sampled_from([1, 13, 64]),
    left_out=st.sets(st.integers(0, N_BAGS - 1), max_size=150),
    stop=st.integers(0, 400),
    data=st.data(),
)
def test_state__goes_on_with_the_batches_that_would_have_come(
    store, order, replicas, batch_bags, left_out, stop, data
):
    """The state is sent through JSON to another loader, as after a kill."""
    options = {
        "order": order,
        "replicas": replicas,
        "replica": data.draw(st.integers(0, replicas - 1)),
        "batch_bags": batch_bags,
        "leave_out": sorted(left_out),
        "seed": 3,
        **SMALL,
    }
    want = list(itertools.chain.from_iterable(epochs_of(store, 2, **options)))
    stop %= len(want) + 1
    with sm.stream(store, **options) as bags:
        both = itertools.chain(bags, bags)
        head = [as_lists(batch) for batch in itertools.islice(both, stop)]
        state = json.loads(json.dumps(bags.state_dict()))
    assert head == want[:stop]
    with sm.stream(store, **options) as bags:
        bags.load_state_dict(state)
        tail = [as_lists(batch) for _ in range(2 - bags.epoch) for batch in bags]
    assert tail == want[stop:]


@pytest.mark.parametrize("order", ["blocks", "full"])
@pytest.mark.parametrize("replicas", [2, 3, 7])
def test_replicas__together_deliver_every_bag_once_and_deal_anew_each_epoch(store, order, replicas):
    shares = []
    for replica in range(replicas):
        options = {"order": order, "replicas": replicas, "replica": replica, "mix_blocks": 100}
        epochs = epochs_of(store, 2, **options)
        shares.append([sorted(bag for batch in epoch for bag in batch[-1]) for epoch in epochs])
    for epoch in range(2):
        bags = sorted(bag for share in shares for bag in share[epoch])
        assert bags == list(range(N_BAGS))
    assert shares[0][0] != shares[0][1]


@pytest.mark.parametrize("memory", ["50MiB", "52MiB", "58MiB", "1GiB"])
@pytest.mark.parametrize("replicas", [2, 3, 40])
def test_replicas__choose_the_same_blocks_whatever_their_share(memory, replicas):
    """The default length of blocks depends on memory, and must not depend on the replica."""
    rows = np.zeros((13_003, 250), np.float32)
    ends = np.arange(13_004)
    block = BagBlock(ends, rows, ends, np.zeros(13_003, np.int32))
    store, numbers = MemoryBags(block, n_labels=1), []
    for replica in range(replicas):
        with sm.stream(store, memory=memory, replica=replica, replicas=replicas) as bags:
            numbers += [batch.bag_numbers for batch in bags]
    assert sorted(np.concatenate(numbers).tolist()) == list(range(13_003))


@pytest.mark.parametrize("order", ["blocks", "full"])
def test_replicas__of_a_store_that_would_be_one_block_get_a_block_each(store, order):
    numbers = []
    for replica in range(5):
        with sm.stream(store, order=order, replica=replica, replicas=5) as bags:
            numbers += [bag for batch in bags for bag in batch.bag_numbers.tolist()]
    assert sorted(numbers) == list(range(N_BAGS))


def test_replicas__that_are_too_many_are_refused_for_each_replica(store):
    with pytest.raises(StreammimlError, match="has 53 blocks of 4 bags, too few for 54 replicas"):
        sm.stream(store, replica=53, replicas=54, **SMALL)


def test_batches__are_the_owners_to_change(store):
    with sm.stream(store, batch_bags=1, **SMALL) as bags:
        before = [as_lists(batch) for batch in bags]
    with sm.stream(store, batch_bags=1, **SMALL) as bags:
        for batch in bags:
            (batch.rows.values if store.sparse else batch.rows)[...] = 7
    with sm.stream(store, batch_bags=1, **SMALL) as bags:
        assert [as_lists(batch) for batch in bags] == before


@pytest.mark.parametrize("leave_out", [None, [3]])
def test_loader__that_is_dropped_ends_its_threads(store, leave_out):
    n_threads = threading.active_count()
    bags = sm.stream(store, leave_out=leave_out, **SMALL)
    next(iter(bags))
    del bags
    gc.collect()
    deadline = time.monotonic() + 60
    while threading.active_count() > n_threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= n_threads


def test_one_replica__has_the_order_of_a_training(store):
    """The order of ``train`` did not change when replicas came."""
    numbers = [bag for batch in epochs_of(store, 1, seed=5)[0] for bag in batch[-1]]
    assert numbers[:8] == [152, 154, 145, 18, 16, 184, 170, 153]


def test_left_out_bags__are_not_delivered(store):
    (batches,) = epochs_of(store, 1, leave_out=np.arange(0, N_BAGS, 2), batch_bags=10)
    bags = [bag for batch in batches for bag in batch[-1]]
    assert sorted(bags) == list(range(1, N_BAGS, 2))
    assert [len(batch[-1]) for batch in batches[:-1]] == [10] * (len(batches) - 1)
    assert epochs_of(store, 2, leave_out=np.arange(N_BAGS)) == [[], []]


def test_iteration__that_is_left_goes_on_with_the_next_batch(store):
    (want,) = epochs_of(store, 1, batch_bags=20)
    with sm.stream(store, batch_bags=20, **SMALL) as bags:
        got = [as_lists(next(iter(bags))) for _ in range(3)]
        assert len(bags) == len(want) - 3
        got += [as_lists(batch) for batch in bags]
    assert got == want


def test_batches__stay_valid_while_they_are_held(store):
    with sm.stream(store, batch_bags=16, **SMALL) as bags:
        held = list(bags)
    assert [as_lists(batch) for batch in held] == epochs_of(store, 1, batch_bags=16)[0]


def test_close__ends_the_threads_and_the_loader(store):
    n_threads = threading.active_count()
    with sm.stream(store, **SMALL) as bags:
        next(iter(bags))
    deadline = time.monotonic() + 60
    while threading.active_count() > n_threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= n_threads
    with pytest.raises(StreammimlError, match=r"^the stream is closed; call sm.stream again$"):
        next(iter(bags))


def test_memory__that_is_too_little_is_refused_before_reading(store):
    with pytest.raises(
        StreammimlError, match=r"^streaming would hold .* more than --memory 1MiB; .*would do"
    ):
        sm.stream(store, memory="1MiB")
    with sm.stream(store, **SMALL) as bags:
        assert sum(bags.held.values()) <= 200 << 20
        assert bags.vif > 1
    with sm.stream(store, order="full") as bags:
        assert bags.vif == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replica": 2, "replicas": 2}, "replica must be a whole number from 0 to 1, got 2"),
        ({"replicas": 0}, "replicas must be a whole number at least 1, got 0"),
        ({"batch_bags": 0}, "batch_bags must be a whole number at least 1, got 0"),
        ({"epoch": -1}, "epoch must be a whole number at least 0, got -1"),
        ({"order": "sorted"}, "no order is called 'sorted'; known: blocks, full, uniform"),
        ({"leave_out": [0.5]}, "leave_out must hold whole numbers of bags, got float64"),
        ({"leave_out": [3, 211]}, "leave_out has bags 3 to 211; .* has bags 0 to 210"),
        ({"replicas": 54}, "has 53 blocks of 4 bags, too few for 54 replicas; lower replicas"),
        ({"replicas": 212, "order": "full"}, "has 211 bags, too few for 212 replicas"),
    ],
)
def test_bad_options__are_one_line(store, options, message):
    with pytest.raises(StreammimlError, match=message):
        sm.stream(store, **{**SMALL, **options})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "another seed: 1, this stream has 0; open the stream with the seed of"),
        ({"fingerprint": "x"}, "another store: 'x', this stream has '.*'; open the stream with"),
        ({"block_bags": 9}, "another block_bags: 9, this stream has 4"),
        ({"place": -1}, "place of the state must be a whole number at least 0, got -1"),
        ({"epoch": None}, "epoch of the state must be a whole number at least 0, got None"),
        ({"delivered": 500, "place": 500}, "the state is damaged: 500 bags cannot be delivered"),
        ({"delivered": 0, "place": 150}, "the state is damaged: 0 bags cannot be delivered at pl"),
        ({"delivered": 3, "place": 0}, "the state is damaged: 3 bags cannot be delivered at pla"),
    ],
)
def test_bad_states__are_refused(store, changes, message):
    with sm.stream(store, **SMALL) as bags:
        state = bags.state_dict()
        with pytest.raises(StreammimlError, match=message):
            bags.load_state_dict({**state, **changes})
        with pytest.raises(StreammimlError, match="this is no state of a stream: it has no 'seed'"):
            bags.load_state_dict({"fingerprint": state["fingerprint"]})
        with pytest.raises(StreammimlError, match="this is no state of a stream: None"):
            bags.load_state_dict(None)
        # A refused state changes nothing.
        assert bags.state_dict() == state
        assert sum(map(len, bags)) == N_BAGS


def test_damaged_store__is_an_error_in_the_loop_and_can_be_tried_again(tmp_path):
    path = tmp_path / "s.zarr"
    want = epochs_of(write_store(path, plain(made_block(60)), n_labels=4), 1)
    file = path / "rows" / "c" / "0" / "0"
    content = file.read_bytes()
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with sm.stream(path, **SMALL) as bags:
        with pytest.raises(StoreError, match="fails its checksum"):
            list(bags)
        file.write_bytes(content)
        assert [as_lists(batch) for batch in bags] == want[0]


def test_view_without_bags__is_refused(tmp_path):
    store = write_store(tmp_path / "e.zarr", plain(made_block(3)), n_labels=4)
    with pytest.raises(StreammimlError, match=r"e.zarr.* has no bags to stream"):
        sm.stream(store.view([]))
