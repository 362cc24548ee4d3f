"""Estimates of memory: what they grow with, and that fitting stays below them."""

import tracemalloc

import pytest

from streammiml.rivals import costs
from streammiml.rivals.registry import METHODS
from tests.rivals.cases import learn_and_test

SMALL = (1000, 9000, 50, 10)


@pytest.mark.parametrize("name", ["ranklosssim", "mimlknn", "dba", "kisar", "mimlsvm", "logistic"])
def test_costs__cover_what_python_holds_while_fitting(name):
    learn, _ = learn_and_test()
    method = METHODS[name]
    method.make().fit(learn)  # Modules and compiled functions load.
    tracemalloc.start()
    method.make().fit(learn)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < method.cost(learn.n_bags, learn.n_rows, learn.n_features, learn.n_labels)


def test_costs__of_streaming_methods_do_not_grow_with_the_rows_of_more_bags():
    ten_times = (10_000, 90_000, 50, 10)
    assert costs.blocks(*ten_times) < 1.1 * costs.blocks(*SMALL)
    # MIMLkNN holds some numbers for each bag, MIMLSVM for each pair of bags.
    grown = costs.nearest(10**6, 9 * 10**6, 200, 20), costs.nearest(2 * 10**6, 18 * 10**6, 200, 20)
    assert grown[1] < 2 * grown[0]
    assert costs.all_pairs(10**6, 9 * 10**6, 200, 20) > 8 * 10**12


def test_costs__grow_with_the_settings():
    assert costs.nearest(*SMALL, n_nearest=40) > costs.nearest(*SMALL)
    assert costs.prototypes(*SMALL, max_prototypes=10) < costs.prototypes(*SMALL)
    assert costs.forest(*SMALL, leaf=4) < costs.forest(*SMALL)
    assert costs.row_label_pairs(*SMALL) > 8 * 9000 * 10 * 50
