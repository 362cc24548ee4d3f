"""What all methods share: forms of bags and labels, cutoffs, refusals."""

import numpy as np
import pytest
from scipy import sparse

from streammiml.bags.memory import MemoryBags
from streammiml.errors import StreammimlError
from streammiml.rivals.miml_knn import MIMLkNN
from streammiml.rivals.rival import constant_labels, least_hamming_cutoff, truth_of
from tests.planted import planted
from tests.rivals.cases import learn_and_test


@pytest.fixture(scope="module")
def fitted():
    return MIMLkNN().fit(learn_and_test()[0])


def test_fit__forms_of_labels_come_back():
    learn, test = learn_and_test()
    bags, new = [bag.rows for bag in learn], [bag.rows for bag in test]
    truth = truth_of(learn).astype(int)
    as_matrix = MIMLkNN().fit(bags, truth).predict(new)
    assert as_matrix.dtype == np.int64
    as_sparse = MIMLkNN().fit(bags, sparse.csr_matrix(truth)).predict(new)
    np.testing.assert_array_equal(as_sparse.toarray(), as_matrix)
    lists = [np.flatnonzero(row).tolist() for row in truth]
    as_lists = MIMLkNN().fit(bags, lists).predict(new)
    assert as_lists == [tuple(np.flatnonzero(row).tolist()) for row in as_matrix]
    one_each = MIMLkNN().fit(bags, truth.argmax(axis=1)).predict(new)
    assert one_each.shape == (60,)


def test_fit__a_store_has_the_names_of_its_labels():
    store = MemoryBags(planted(60, n_labels=2), label_names=["cat", "dog"])
    assert MIMLkNN().fit(store).classes_.tolist() == ["cat", "dog"]


def test_fit__labels_of_a_store_are_not_given_twice():
    learn, _ = learn_and_test()
    with pytest.raises(StreammimlError, match="a store has labels of its own"):
        MIMLkNN().fit(learn, truth_of(learn))


def test_fit__bags_need_labels():
    with pytest.raises(StreammimlError, match="MIMLkNN requires y to be passed"):
        MIMLkNN().fit(np.zeros((4, 2, 3)))
    with pytest.raises(StreammimlError, match="bags in memory has no labels to learn"):
        MIMLkNN().fit(np.zeros((4, 2, 3)), np.zeros((4, 0)))


def test_fit__refuses_no_threads():
    with pytest.raises(StreammimlError, match="threads must be a whole number at least 1, got 0"):
        MIMLkNN(threads=0).fit(learn_and_test()[0])


def test_fit__threads_need_memory_too():
    learn, _ = learn_and_test()
    MIMLkNN(memory="200MiB").fit(learn)
    with pytest.raises(StreammimlError, match="MIMLkNN would need about 288 MiB for 120 bags"):
        MIMLkNN(memory="200MiB", threads=2).fit(learn)


def test_fit__settings_may_be_numbers_of_numpy():
    learn, test = learn_and_test()
    model = MIMLkNN(n_references=np.int64(10)).fit(learn)
    np.testing.assert_array_equal(model.predict(test), MIMLkNN().fit(learn).predict(test))


def test_scored__agrees_with_the_other_methods(fitted):
    _, test = learn_and_test()
    scores = fitted.scored(test)
    np.testing.assert_array_equal(scores.value, fitted.decision_function(test))
    np.testing.assert_array_equal(scores.predicted, fitted.predict(test))
    assert scores.key_rows is None


def test_score__of_a_store_is_that_of_its_bags_and_labels(fitted):
    _, test = learn_and_test()
    truth = truth_of(test).astype(int)
    by_arrays = MIMLkNN().fit(learn_and_test()[0]).score([bag.rows for bag in test], truth)
    assert fitted.score(test) == by_arrays
    assert 0.5 < by_arrays < 1


def test_scored__bags_need_the_features_of_fit(fitted):
    with pytest.raises(StreammimlError, match="has 3 features, but MIMLkNN is expecting 6"):
        fitted.predict(np.zeros((4, 2, 3)))


def test_constant_labels__are_those_of_all_bags_or_none():
    truth = np.array([[True, False, True], [True, False, False]])
    assert constant_labels(truth).tolist() == [1, -1, 0]


@pytest.mark.parametrize("seed", range(5))
def test_least_hamming_cutoff__no_other_cutoff_is_better(seed):
    rng = np.random.default_rng(seed)
    truth, scores = rng.random((20, 4)) < 0.3, rng.integers(0, 6, (20, 4)).astype(float)
    losses = {cutoff: ((scores > cutoff) != truth).sum() for cutoff in np.arange(-1, 7) + 0.5}
    best = least_hamming_cutoff(truth, scores)
    assert ((scores > best) != truth).sum() == min(losses.values())


def test_least_hamming_cutoff__of_all_and_of_none():
    scores = np.array([[1.0, 2.0]])
    assert (scores > least_hamming_cutoff(np.array([[True, True]]), scores)).all()
    assert not (scores > least_hamming_cutoff(np.array([[False, False]]), scores)).any()
