"""Streaming: what comes is what the plan says, whatever is read ahead and wherever it begins."""

import gc
import itertools
import threading
import time
import weakref
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.memory import MemoryBags
from streammiml.bags.offsets import from_sizes
from streammiml.bags.range_group import RangeGroup
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter
from streammiml.blocks.plan import ORDERS, BlockPlan
from streammiml.blocks.stream import BagStream, ReadSettings, blocks_held
from streammiml.errors import StoreError
from tests.stores import assert_same

N_BAGS = 211


def block_of_bags(sparse):
    rng = np.random.default_rng(3)
    sizes, n_labels = rng.integers(1, 5, N_BAGS), rng.integers(0, 3, N_BAGS)
    rows = np.repeat(np.arange(N_BAGS, dtype=np.float32) + 1, sizes)
    dense = np.stack([rows, np.zeros(len(rows), np.float32), -rows], axis=1)
    labels = [np.sort(rng.choice(9, n, replace=False)) for n in n_labels]
    kept = dense
    if sparse:
        entries = np.array([0, 2] * len(dense), np.uint32)
        kept = SparseRows(np.arange(len(dense) + 1) * 2, entries, dense[:, [0, 2]].reshape(-1), 3)
    return BagBlock(
        from_sizes(sizes), kept, from_sizes(n_labels), np.concatenate(labels).astype(np.int32)
    )


@pytest.fixture(scope="module", params=["dense", "sparse"])
def store(request, tmp_path_factory):
    block = block_of_bags(request.param == "sparse")
    path = tmp_path_factory.mktemp("stream") / "s.zarr"
    spec = StoreSpec(n_features=3, sparse=request.param == "sparse", n_labels=9, chunk_bytes=64)
    with BagWriter.begin(path, spec) as writer:
        writer.write_part(0, block)
        return writer.finish(1)


def visited(store, plan, n, *, epoch=0, place=0, leave_out=None, **read):
    """The first ``n`` visits: (epoch, place, bag number), and that each bag is itself."""
    out = []
    where = {"epoch": epoch, "place": place, "leave_out": leave_out}
    with BagStream(store, plan, **where, read=ReadSettings(**read)) as stream:
        for batch in stream:
            assert len(batch.visit) == len(batch.numbers) == len(batch.places)
            for i, number in enumerate(batch.numbers.tolist()):
                want, at = store.read(number, number + 1), int(batch.visit[i])
                np.testing.assert_array_equal(batch.bags.rows_of(at), want.rows_of(0))
                np.testing.assert_array_equal(batch.bags.labels_of(at), want.labels_of(0))
                out.append((batch.epoch, int(batch.places[i]), number))
            if len(out) >= n:
                return out[:n]
    return out


