"""streammiml.torch: every bag once over workers and ranks, layouts, and resuming."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from streammiml.errors import StreammimlError
from tests.stores import as_sparse, made_block, plain, write_store

torch = pytest.importorskip("torch")
DataLoader = pytest.importorskip("torch.utils.data").DataLoader

N_BAGS = 97
OPTIONS = {"memory": "400MiB", "batch_bags": 5, "block_bags": 2, "mix_blocks": 6}


@pytest.fixture(scope="module", params=["dense", "sparse"])
def store(request, tmp_path_factory):
    block = plain(made_block(N_BAGS))
    block = as_sparse(block) if request.param == "sparse" else block
    return write_store(tmp_path_factory.mktemp("torch") / "s.zarr", block, n_labels=4)


@pytest.fixture
def dataset_of(store):
    from streammiml.torch import BagDataset  # noqa: PLC0415

    return lambda **options: BagDataset(store.location.path, **{**OPTIONS, **options})


def numbers_of(batches):
    return [batch["bag_numbers"].tolist() for batch in batches]


def test_import__of_streammiml_does_not_import_torch():
    code = "import sys, streammiml as sm; sm.stream; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_dataset__delivers_every_bag_once_over_workers_and_ranks(dataset_of, workers):
    epochs = [[], []]
    for rank in range(2):
        loader = DataLoader(
            dataset_of(rank=rank, world_size=2), batch_size=None, num_workers=workers
        )
        for number, epoch in enumerate(epochs):
            batches = list(loader)
            assert {batch["epoch"] for batch in batches} == {number}
            epoch += itertools.chain.from_iterable(numbers_of(batches))
    for epoch in epochs:
        assert sorted(epoch) == list(range(N_BAGS))
    assert epochs[0] != epochs[1]


def test_layouts__hold_the_same_rows_and_targets(dataset_of, store):
    by_layout = {
        layout: list(dataset_of(layout=layout)) for layout in ("offsets", "padded", "nested")
    }
    for flat, padded, nested in zip(*by_layout.values(), strict=True):
        want = store.read_bags(flat["bag_numbers"].numpy(), row_labels=False)
        for bag in range(len(want)):
            start, stop = flat["offsets"][bag : bag + 2].tolist()
            rows = want.rows_of(bag)
            np.testing.assert_array_equal(flat["rows"][start:stop].numpy(), rows)
            np.testing.assert_array_equal(padded["rows"][bag][padded["mask"][bag]].numpy(), rows)
            np.testing.assert_array_equal(nested["rows"][bag].numpy(), rows)
            assert flat["targets"][bag].nonzero().ravel().tolist() == want.labels_of(bag).tolist()
        assert not padded["rows"][~padded["mask"]].any()
        assert torch.equal(flat["targets"], padded["targets"])


def test_dataset__left_early_delivers_the_epoch_again_unless_a_state_is_loaded(dataset_of):
    want = numbers_of(dataset_of())
    dataset = dataset_of()
    head = numbers_of(itertools.islice(dataset, 4))
    state = dataset.state_dict()
    assert numbers_of(dataset) == want
    other = dataset_of()
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert head + numbers_of(other) == want


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("stop", [1, 7, 15])
def test_stateful_loader__goes_on_with_the_batches_that_would_have_come(dataset_of, workers, stop):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")

    def loader():
        return torchdata.StatefulDataLoader(dataset_of(), batch_size=None, num_workers=workers)

    want = numbers_of(loader())
    first = loader()
    head = numbers_of(itertools.islice(first, stop))
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert head + numbers_of(second) == want


def test_bad_options__are_one_line_before_workers_start(dataset_of):
    with pytest.raises(StreammimlError, match=r"^no layout is called 'ragged'; known: nested, "):
        dataset_of(layout="ragged")
    with pytest.raises(StreammimlError, match="batch_bags must be a whole number at least 1"):
        dataset_of(batch_bags=0)
