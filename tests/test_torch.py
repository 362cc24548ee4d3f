"""streammiml.torch: a loop is an epoch, whatever the workers; layouts; resuming at any batch."""

import copy
import itertools
import json
import pickle
import re
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import streammiml as sm
from streammiml.bags.memory import MemoryBags
from streammiml.errors import StreammimlError
from streammiml.tell.guide import guide
from tests.stores import as_sparse, made_block, plain, write_store

torch = pytest.importorskip("torch")
from torch.utils.data import ChainDataset, DataLoader  # noqa: E402

from streammiml.torch import BagDataset  # noqa: E402

N_BAGS = 97
OPTIONS = {"memory": "400MiB", "batch_bags": 5, "block_bags": 2, "mix_blocks": 6}
pytestmark = [
    # Of the number of cores, and of forks in a process with threads, which the tests start.
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
    # Of torchdata.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "s.zarr"
    return write_store(path, plain(made_block(N_BAGS)), n_labels=4)


@pytest.fixture(scope="module")
def sparse_store(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "sparse.zarr"
    return write_store(path, as_sparse(plain(made_block(N_BAGS))), n_labels=4)


def dataset_of(store, **options):
    return BagDataset(getattr(store, "location", store).path, **{**OPTIONS, **options})


def loader_of(dataset, n_workers, *, kind=DataLoader, **options):
    # Python 3.14 does not fork by default; forked workers start faster.
    if n_workers:
        options = {"multiprocessing_context": "fork", **options}
    return kind(dataset, batch_size=None, num_workers=n_workers, **options)


def numbers_of(batches):
    return [batch["bag_numbers"].tolist() for batch in batches]


def assert_one_epoch(batches, epoch, bags=range(N_BAGS)):
    assert {batch["epoch"] for batch in batches} == {epoch}
    assert sorted(itertools.chain.from_iterable(numbers_of(batches))) == list(bags)


def as_lists(batches):
    """Batches as plain values."""
    return [
        (batch["epoch"], batch["bag_numbers"].tolist(), batch["rows"].tolist()) for batch in batches
    ]


def test_import__of_streammiml_does_not_import_torch():
    code = "import sys, streammiml as sm; sm.stream; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


# Epochs.

WORKERS = [(0, False), *itertools.product(range(1, 5), (False, True))]


@pytest.mark.parametrize(("n_workers", "persistent_workers"), WORKERS)
def test_loop__is_one_epoch_with_every_bag_once(store, n_workers, persistent_workers):
    loader = loader_of(dataset_of(store), n_workers, persistent_workers=persistent_workers)
    orders = []
    for epoch in range(3):
        # So the seeds of the workers are the same in every loop.
        torch.manual_seed(0)
        batches = list(loader)
        assert_one_epoch(batches, epoch)
        orders.append(numbers_of(batches))
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize(("n_workers", "persistent_workers"), [(0, False), (3, False), (3, True)])
def test_loop__after_one_that_was_left_early_is_the_next_epoch(
    store, n_workers, persistent_workers
):
    loader = loader_of(dataset_of(store), n_workers, persistent_workers=persistent_workers)
    for epoch in (0, 2):
        torch.manual_seed(0)
        assert next(iter(loader))["epoch"] == epoch
        assert_one_epoch(list(loader), epoch + 1)


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_loop__left_before_its_first_batch_does_not_mix_epochs(store, persistent_workers):
    loader = loader_of(dataset_of(store), 3, persistent_workers=persistent_workers)
    epochs = []
    for _ in range(3):
        iter(loader)
        batches = list(loader)
        epochs.append(batches[0]["epoch"])
        assert_one_epoch(batches, epochs[-1])
    assert epochs == sorted(set(epochs))


def test_loops__at_the_same_time_are_two_epochs(store):
    loader = loader_of(dataset_of(store), 2)
    for _ in range(2):
        first, second = zip(*zip(loader, loader, strict=True), strict=True)
        assert_one_epoch(first, first[0]["epoch"])
        assert_one_epoch(second, second[0]["epoch"])
        assert first[0]["epoch"] != second[0]["epoch"]


def test_loops__in_several_threads_do_not_mix_epochs(store):
    loader = loader_of(dataset_of(store), 2)
    loops = []
    threads = [threading.Thread(target=lambda: loops.append(list(loader))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for batches in loops:
        assert_one_epoch(batches, batches[0]["epoch"])
    assert sorted(batches[0]["epoch"] for batches in loops) == [0, 1, 2]


@pytest.mark.parametrize(("n_workers", "persistent_workers"), [(0, False), (2, False), (2, True)])
def test_set_epoch__chooses_the_epoch_of_the_next_loop(store, n_workers, persistent_workers):
    dataset = dataset_of(store, epoch=3)
    loader = loader_of(dataset, n_workers, persistent_workers=persistent_workers)
    third = list(loader)
    assert_one_epoch(third, 3)
    dataset.set_epoch(8)
    assert_one_epoch(list(loader), 8)
    assert_one_epoch(list(loader), 9)
    dataset.set_epoch(3)
    assert as_lists(loader) == as_lists(third)


@pytest.mark.parametrize("n_workers", [0, 1, 3])
def test_ranks__share_the_bags_of_every_epoch(store, n_workers):
    loaders = [
        loader_of(dataset_of(store, rank=rank, world_size=2), n_workers) for rank in range(2)
    ]
    for epoch in range(2):
        shares = [list(loader) for loader in loaders]
        assert_one_epoch(shares[0] + shares[1], epoch)
        assert all(shares)


def test_ranks__are_those_of_torch_distributed(store, monkeypatch):
    for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 2)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    assert as_lists(dataset_of(store)) == as_lists(dataset_of(store, rank=1, world_size=2))


def test_datasets__in_a_chain_are_each_delivered_once_in_a_loop(store):
    loader = loader_of(ChainDataset([dataset_of(store), dataset_of(store)]), 2)
    for epoch in range(2):
        assert_one_epoch(list(loader), epoch, sorted([*range(N_BAGS)] * 2))


def test_copy__of_a_dataset_has_epochs_of_its_own(store):
    dataset = dataset_of(store)
    assert_one_epoch(list(dataset), 0)
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert_one_epoch(list(other), 1)
    assert_one_epoch(list(dataset), 1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_loop__is_one_epoch_with_workers_that_are_not_forked(store, method, persistent_workers):
    view = sm.open_store(store.location.path).view(np.arange(N_BAGS)[::-1])
    loader = loader_of(
        BagDataset(view, **OPTIONS),
        2,
        multiprocessing_context=method,
        persistent_workers=persistent_workers,
    )
    for epoch in (0, 1):
        torch.manual_seed(0)
        assert_one_epoch(list(loader), epoch)
    loader.dataset.set_epoch(5)
    assert_one_epoch(list(loader), 5)


# Content.


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("n_workers", [0, 1])
def test_layouts__hold_the_rows_and_labels_of_the_store(store, sparse_store, kind, n_workers):
    used = store if kind == "dense" else sparse_store
    layouts = [
        list(loader_of(dataset_of(used, layout=layout), n_workers))
        for layout in ("offsets", "padded", "nested")
    ]
    for flat, padded, nested in zip(*layouts, strict=True):
        want = store.read_bags(flat["bag_numbers"].numpy(), row_labels=False)
        sizes = np.diff(want.bag_offsets)
        assert padded["rows"].shape == (len(want), sizes.max(), store.n_features)
        assert flat["rows"].dtype == padded["rows"].dtype == nested["rows"].dtype == torch.float32
        targets = np.zeros((len(want), 4), np.float32)
        for bag in range(len(want)):
            start, stop = flat["offsets"][bag : bag + 2].tolist()
            rows = want.rows_of(bag)
            np.testing.assert_array_equal(flat["rows"][start:stop].numpy(), rows)
            np.testing.assert_array_equal(padded["rows"][bag, : len(rows)].numpy(), rows)
            np.testing.assert_array_equal(nested["rows"][bag].numpy(), rows)
            assert padded["mask"][bag].sum() == padded["mask"][bag, : len(rows)].sum() == len(rows)
            targets[bag, want.labels_of(bag)] = 1
        assert not padded["rows"][~padded["mask"]].any()
        for batch in (flat, padded, nested):
            np.testing.assert_array_equal(batch["targets"].numpy(), targets)
            assert torch.equal(batch["bag_numbers"], flat["bag_numbers"])


def test_batches__are_those_of_sm_stream(store):
    with sm.stream(store.location.path, replica=1, replicas=3, **OPTIONS) as bags:
        want = [(batch.epoch, batch.bag_numbers.tolist(), batch.rows.tolist()) for batch in bags]
    assert as_lists(dataset_of(store, rank=1, world_size=3)) == want


def test_stores__of_every_kind_are_read_in_workers(store):
    opened = sm.open_store(store.location.path)
    # Files are open and chunks are cached in this process before the workers are forked.
    opened.read(0, N_BAGS)
    path = str(store.location.path)
    cases = [
        (opened, N_BAGS),
        (opened.view(slice(10, 60)), 50),
        ((path, path), 2 * N_BAGS),
        (sm.open_store([path, path]).view(np.arange(0, 2 * N_BAGS, 3)), 65),
        (MemoryBags(plain(made_block(N_BAGS)), n_labels=4), N_BAGS),
    ]
    for bags, n_bags in cases:
        dataset = BagDataset(bags, **OPTIONS)
        assert_one_epoch(list(dataset), 0, range(n_bags))
        assert_one_epoch(list(loader_of(dataset, 2)), 1, range(n_bags))


@pytest.mark.slow
def test_guide__its_example_runs(store, tmp_path):
    # Marked py, not python: test_story runs the blocks that need no PyTorch.
    example = re.search(r"```py\n(.*?)```", guide("loader"), re.S)[1]
    assert "num_workers=2" in example
    (tmp_path / "corpus-train.zarr").symlink_to(store.location.path)
    command = [sys.executable, "-W", "ignore", "-c", example]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


# Resuming.


def stateful(store, n_workers, persistent_workers=False):
    # Versions of torchdata and torch differ in what they deprecate.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("torchdata.stateful_dataloader")
    return loader_of(
        dataset_of(store),
        n_workers,
        kind=module.StatefulDataLoader,
        persistent_workers=persistent_workers,
    )


@pytest.fixture(scope="module")
def uninterrupted(store):
    """Batches of three epochs, by number of workers."""
    known = {}

    def epochs(n_workers):
        if n_workers not in known:
            loader = stateful(store, n_workers)
            known[n_workers] = [as_lists(loader) for _ in range(3)]
        return known[n_workers]

    return epochs


# Epoch and place of the stop; negative places count from the end of the epoch, 0 is its very end,
# and None is behind the loop.
STOPS = [(0, 1), (1, -3), (0, -1), (1, 0), (0, None)]


@pytest.mark.parametrize("n_workers", range(5))
@pytest.mark.parametrize(("epoch", "place"), STOPS)
def test_stateful_loader__goes_on_with_the_batches_that_would_have_come(
    store, uninterrupted, n_workers, epoch, place
):
    want = uninterrupted(n_workers)
    n_taken = None if place is None else place if place > 0 else len(want[epoch]) + place
    persistent_workers = n_workers > 0 and epoch == 1
    loader = stateful(store, n_workers, persistent_workers)
    for before in range(epoch):
        assert as_lists(loader) == want[before]
    assert as_lists(itertools.islice(loader, n_taken)) == want[epoch][:n_taken]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    del loader
    resumed = stateful(store, n_workers, persistent_workers)
    resumed.load_state_dict(state)
    if n_taken is not None:
        assert as_lists(resumed) == want[epoch][n_taken:]
    assert as_lists(resumed) == want[epoch + 1]


@pytest.mark.slow
def test_stateful_loader__goes_on_in_a_new_process(store, uninterrupted, tmp_path):
    want = uninterrupted(2)
    loader = stateful(store, 2)
    n_taken = len(want[0]) - 2
    list(itertools.islice(loader, n_taken))
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    script = f"""
import json
from torchdata.stateful_dataloader import StatefulDataLoader
from streammiml.torch import BagDataset
dataset = BagDataset({str(store.location.path)!r}, **{OPTIONS!r})
loader = StatefulDataLoader(
    dataset, batch_size=None, num_workers=2, multiprocessing_context="fork"
)
loader.load_state_dict(json.load(open("state.json")))
print(json.dumps([[batch["bag_numbers"].tolist() for batch in loader] for _ in range(2)]))
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    rest, following = json.loads(done.stdout or pytest.fail(done.stderr))
    assert rest == [numbers for _, numbers, _ in want[0][n_taken:]]
    assert following == [numbers for _, numbers, _ in want[1]]


def test_dataset__without_a_loader_goes_on_too(store):
    want = [as_lists(dataset_of(store, epoch=epoch)) for epoch in range(2)]
    assert dataset_of(store, epoch=4).state_dict()["epoch"] == 4
    for n_taken in (0, 1, len(want[0]) - 1, len(want[0])):
        dataset = dataset_of(store)
        batches = iter(dataset)
        assert as_lists(itertools.islice(batches, n_taken)) == want[0][:n_taken]
        state = json.loads(json.dumps(dataset.state_dict()))
        assert state["finished"] == (n_taken == len(want[0]))
        other = dataset_of(store)
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert as_lists(other) == want[0][n_taken:]
        assert as_lists(other) == want[1]


# Bad input.


def test_bad_options__are_one_line_before_workers_start(store):
    for options, problem in [
        ({"layout": "ragged"}, r"^no layout is called 'ragged'; known: nested, offsets, padded$"),
        ({"batch_bags": 0}, "^batch_bags must be a whole number at least 1, got 0$"),
        ({"rank": 2, "world_size": 2}, "^rank must be a whole number from 0 to 1, got 2$"),
        ({"world_size": 0}, "^world_size must be a whole number at least 1, got 0$"),
        ({"epoch": -1}, "^epoch must be a whole number at least 0, got -1$"),
        ({"memory": "much"}, "^memory must be a size such as 256MiB or 2GiB, got 'much'$"),
        ({"replicas": 2}, "^BagDataset takes rank and world_size, not replica and replicas$"),
        ({"world_size": 60, "rank": 1}, "49 blocks of 2 bags, too few for 60 replicas"),
    ]:
        with pytest.raises(StreammimlError, match=problem):
            dataset_of(store, **options)
    with pytest.raises(StreammimlError, match=r"^nowhere\.zarr does not exist$"):
        BagDataset("nowhere.zarr")
    with pytest.raises(StreammimlError, match=r"^epoch must be a whole number .*, got 1\.5$"):
        dataset_of(store).set_epoch(1.5)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_loader__that_would_make_batches_of_batches_is_refused(store, n_workers):
    loader = DataLoader(dataset_of(store), num_workers=n_workers, multiprocessing_context=None)
    with pytest.raises(StreammimlError, match="BagDataset delivers whole batches: give the DataLo"):
        next(iter(loader))


def test_workers__more_than_blocks_are_refused(store):
    loader = loader_of(dataset_of(store, block_bags=40), 4)
    problem = (
        r"has 3 blocks of 40 bags, too few for 4 replicas; lower replicas, or block_bags \(this is "
        r"one of num_workers=4 workers of rank 0 of 1; each has 1/4 of the memory\)"
    )
    with pytest.raises(StreammimlError, match=problem):
        next(iter(loader))


def test_state__that_does_not_fit_is_one_line(store):
    dataset = dataset_of(store)
    next(iter(dataset))
    state = dataset.state_dict()
    elsewhere = {**state["stream"], "seed": 5}
    for damage, problem in [
        (
            {"replicas": 2},
            "^the state was saved with 2 workers in all ranks, this loop has 1; re",
        ),
        ({"replica": 1}, "^the state was saved by worker 1 of 1, this is worker 0; give each work"),
        ({"epoch": "one"}, "^epoch of the state must be a whole number at least 0, got 'one'$"),
        ({"epoch": 3}, "^the state is damaged: its stream is in epoch 0, its loop in epoch 3$"),
        ({"stream": elsewhere}, "^the state belongs to another seed: 5, this stream has 0"),
        ({"stream": 3}, "^this is no state of a stream: 3$"),
    ]:
        with pytest.raises(StreammimlError, match=problem):
            dataset_of(store).load_state_dict({**state, **damage})
    for nonsense in ({}, [], {"epoch": 1}):
        with pytest.raises(StreammimlError, match=r"^this is no state of a BagDataset: "):
            dataset.load_state_dict(nonsense)


def test_state__loaded_into_the_dataset_is_refused_by_workers(store):
    dataset = dataset_of(store)
    next(iter(dataset))
    dataset.load_state_dict(dataset.state_dict())
    with pytest.raises(StreammimlError, match="a state was loaded into the dataset, but each work"):
        next(iter(loader_of(dataset, 1)))
    assert next(iter(dataset))["epoch"] == 0


def test_state__whose_workers_are_in_different_epochs_is_refused(store):
    loader = stateful(store, 2)
    state = loader.state_dict()
    state["_snapshot"]["_worker_snapshots"]["worker_1"]["dataset_state"]["epoch"] = 5
    other = stateful(store, 2)
    other.load_state_dict(state)
    problem = r"the state is damaged: one worker is in epoch \d, another in epoch \d"
    with pytest.raises(StreammimlError, match=problem):
        next(iter(other))


# torchdata waits some seconds for the workers that were refused.
@pytest.mark.parametrize(("before", "after"), [(2, 3), pytest.param(3, 2, marks=pytest.mark.slow)])
def test_state__of_another_number_of_workers_is_refused(store, before, after):
    loader = stateful(store, before)
    next(iter(loader))
    other = stateful(store, after)
    other.load_state_dict(loader.state_dict())
    problem = f"the state was saved with {before} workers in all ranks, this loop has {after}; resu"
    with pytest.raises(StreammimlError, match=problem):
        next(iter(other))
