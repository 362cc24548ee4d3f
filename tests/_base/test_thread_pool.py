"""The pool of threads."""

from itertools import count, islice

import dask.bag
import pytest

from streammiml._base import platform
from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import PoolOptions
from streammiml.errors import StreammimlError
from tests._base.pool_tasks import (
    add,
    as_list,
    hoard,
    refuse,
    square,
    squares_and_shared,
    with_number,
)


@pytest.mark.parametrize("n_items", [0, 1, 63, 64, 65, 200])
def test_threads__give_results_in_order(n_items):
    with open_pool(PoolOptions(threads=2)) as pool:
        results = list(pool.map(square, range(n_items), pool.share(1)))
    assert results == [item * item + 1 for item in range(n_items)]


def test_threads__each_result_is_seen_before_it_is_given_out():
    seen = []
    with open_pool(PoolOptions(threads=2)) as pool:
        for number, result in enumerate(pool.map(square, range(100), 0, seen=seen.append)):
            assert result in seen
            assert len(seen) > number
    assert sorted(seen) == [item * item for item in range(100)]


def test_threads__begin_items_in_order():
    begun = []
    with open_pool(PoolOptions(threads=1)) as pool:
        list(pool.map(begun.append, range(100)))
    assert begun == list(range(100))


def test_threads__draw_items_as_they_are_needed():
    with open_pool(PoolOptions(threads=2)) as pool:
        assert list(islice(pool.map(square, count(), 0), 3)) == [0, 1, 4]


def test_threads__an_error_is_raised_as_it_is():
    with (
        open_pool(PoolOptions(threads=2)) as pool,
        pytest.raises(StreammimlError, match=r"^five is refused$"),
    ):
        list(pool.map(refuse, range(10), None))


def test_threads__out_of_memory_says_which_option_to_lower():
    message = (
        r"^a task ran out of memory \(Unable to allocate 7 TiB\); lower --memory, or --threads$"
    )
    with (
        open_pool(PoolOptions(threads=2), relief="--memory") as pool,
        pytest.raises(StreammimlError, match=message),
    ):
        list(pool.map(hoard, [7], None))


def test_threads__compute_partitions_of_a_collection_in_order():
    lazy = dask.bag.from_sequence(range(6), npartitions=3).map(lambda item: item * 2)
    with open_pool(PoolOptions(threads=2)) as pool:
        results = list(pool.map_partitions(with_number, lazy, "x"))
    assert results == [[0, 2, 0, "x"], [4, 6, 1, "x"], [8, 10, 2, "x"]]
    with (
        open_pool(PoolOptions(threads=2), relief="the size of partitions") as pool,
        pytest.raises(
            StreammimlError, match=r"ran out of memory .*; lower the size of partitions, "
        ),
    ):
        list(pool.map_partitions(hoard, lazy))


def test_threads__do_not_look_into_items():
    """Dask takes tuples and lists for parts of a graph; here they are what they are."""
    items = [("a", 1), [len, "abc"], (len, "abc"), {"k": (sum, [1])}]
    with open_pool(PoolOptions(threads=2)) as pool:
        results = list(pool.map(lambda item: item, items))
    assert results == items


def test_threads__are_one_worker_and_ignore_preferences():
    with open_pool(PoolOptions(threads=2)) as pool:
        assert pool.workers() == {"": 2}
        assert pool.on_every_worker(square, 3, 1) == {"": 10}
        [error] = pool.on_every_worker(refuse, 5, None).values()
        assert isinstance(error, StreammimlError)
        assert list(pool.map(square, [2, 3], 0, prefer=lambda _: "nowhere")) == [4, 9]


def test_pool__takes_the_cores_there_are():
    assert open_pool(PoolOptions()).n_threads == platform.usable_cores()


GROUPS = [[1, 2, 3], [4], [5, 6]]
COMBINED = [[1, 4, 9, 0], [16, 0], [25, 36, 0]]


def test_groups__are_combined_in_order():
    with open_pool(PoolOptions(threads=2)) as pool:
        shared = pool.share(0)
        assert list(pool.map_groups(square, GROUPS, squares_and_shared, shared)) == COMBINED
        pool.release(shared)


def test_groups__threads_hold_one_group_at_a_time():
    drawn = []

    def groups():
        for group in GROUPS:
            drawn.append(group)
            yield group

    with open_pool(PoolOptions(threads=2)) as pool:
        assert next(pool.map_groups(square, groups(), squares_and_shared, 0)) == COMBINED[0]
    assert drawn == GROUPS[:1]


@pytest.mark.parametrize("n_items", [1, 3, 4, 5, 64, 65, 200])
def test_sums__have_every_item_once_and_in_order(n_items):
    seen = []
    with open_pool(PoolOptions(threads=2)) as pool:
        total = pool.map_reduce(as_list, range(n_items), add, pool.share("x"), seen=seen.append)
    assert total == [(item, "x") for item in range(n_items)]
    assert sorted(seen) == list(range(n_items))


def test_sums__are_formed_while_later_tasks_run():
    """Otherwise all results of a window would be held at the same time."""
    alive, most = set(), [0]

    class Held:
        def __init__(self):
            alive.add(id(self))
            most[0] = max(most[0], len(alive))

        def __del__(self):
            alive.discard(id(self))

    with open_pool(PoolOptions(threads=2)) as pool:
        pool.map_reduce(lambda _: Held(), range(64), lambda _one, _other: Held())
    assert most[0] < 32


def test_sums__an_error_is_raised_as_it_is():
    with (
        open_pool(PoolOptions(threads=2)) as pool,
        pytest.raises(StreammimlError, match=r"^five is refused$"),
    ):
        pool.map_reduce(refuse, range(10), add, None)
