"""Scored blocks: every bag once, however memory cuts them, and no score that is not finite."""

import numpy as np
import pytest

from streammiml.bags.memory import MemoryBags
from streammiml.errors import StreammimlError
from streammiml.measure.rules import predicted
from streammiml.measure.scoring import (
    LABEL_BYTES,
    BagCounter,
    ScoreOptions,
    check_finite,
    check_fits,
    scored_block,
    scored_blocks,
)
from streammiml.measure.tasks import all_bags
from streammiml.scorer import Scorer
from tests.measure.models import made_model
from tests.stores import made_block

BAGS = MemoryBags(made_block(12), n_labels=4)
SCORER = Scorer(made_model())


@pytest.mark.parametrize("bags_at_once", [1, 5, 12, 100])
def test_scored_blocks__has_every_bag_once_with_the_same_bits(bags_at_once):
    size = bags_at_once * LABEL_BYTES * 5
    blocks = list(scored_blocks(all_bags(BAGS, remote=False), SCORER, size))
    assert [first for first, _, _ in blocks] == list(range(0, 12, bags_at_once))
    values = np.concatenate([scores.value for _, _, scores in blocks])
    assert values.tobytes() == SCORER.scores(BAGS.read(0, 12)).value.tobytes()


def test_scored_block__predicts_by_the_rule():
    block = BAGS.read(0, 12)
    scores = SCORER.scores(block)
    joined = scored_block(SCORER.rule, block, scores)
    want = predicted(SCORER.rule, scores.value[:, :-1], scores.value[:, -1])
    assert (joined.predicted == want).all()
    assert joined.scores.shape == (12, 4)


def test_check_finite__names_the_bag():
    scores = SCORER.scores(BAGS.read(0, 3))
    scores.value[2, 1] = np.inf
    with pytest.raises(StreammimlError, match=r"x\.zarr: bag 42 has a score that is not a finite"):
        check_finite(scores, 40, "x.zarr")


def test_check_fits__refuses_another_number_of_features():
    with pytest.raises(StreammimlError, match=r"trained on rows of 5 features and .* has 3"):
        check_fits(made_model(n_features=5), BAGS)


def test_score_options__block_bytes_is_a_size_of_at_least_one_byte():
    assert ScoreOptions(block_bytes="2MiB").block_size == 2 << 20
    with pytest.raises(StreammimlError, match="block_bytes"):
        ScoreOptions(block_bytes=0)


def test_bag_counter__tells_the_sum_after_each_task():
    class Task:
        n_bags = 4

    reports = []
    counter = BagCounter(12, None, reports.append, done=2)
    counter(Task())
    counter(Task())
    assert [(progress.bags_done, progress.n_bags) for progress in reports] == [
        (2, 12),
        (6, 12),
        (10, 12),
    ]
