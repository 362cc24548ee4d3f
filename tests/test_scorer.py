"""A scorer: its scores are those of a plain product, and a pickled copy gives the same bits."""

import pickle

import numpy as np

from streammiml.model import LabelRule
from streammiml.scorer import RowScorer, Scorer
from tests.measure.models import made_model
from tests.stores import as_sparse, made_block


def test_scores__are_the_maximum_over_rows_and_subconcepts():
    model, block = made_model(), made_block(6)
    scores = Scorer(model).scores(block)
    vectors = model.labels.reshape(-1, model.shared_dim)
    for i in range(len(block)):
        rows = np.column_stack([block.rows_of(i), np.ones(len(block.rows_of(i)))])
        products = (rows @ model.shared @ vectors.T).reshape(len(rows), -1, model.subconcepts)
        np.testing.assert_allclose(scores.value[i], products.max(axis=(0, 2)), rtol=1e-4, atol=1e-5)


def test_scores__of_sparse_rows_are_those_of_dense_rows():
    scorer, block = Scorer(made_model()), made_block(6)
    dense, sparse = scorer.scores(block), scorer.scores(as_sparse(block))
    np.testing.assert_allclose(sparse.value, dense.value, rtol=1e-4, atol=1e-5)


def test_scorer__pickled_gives_the_same_bits_and_leaves_the_model_alone():
    model, block = made_model(), made_block(6)
    before = model.shared.tobytes(), model.labels.tobytes()
    scorer = Scorer(model)
    again = pickle.loads(pickle.dumps(scorer))
    assert again.scores(block).value.tobytes() == scorer.scores(block).value.tobytes()
    assert (again.n_labels, again.rule) == (4, model.rule)
    assert (model.shared.tobytes(), model.labels.tobytes()) == before


def test_row_scores__of_some_labels_have_the_bits_of_all():
    model, block = made_model(rule=LabelRule(offset=0.25)), made_block(6)
    bags = Scorer(model).scores(block).value
    for form in (block, as_sparse(block)):
        for labels in ([0, 1, 2, 3], [2, 0]):
            scorer = pickle.loads(pickle.dumps(RowScorer(model, labels)))
            values = np.concatenate([scores.value for _, scores in scorer.scores(form, 3)])
            best = np.maximum.reduceat(values, block.bag_offsets[:-1])
            assert best.tobytes() == bags[:, [*labels, 4]].tobytes()
            assert scorer.labels.tolist() == labels
