"""A store sorted by label trains like a shuffled one, because blocks are mixed."""

from functools import partial

import numpy as np
import pytest

from streammiml.bags.block import BagBlock
from streammiml.config import TrainConfig
from streammiml.learn.train import train
from streammiml_tools.corpora.synth import Planted, planted_part
from tests.stores import plain, write_store

CORPUS = Planted(
    n_bags=6500, n_features=20, n_labels=20, order="by-label", labels_per_bag=(1, 2),
    rows_per_bag=(2, 5), noise=0.8,
)  # fmt: skip
MIXED, UNMIXED = 96, 1


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """The same bags sorted by label and shuffled, and others to look at."""
    folder = tmp_path_factory.mktemp("sorted")
    parts = [plain(planted_part(CORPUS, part)) for part in range(CORPUS.n_parts)]
    bags, rng = BagBlock.join(parts), np.random.default_rng(0)
    order = rng.permutation(len(bags))
    kept = {"held_out": order[:500], "sorted": np.sort(order[500:]), "shuffled": order[500:]}
    for name, numbers in kept.items():
        write_store(folder / f"{name}.zarr", bags.take(numbers), n_labels=CORPUS.n_labels)
    return folder


def losses(stores, name, mix_blocks, seeds):
    """Ranking loss after two epochs, for each seed."""
    final_losses = []
    for seed in seeds:
        config = TrainConfig(
            shared_dim=16, subconcepts=2, step_size=0.05, block_bags=50, mix_blocks=mix_blocks,
            epochs=2, seed=seed, validation_store=str(stores / "held_out.zarr"),
            validate_every=10**6,
        )  # fmt: skip
        seen: list[float] = []
        train(stores / f"{name}.zarr", config, watch=partial(_keep, seen))
        final_losses.append(seen[-1])
    return np.array(final_losses)


def _keep(seen, progress):
    seen.append(progress.validation_loss)


def differ(one, other):
    """Standard errors between two means."""
    spread = np.sqrt(one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other))
    return abs(one.mean() - other.mean()) / spread


def test_mixing__switched_off_a_sorted_store_is_learned_far_worse(stores):
    mixed, unmixed = (losses(stores, "sorted", blocks, (0, 1)) for blocks in (MIXED, UNMIXED))
    assert mixed.max() < 0.5 * unmixed.min()


@pytest.mark.slow
def test_mixing__a_sorted_store_trains_like_a_shuffled_one(stores):
    seeds = range(8)
    ordered = losses(stores, "sorted", MIXED, seeds)
    shuffled = losses(stores, "shuffled", MIXED, seeds)
    unmixed = losses(stores, "sorted", UNMIXED, seeds)
    assert differ(ordered, shuffled) < 3, (ordered, shuffled)
    # The control: the same comparison notices that nothing is mixed.
    assert differ(unmixed, shuffled) > 5, (unmixed, shuffled)
    assert unmixed.mean() > 3 * shuffled.mean()
