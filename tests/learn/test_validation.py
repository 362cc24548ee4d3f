"""Looks at held-out bags: the loss is that of a plain loop, and bags without pairs are refused."""

import numpy as np
import pytest

from streammiml.bags.block import BagBlock
from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.learn.begin import begin, settle
from streammiml.learn.holdout import Holdout
from streammiml.learn.trained_model import trained_model
from streammiml.learn.validation import NothingRanked, Validation, open_validation
from streammiml.scorer import Scorer
from tests.planted import planted

BAGS = MemoryBags(planted(60), n_labels=5)


def test_loss__is_the_mean_share_of_pairs_in_the_wrong_order():
    run = begin(settle(BAGS, TrainConfig(epochs=1, validation=0.0, shared_dim=4)))
    bags = np.arange(0, 60, 3)
    loss = Validation(BAGS, bags).loss(run.state.lift, run.state.returned(), deadline=60.0)
    block = BAGS.read_bags(bags)
    scores = Scorer(trained_model(run)).scores(block).value[:, :-1]
    shares = []
    for i in range(len(bags)):
        carried = set(block.labels_of(i).tolist())
        pairs = [(a, b) for a in carried for b in range(5) if b not in carried]
        shares.append(np.mean([scores[i, b] >= scores[i, a] for a, b in pairs]))
    assert loss == pytest.approx(np.mean(shares), abs=1e-9)


def test_sizes__counts_the_rows_of_the_held_out_bags():
    bags = np.array([1, 5, 40])
    rows, _, _ = Validation(BAGS, bags).sizes(n_lifted=7)
    assert rows == len(BAGS.read_bags(bags).rows)


def test_open_validation__refuses_bags_that_cannot_be_ranked():
    rows = [np.ones((1, 2), np.float32)] * 40
    everything = MemoryBags(BagBlock.from_bags(rows, [np.array([0, 1])] * 40), n_labels=2)
    with pytest.raises(NothingRanked, match="early stopping has nothing to measure"):
        open_validation(TrainConfig(validation=0.5), everything, Holdout.of(0.5, 40))
    one = MemoryBags(BagBlock.from_bags(rows, [np.array([0])] * 40), n_labels=1)
    with pytest.raises(NothingRanked, match="has one label and early stopping needs an order"):
        open_validation(TrainConfig(validation=0.5), one, Holdout.of(0.5, 40))