def expected(plan, n_epochs):
    """Bags of each epoch, straight from the definition."""
    for epoch in range(n_epochs):
        if plan.order != "blocks":
            yield plan.bags_at(epoch, 0, plan.n_bags).tolist()
            continue
        bags = np.arange(plan.n_bags)
        position = np.empty(plan.n_blocks, np.int64)
        position[plan.blocks_at(epoch, np.arange(plan.n_blocks))] = np.arange(plan.n_blocks)
        rounds = plan.rounds_of(epoch, position[bags // plan.block_bags], bags)
        yield np.lexsort((plan.turns_of(epoch, bags), rounds)).tolist()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("block_bags", "mix_blocks"), [(4, 6), (16, 3), (7, 100), (1, 1)])
def test_stream__is_the_plan_bag_for_bag(order, block_bags, mix_blocks, store):
    plan = BlockPlan(
        order=order, n_bags=N_BAGS, seed=2, block_bags=block_bags, mix_blocks=mix_blocks
    )
    want = [
        (epoch, place, bag)
        for epoch, bags in enumerate(expected(plan, 3))
        for place, bag in enumerate(bags)
    ]
    assert visited(store, plan, len(want)) == want


@settings(max_examples=25, deadline=None)
@given(
    epoch=st.integers(0, 2),
    place=st.integers(0, N_BAGS - 1),
    order=st.sampled_from(ORDERS),
    mix_blocks=st.sampled_from([1, 5, 60]),
    read=st.fixed_dictionaries(
        {
            "threads": st.integers(1, 3),
            "blocks_ahead": st.integers(1, 9),
            "batches_ahead": st.integers(1, 3),
            "batch_bags": st.sampled_from([1, 9, 64, 500]),
        }
    ),
)
def test_stream__from_any_place_goes_on_as_if_it_had_never_stopped(
    store, epoch, place, order, mix_blocks, read
):
    plan = BlockPlan(order=order, n_bags=N_BAGS, seed=9, block_bags=8, mix_blocks=mix_blocks)
    bags = list(itertools.chain.from_iterable(expected(plan, 4)))
    begin = epoch * N_BAGS + place
    got = visited(store, plan, 60, epoch=epoch, place=place, **read)
    assert [bag for _, _, bag in got] == bags[begin : begin + 60]
    assert got[0][:2] == (epoch, place)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("place", [0, 100])
@pytest.mark.parametrize("sparse", [False, True])
def test_stream__of_bags_in_memory_leaves_them_where_they_are(order, place, sparse):
    block = block_of_bags(sparse)
    bags = MemoryBags(block, n_labels=9)
    plan = BlockPlan(order=order, n_bags=N_BAGS, seed=4, block_bags=4, mix_blocks=1000)
    want = [
        (epoch, at, bag)
        for epoch, numbers in enumerate(expected(plan, 3))
        for at, bag in enumerate(numbers)
        if (epoch or at >= place) and bag % 5 != 2 + epoch
    ]
    options = {"place": place, "leave_out": lambda epoch, numbers: numbers % 5 == 2 + epoch}
    assert visited(bags, plan, len(want), **options) == want
    with BagStream(bags, plan, read=ReadSettings(batch_bags=8)) as stream:
        assert all(batch.bags is bags.at_hand() for batch in itertools.islice(stream, 60))


def test_stream__bags_in_memory_that_kernels_do_not_take_are_copied():
    block = block_of_bags(sparse=False)
    block.rows.flags.writeable = False
    bags = MemoryBags(block, n_labels=9)
    plan = BlockPlan(order="blocks", n_bags=N_BAGS, seed=4, block_bags=4, mix_blocks=1000)
    assert bags.at_hand() is None
    assert [bag for *_, bag in visited(bags, plan, N_BAGS)] == next(expected(plan, 1))
    with BagStream(bags, plan, read=ReadSettings()) as stream:
        assert next(iter(stream)).bags.rows.flags.carray


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("place", [0, 100])
@pytest.mark.parametrize("mix_blocks", [6, 1000])
def test_stream__bags_left_out_keep_their_places_and_do_not_come(order, place, mix_blocks, store):
    plan = BlockPlan(order=order, n_bags=N_BAGS, seed=4, block_bags=4, mix_blocks=mix_blocks)
    # Other bags in every epoch.
    want = [
        (epoch, at, bag)
        for epoch, bags in enumerate(expected(plan, 3))
        for at, bag in enumerate(bags)
        if (epoch or at >= place) and bag % 5 != 2 + epoch
    ]
    leave_out = lambda epoch, bags: bags % 5 == 2 + epoch  # noqa: E731
    got = visited(store, plan, len(want), place=place, leave_out=leave_out)
    assert got == want


def test_stream__blocks_that_are_all_mixed_are_read_once(store, monkeypatch):
    asked = []
    read = type(store).read_ranges
    monkeypatch.setattr(
        type(store), "read_ranges", lambda self, ranges: asked.extend(ranges) or read(self, ranges)
    )
    plan = BlockPlan(order="blocks", n_bags=N_BAGS, seed=2, block_bags=10, mix_blocks=22)
    visits = visited(store, plan, 5 * N_BAGS, batch_bags=30)
    assert [bag for _, _, bag in visits] == [bag for part in expected(plan, 5) for bag in part]
    assert sorted(asked) == [plan.bags_of(block) for block in range(plan.n_blocks)]


@pytest.mark.parametrize("mix_blocks", [5, 22])
def test_stream__memory_goes_with_it_not_with_the_garbage_collector(mix_blocks, store, monkeypatch):
    seen = []
    read = type(store).read_ranges

    def noted(self, ranges):
        group = read(self, ranges)
        seen.append(weakref.ref(group.bag_offsets))
        return group

    monkeypatch.setattr(type(store), "read_ranges", noted)
    plan = BlockPlan(order="blocks", n_bags=N_BAGS, seed=2, block_bags=10, mix_blocks=mix_blocks)
    # Compiled before: the compiler's own circles hold what it was called with.
    visited(store, plan, 2 * N_BAGS)
    seen.clear()
    gc.collect()
    gc.disable()
    try:
        assert visited(store, plan, 2 * N_BAGS)
        assert seen
        # A reader may have been reading when the stream was closed.
        for _ in range(300):
            alive = [reference for reference in seen if reference() is not None]
            if not alive:
                break
            time.sleep(0.1)
        assert not alive
    finally:
        gc.enable()


def test_stream__blocks_that_are_short_are_an_error(store, monkeypatch):
    read = type(store).read_ranges
    monkeypatch.setattr(
        type(store),
        "read_ranges",
        lambda self, ranges: read(self, [(start, stop - 1) for start, stop in ranges]),
    )
    plan = BlockPlan(order="blocks", n_bags=N_BAGS, seed=2, block_bags=10, mix_blocks=22)
    with pytest.raises(StoreError, match="only 189 of 211 bags were read"):
        visited(store, plan, 1)


def test_stream__a_damaged_block_is_an_error_in_its_place(store, monkeypatch):
    real = store.read_ranges

    def read(ranges):
        if max(ranges)[0] >= 100:
            raise StoreError("block is damaged")
        return real(ranges)

    monkeypatch.setattr(store, "read_ranges", read)
    plan = BlockPlan(order="blocks", n_bags=N_BAGS, seed=0, block_bags=4, mix_blocks=2)
    with (
        BagStream(store, plan, read=ReadSettings()) as stream,
        pytest.raises(StoreError, match="block is damaged"),
    ):
        for _ in stream:
            pass


@pytest.mark.parametrize(
    "settings", [{}, {"exact_bags": 5}, {"exact_bags": 50}, {"long_bytes": 36}]
)
def test_stream__holds_no_more_blocks_than_the_window_and_what_is_read_ahead(
    store, monkeypatch, settings
):
    held, most = {}, 0
    real = store.read_ranges

    class Tracked(RangeGroup):
        __slots__ = ()

        def __del__(self):
            held.pop(id(self), None)

    def read(ranges):
        nonlocal most
        group = real(ranges)
        names = (field.name for field in fields(group))
        group = Tracked(*(getattr(group, name) for name in names))
        held[id(group)] = len(ranges)
        most = max(most, sum(held.values()))
        return group

    monkeypatch.setattr(store, "read_ranges", read)
    plan = BlockPlan(order="blocks", n_bags=N_BAGS, seed=0, block_bags=2, mix_blocks=20)
    ahead = ReadSettings(threads=2, blocks_ahead=12, batch_bags=7, **settings)
    with BagStream(store, plan, read=ahead) as stream:
        for batch in stream:
            if batch.epoch == 2:
                break
    n_waiting = 2 if "exact_bags" in settings else 0
    # Each batch of a long bag holds the group of its block.
    n_in_place = 4 * (ahead.batches_ahead + 2) if "long_bytes" in settings else 0
    assert blocks_held(plan, ahead) == 20 + (2 + 3 + n_waiting) * 4
    assert 20 <= most <= blocks_held(plan, ahead) + n_in_place


@pytest.mark.parametrize("mix_blocks", [5, 1000])
@pytest.mark.parametrize("place", [0, 100])
def test_stream__long_bags_come_alone_and_are_not_copied(mix_blocks, place, store, monkeypatch):
    plan = BlockPlan(order="blocks", n_bags=N_BAGS, seed=2, block_bags=4, mix_blocks=mix_blocks)
    sizes = store.bag_sizes(0, N_BAGS) * (16 if store.sparse else 12)
    long_bytes = 3 * (16 if store.sparse else 12)
    leave_out = lambda _, bags: bags % 7 == 0  # noqa: E731
    where = {"epoch": 1, "place": place, "leave_out": leave_out}
    want = visited(store, plan, 300, **where, batch_bags=9)
    n_copied, real = [], BagStream._copied

    def counted(self, lines):
        n_copied.append(len(lines))
        return real(self, lines)

    monkeypatch.setattr(BagStream, "_copied", counted)
    read, n_long, n_seen = {"batch_bags": 9, "long_bytes": long_bytes}, 0, 0
    assert visited(store, plan, 300, **where, **read) == want
    n_copied.clear()
    with BagStream(store, plan, **where, read=ReadSettings(**read)) as stream:
        for batch in stream:
            is_long = sizes[batch.numbers] >= long_bytes
            assert not is_long.any() or len(is_long) == 1
            n_long, n_seen = n_long + int(is_long.sum()), n_seen + len(is_long)
            if n_seen > 300:
                break
    assert n_long > 50
    assert sum(n_copied) <= 2 * N_BAGS + 100 - n_long


@pytest.mark.parametrize("mix_blocks", [5, 1000])
def test_stream__a_long_bag_outlives_the_stream(mix_blocks, store):
    plan = BlockPlan(order="blocks", n_bags=N_BAGS, seed=2, block_bags=4, mix_blocks=mix_blocks)
    with BagStream(store, plan, read=ReadSettings(long_bytes=1)) as stream:
        batches = list(itertools.islice(stream, 20))
    gc.collect()
    for batch in batches:
        want = store.read(int(batch.numbers[0]), int(batch.numbers[0]) + 1)
        np.testing.assert_array_equal(batch.bags.rows_of(0), want.rows_of(0))


def test_stream__bags_that_wait_for_a_long_batch_are_copied_once_more_at_most(store, monkeypatch):
    copied, real = [], BagStream._copied

    def counted(self, lines):
        copied.append(len(lines))
        return real(self, lines)

    monkeypatch.setattr(BagStream, "_copied", counted)
    plan = BlockPlan(order="blocks", n_bags=N_BAGS, seed=2, block_bags=2, mix_blocks=5)
    with BagStream(store, plan, read=ReadSettings(batch_bags=4, exact_bags=200)) as stream:
        assert [len(next(iter(stream)).numbers) for _ in range(2)] == [200, 11]
    assert sum(copied[: copied.index(11) + 1]) <= 2 * N_BAGS


@pytest.mark.parametrize("mix_blocks", [5, 22])
@pytest.mark.parametrize("exact_bags", [1, 7, 64, 1000])
def test_stream__batches_of_exact_size_have_the_same_visits(exact_bags, mix_blocks, store):
    plan = BlockPlan(order="blocks", n_bags=N_BAGS, seed=2, block_bags=10, mix_blocks=mix_blocks)
    leave_out = lambda _, bags: bags % 3 == 0  # noqa: E731
    n_bags = 2 * sum(bag % 3 != 0 for bag in range(N_BAGS))
    expected = visited(store, plan, n_bags, leave_out=leave_out)
    read, got, sizes = ReadSettings(exact_bags=exact_bags), [], {0: [], 1: []}
    with BagStream(store, plan, read=read, leave_out=leave_out) as stream:
        for batch in stream:
            if batch.epoch == 2:
                break
            sizes[batch.epoch].append(len(batch.numbers))
            places, numbers = batch.places.tolist(), batch.numbers.tolist()
            got += [(batch.epoch, *visit) for visit in zip(places, numbers, strict=True)]
            assert_same(batch.bags, store.read_bags(batch.numbers))
    assert got == expected
    for epoch in sizes.values():
        assert set(epoch[:-1]) <= {exact_bags}
        assert 0 < epoch[-1] <= exact_bags


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mix_blocks", [3, 1000])
def test_stream__closing_it_anywhere_lets_every_thread_go(order, mix_blocks, store):
    plan = BlockPlan(order=order, n_bags=N_BAGS, seed=0, block_bags=4, mix_blocks=mix_blocks)
    for taken in range(12):
        with BagStream(store, plan, read=ReadSettings(threads=2, blocks_ahead=2)) as stream:
            for _ in itertools.islice(stream, taken):
                pass
        end = time.monotonic() + 60
        while time.monotonic() < end and readers():
            time.sleep(0.005)
        assert readers() == []


def readers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("reader-")]


