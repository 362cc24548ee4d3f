"""DBA: updates by hand, words and values that are no counts, blocks that are read again."""

import logging

import numpy as np
import pytest

from streammiml.errors import StreammimlError
from streammiml.rivals import dba
from streammiml.rivals.dba import DBA, row_labels_of
from streammiml.rivals.rival import Rival
from tests.rivals.cases import in_small_blocks, learn_and_test


def words(n_bags=60, seed=0):
    """Bags of rows with 10 words; label j has the words 3j to 3j + 2."""
    rng = np.random.default_rng(seed)
    bags, labels, keys = [], [], []
    for _ in range(n_bags):
        own = np.sort(rng.choice(3, rng.integers(1, 3), replace=False))
        topics = rng.permutation(np.concatenate([own, own]))
        chances = np.kron(np.eye(3), np.full(3, 0.28)) + 0.16 / 9
        bags.append(np.array([rng.multinomial(10, chances[t] / chances[t].sum()) for t in topics]))
        labels.append(own.tolist())
        keys.append(topics)
    return bags, labels, keys


def test_dba__finds_the_topics_of_planted_words():
    bags, labels, topics = words()
    model = DBA().fit(bags, labels)
    assert model.emission_ == "counts"
    right = np.mean(
        [set(p) == set(own) for p, own in zip(model.predict(bags), labels, strict=True)]
    )
    assert right > 0.95
    keys = model.key_instances(bags)
    chosen = [topics[i][keys[i, j]] == j for i, own in enumerate(labels) for j in own]
    assert np.mean(chosen) > 0.95
    assert (np.diff(model.bounds_) > -1e-6 * abs(model.bounds_[0])).all()


def test_row_labels_of__by_hand():
    offsets = np.array([0, 2, 3])
    # A row of a bag with one label belongs to it; equally likely labels share a row.
    allowed = np.array([[True, False], [True, True]])
    shares, gamma = row_labels_of(np.zeros((3, 2)), offsets, allowed)
    np.testing.assert_allclose(shares, [[1, 0], [1, 0], [0.5, 0.5]])
    np.testing.assert_allclose(gamma, [[2.1, 0.1], [0.6, 0.6]])


def test_row_labels_of__a_fixed_point_of_both_updates():
    rng = np.random.default_rng(0)
    likelihood = rng.normal(size=(4, 3))
    shares, gamma = row_labels_of(likelihood, np.array([0, 4]), None)
    want = np.exp(likelihood + dba.digamma(dba.PRIOR + shares.sum(axis=0)))
    np.testing.assert_allclose(shares, want / want.sum(axis=1, keepdims=True), atol=1e-3)
    np.testing.assert_allclose(gamma[0], dba.PRIOR + shares.sum(axis=0))


def test_dba__word_shares_of_two_bags_by_hand():
    bags, truth = [np.array([[2, 0]]), np.array([[0, 2]])], np.eye(2)
    model = DBA().fit(bags, truth)
    own, other = np.log(2.01 / 2.02), np.log(0.01 / 2.02)
    logs = model._rows_of_labels.first
    np.testing.assert_allclose(logs, [[own, other], [other, own]], rtol=1e-9)
    assert model.predict(bags).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("shift", "emission", "message"),
    [
        (lambda rows: rows, "counts", ""),
        (lambda rows: rows * (rows > 5) / 7, "counts", "taken as weights of words"),
        (lambda rows: rows - 0.5, "gaussian", "each label gets a Gaussian distribution of rows"),
    ],
    ids=["counts", "weights", "numbers"],
)
def test_dba__says_what_values_are_taken_as(caplog, shift, emission, message):
    bags, labels, _ = words(20)
    with caplog.at_level(logging.WARNING, "streammiml"):
        model = DBA().fit([shift(bag) for bag in bags], labels)
    assert model.emission_ == emission
    assert message in caplog.text
    assert bool(caplog.text) == bool(message)


def test_gaussian__log_likelihood_is_that_of_the_density():
    rng = np.random.default_rng(0)
    rows, means, variances = rng.normal(size=(5, 3)), rng.normal(size=(2, 3)), rng.random((2, 3))
    got = dba._RowsOfLabels("gaussian", False, means, variances).log_likelihood(rows)
    apart = rows[:, None] - means
    want = -0.5 * (apart**2 / variances + np.log(variances)).sum(axis=2)
    np.testing.assert_allclose(got, want, rtol=1e-10)


def test_temper__divides_by_the_root_of_the_number_of_words():
    rows, logs = np.array([[4.0, 5.0], [1.0, 0.0]]), np.log([[0.5, 0.5], [0.9, 0.1]])
    plain, tempered = (
        dba._RowsOfLabels("counts", temper, logs, np.empty((0, 0))).log_likelihood(rows)
        for temper in (False, True)
    )
    np.testing.assert_allclose(plain[0], [9 * np.log(0.5), 4 * np.log(0.9) + 5 * np.log(0.1)])
    np.testing.assert_allclose(tempered, plain / [[3], [1]])


def test_dba__blocks_that_are_read_again_give_the_same_bits(monkeypatch):
    learn, test = learn_and_test()
    in_small_blocks(monkeypatch)
    held = DBA().fit(learn).decision_function(test)
    monkeypatch.setattr(Rival, "_check_memory", lambda *_: 0)
    np.testing.assert_array_equal(DBA().fit(learn).decision_function(test), held)


def test_dba__refuses_one_label_negative_counts_and_unknown_emissions():
    bags = np.full((4, 2, 3), -2)
    with pytest.raises(StreammimlError, match="divides the rows of a bag among labels"):
        DBA().fit(bags, np.ones((4, 1)))
    with pytest.raises(StreammimlError, match="takes rows as counts, and a value is -2"):
        DBA(emission="counts").fit(bags, np.eye(4))
    with pytest.raises(StreammimlError, match="no emission is called 'poisson'; known: auto"):
        DBA(emission="poisson").fit(bags, np.eye(4))
