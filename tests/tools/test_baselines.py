"""Pooled bags: lowest and highest values, alike for dense and sparse rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml_tools.baselines import baselines, indicators, metrics_of, pooled
from tests.planted import planted
from tests.stores import as_sparse, made_block, write_store


@given(st.integers(0, 50))
def test_pooled__is_the_lowest_and_the_highest_of_each_bag(seed):
    block = made_block(9, n_features=5, seed=seed)
    want = [
        np.concatenate([block.rows_of(i).min(axis=0), block.rows_of(i).max(axis=0)])
        for i in range(9)
    ]
    np.testing.assert_array_equal(pooled(block), want)
    np.testing.assert_array_equal(pooled(as_sparse(block)).toarray(), want)


def test_indicators__are_the_labels_of_bags():
    block = made_block(9)
    matrix = indicators(block, 4)
    assert [np.flatnonzero(row).tolist() for row in matrix] == [
        block.labels_of(i).tolist() for i in range(9)
    ]


def test_metrics__of_the_truth_itself_are_perfect():
    pytest.importorskip("sklearn", reason="figures are scikit-learn's")
    truth = indicators(planted(50), 5)
    metrics = metrics_of(truth, truth.astype(float), 0.5)
    want = {"hamming_loss": 0, "one_error": 0, "ranking_loss": 0, "average_precision": 1}
    assert {name: metrics[name] for name in want} == want
    assert metrics["coverage"] == pytest.approx((truth.sum(axis=1).mean() - 1) / 5)


@pytest.mark.parametrize("sparse", [False, True])
def test_baselines__learn_something_and_a_label_that_no_bag_carries_is_no_error(tmp_path, sparse):
    pytest.importorskip("sklearn", reason="the baselines are scikit-learn's")
    for name in ("train", "test"):
        block = planted(120, sparse=sparse, noise=0.1)
        write_store(tmp_path / f"{name}.zarr", block, n_labels=6)
    with pytest.warns(UserWarning, match="Label not 5 is present in all training examples"):
        metrics = baselines(tmp_path / "train.zarr", tmp_path / "test.zarr")
    assert [figures["ranking_loss"] < 0.25 for figures in metrics.values()] == [True, True]