def test_stream__the_deadline_is_that_of_one_read_not_of_filling_the_window(store, monkeypatch):
    real = store.read_ranges

    def slow(ranges):
        time.sleep(0.02 * len(ranges))
        return real(ranges)

    monkeypatch.setattr(store, "read_ranges", slow)
    plan = BlockPlan(order="blocks", n_bags=N_BAGS, seed=0, block_bags=2, mix_blocks=60)
    with BagStream(store, plan, read=ReadSettings(threads=1, batch_bags=8, deadline=0.5)) as stream:
        assert next(iter(stream)).epoch == 0


@pytest.mark.parametrize("sparse", [False, True])
def test_stream__takes_arrays_of_any_stride(sparse):
    """Arrays of one element count as contiguous, whatever their stride."""
    block, wide = block_of_bags(sparse), np.zeros(2000, [("a", "i4"), ("b", "i4")])["a"]
    strided = wide[: len(block.label_indices)]
    strided[:] = block.label_indices
    rows = block.rows
    if sparse:
        columns = np.zeros(len(rows.columns), [("a", "u4"), ("b", "u4")])["a"]
        columns[:] = rows.columns
        rows = SparseRows(rows.offsets, columns, rows.values, rows.n_features)
    bags = MemoryBags(replace(block, rows=rows, label_indices=strided), n_labels=9)
    plan = BlockPlan(order="blocks", n_bags=N_BAGS, seed=1, block_bags=1, mix_blocks=16)
    seen = 0
    with BagStream(bags, plan, read=ReadSettings(batch_bags=4)) as stream:
        for batch in itertools.islice(stream, 40):
            for i, number in enumerate(batch.numbers.tolist()):
                np.testing.assert_array_equal(batch.bags.labels_of(i), block.labels_of(number))
                np.testing.assert_array_equal(batch.bags.rows_of(i), block.rows_of(number))
                seen += 1
    assert seen >= 40
