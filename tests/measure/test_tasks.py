from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.views import JoinedStore
from streammiml.blocks.budget import row_bytes
from streammiml.errors import StreammimlError
from streammiml.measure import tasks as module
from streammiml.measure.tasks import all_bags, range_bounds, split_into_tasks
from tests.stores import made_block, made_spec, plain, write_parts, write_store

N_BAGS = 60


@pytest.fixture(scope="module", params=["zarr", "parquet"])
def store(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks") / f"made.{request.param}"
    block = made_block(N_BAGS)
    return write_parts(path, made_spec(), [block.slice(0, 25), block.slice(25, N_BAGS)])


@given(
    block_bytes=st.integers(1, 3000),
    scan_bags=st.integers(1, N_BAGS + 1),
    bounds=st.tuples(st.integers(0, N_BAGS), st.integers(0, N_BAGS)).map(sorted),
)
def test_range_bounds__hold_every_bag_once_and_no_more_bytes_than_asked(
    store, block_bytes, scan_bags, bounds
):
    begin, end = bounds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SCAN_BAGS", scan_bags)
        ranges = list(range_bounds(store, block_bytes, begin, end))
    assert [bag for start, stop in ranges for bag in range(start, stop)] == list(range(begin, end))
    bag_bytes = module.BAG_BYTES + 4 * store.n_label_entries / N_BAGS
    for start, stop in ranges:
        assert stop == start + 1 or store.read(start, stop).nbytes <= block_bytes
        n_rows = store.bag_sizes(start, min(stop + 1, end)).sum()
        with_next = n_rows * row_bytes(store) + (stop + 1 - start) * bag_bytes
        assert stop == end or with_next > block_bytes - 1e-6, "a range ends where it is full"


@pytest.mark.parametrize("kind", ["store", "joined", "view", "view of view"])
def test_remote_tasks__read_the_same_bags(store, kind):
    rng = np.random.default_rng(3)
    bags = JoinedStore([store, store]) if kind == "joined" else store
    if kind.startswith("view"):
        bags = store.view(rng.permutation(N_BAGS)[:40])
    if kind == "view of view":
        bags = bags.view(rng.permutation(40)[:20])
    there = [task.read() for task in split_into_tasks(bags, 400, remote=True)]
    here = [task.read() for task in split_into_tasks(bags, 400, remote=False)]
    assert len(there) > 1
    for one, other in zip(there, here, strict=True):
        assert one.rows.tobytes() == other.rows.tobytes()
        assert one.label_indices.tolist() == other.label_indices.tolist()


def test_remote_tasks__of_a_view_have_few_numbers_to_send(store, monkeypatch):
    monkeypatch.setattr(module, "NUMBERED_BAGS", 7)
    order = np.random.default_rng(3).permutation(N_BAGS)
    tasks = list(split_into_tasks(store.view(order), 1 << 20, remote=True))
    assert max(len(task.numbers) for task in tasks) == 7
    assert np.concatenate([task.numbers for task in tasks]).tolist() == order.tolist()
    assert len(list(split_into_tasks(store, 1 << 20, remote=True))) == 1


@pytest.mark.parametrize("remote", [True, False])
def test_tasks__have_at_most_as_many_bags_as_asked(store, remote):
    for bags in (store, store.view(np.arange(N_BAGS)[::-1])):
        tasks = list(split_into_tasks(bags, 1 << 20, remote=remote, most_bags=9))
        assert [task.stop - task.start for task in tasks[:-1]] == [9] * (N_BAGS // 9)
        assert [task.start for task in tasks] == list(range(0, N_BAGS, 9))
        assert tasks[-1].stop == N_BAGS


def test_remote_tasks__of_a_store_that_workers_see_differently_are_refused(tmp_path):
    path = tmp_path / "x.zarr"
    (task,) = split_into_tasks(write_store(path, made_block(), n_labels=4), 1 << 20, remote=True)
    other = replace(task.store, fingerprint="0" * 32)
    with pytest.raises(StreammimlError, match="a worker sees another store at"):
        replace(task, store=other).read()


def test_bag_range__numbers_bags_of_a_view_without_names_as_the_store_behind_it_does(tmp_path):
    store = write_store(tmp_path / "x.zarr", plain(made_block(20)), n_labels=4)
    view = store.view([7, 3, 12])
    for remote in (False, True):
        names = all_bags(view, remote=remote).cut(1, 3).bag_ids()
        assert [str(name) for name in names] == view.bag_ids(1, 3) == ["3", "12"]
