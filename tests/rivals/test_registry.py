"""What every method must do, and the table of methods."""

import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone

import streammiml as sm
from streammiml.bags.memory import MemoryBags
from streammiml.errors import StreammimlError
from streammiml.rivals import row_blocks
from streammiml.rivals.registry import METHODS, method_called
from streammiml.rivals.rival import truth_of
from tests.rivals.cases import average_precision, chance, in_small_blocks, learn_and_test
from tests.stores import write_store

# Small settings, and those without which the planted bags are not learned well.
QUICK = {
    "ranklosssim": {"rounds": 3, "steps": 50},
    "mimlboost": {"rounds": 2},
    "forest": {"trees": 50},
    "dba": {"emission": "gaussian"},
}
HERE = [method for method in METHODS.values() if method.needs == "sklearn"]
# A machine or two of MIMLBoost are quick, but little better than chance.
TRAINED = {"mimlboost": {"rounds": 8}}
every_method = pytest.mark.parametrize("method", HERE, ids=lambda method: method.name)


def made(method, **settings):
    return method.make(**QUICK.get(method.name, {}) | settings)


@every_method
def test_methods__beat_chance_on_planted_bags(method):
    learn, test = learn_and_test()
    estimator = made(method, **TRAINED.get(method.name, {})).fit(learn)
    assert average_precision(estimator, test) > chance(test) + 0.2
    predicted = estimator.predict(test)
    assert (predicted != truth_of(test)).mean() < truth_of(test).mean()


@every_method
def test_methods__settings_to_choose_from_are_parameters(method):
    for settings in method.grid:
        parameters = method.make(**settings).get_params()
        assert parameters.items() >= settings.items()
    assert clone(method.make()).get_params() == method.make().get_params()


@every_method
def test_methods__a_store_gives_the_bits_of_the_same_bags_in_memory(method, tmp_path):
    learn, test = learn_and_test()
    path = tmp_path / "learn.zarr"
    write_store(path, learn.read(0, learn.n_bags), n_labels=learn.n_labels)
    of_memory = made(method).fit(learn).decision_function(test)
    np.testing.assert_array_equal(made(method).fit(path).decision_function(test), of_memory)


@every_method
def test_methods__blocks_and_threads_do_not_matter(method, monkeypatch):
    learn, test = learn_and_test()
    at_once = made(method).fit(learn).scored(test)
    in_small_blocks(monkeypatch)
    monkeypatch.setattr("streammiml.rivals.hausdorff.BLOCK_ROWS", 40)
    assert len(row_blocks.RowBlocks(learn)) > 10
    one, two = (made(method, threads=threads).fit(learn).scored(test) for threads in (1, 2))
    np.testing.assert_array_equal(one.value, two.value)
    np.testing.assert_allclose(one.value, at_once.value, rtol=1e-6, atol=1e-6)
    assert (one.predicted == at_once.predicted).mean() > 0.99


@every_method
def test_methods__labels_that_all_bags_or_none_carry_have_finite_scores(method):
    learn, test = learn_and_test()
    truth = np.column_stack([truth_of(learn), np.ones(learn.n_bags), np.zeros(learn.n_bags)])
    bags = [bag.rows for bag in learn]
    estimator = made(method).fit(bags, truth.astype(int))
    scores = estimator.scored([bag.rows for bag in test])
    assert np.isfinite(scores.value).all()
    assert scores.value.shape == (test.n_bags, 7)
    if method.name not in ("dba", "mimlboost"):
        assert scores.value[:, 5].mean() > scores.value[:, 6].mean()


@every_method
def test_methods__bags_of_one_row_and_names(method):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 4))
    names = [["high"] if row[0] > 0 else ["low", "deep"] for row in rows]
    estimator = method.make().fit(rows, names)
    assert estimator.classes_.tolist() == ["deep", "high", "low"]
    predictions = estimator.predict(rows)
    right = np.mean([set(p) == set(n) for p, n in zip(predictions, names, strict=True)])
    assert right > 0.6
    assert estimator.score(rows, names) > 0.8


@every_method
def test_methods__key_instances_where_the_table_says_so(method):
    assert hasattr(made(method), "key_instances") == method.has_key_instances
    if method.has_key_instances:
        learn, test = learn_and_test()
        estimator = made(method).fit(learn)
        keys = estimator.key_instances(test)
        assert keys.shape == (test.n_bags, test.n_labels)
        # The planted row of a bag's i-th label is its row i.
        wanted = np.concatenate([np.arange(len(bag.labels)) for bag in test])
        chosen = np.concatenate([keys[i, bag.labels] for i, bag in enumerate(test)])
        assert (wanted == chosen).mean() > 0.6


@every_method
def test_methods__refuse_what_does_not_fit_in_memory(method):
    learn, _ = learn_and_test()
    with pytest.raises(StreammimlError, match=r"would need about .* for 120 bags with"):
        made(method, memory="1MiB").fit(learn)


@every_method
def test_methods__cost_grows_with_the_bags(method):
    small, large = method.cost(1000, 9000, 50, 10), method.cost(100_000, 900_000, 50, 10)
    assert 0 < small < large


@every_method
def test_methods__can_be_sent_to_another_process(method):
    learn, test = learn_and_test()
    estimator = made(method).fit(learn)
    copy = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(copy.decision_function(test), estimator.decision_function(test))


@every_method
def test_methods__sparse_bags_are_those_of_dense_rows(method):
    learn, test = learn_and_test(sparse=True)
    scores = made(method).fit(learn).decision_function(test)
    assert scores.shape == (60, 5)
    if method.name not in ("forest", "logistic"):  # These leave out minima of sparse rows.
        dense, dense_test = (
            MemoryBags(
                type(block).from_bags(
                    [block.rows_of(i) for i in range(len(block))],
                    [block.labels_of(i) for i in range(len(block))],
                ),
                n_labels=5,
            )
            for block in (learn.read(0, 120), test.read(0, 60))
        )
        want = made(method).fit(dense).decision_function(dense_test)
        np.testing.assert_allclose(scores, want, rtol=1e-6, atol=1e-6)


def test_method_called__names_all_methods():
    assert method_called("kisar").title == "KISAR"
    with pytest.raises(StreammimlError, match="no method is called 'kisra'; known: dba, forest"):
        method_called("kisra")


def test_rivals__public_names_are_those_of_the_table():
    homes = {method.home.split(":")[1] for method in METHODS.values()}
    assert set(sm.rivals.__all__) == homes == set(dir(sm.rivals))
    assert inspect.isclass(sm.rivals.MIMLkNN)
    with pytest.raises(AttributeError, match="has no attribute 'MIMLkN'"):
        sm.rivals.MIMLkN  # noqa: B018


def test_rivals__say_what_to_install_where_scikit_learn_is_absent():
    code = "import sys; sys.modules['sklearn'] = None; import streammiml as sm; sm.rivals.MIMLkNN"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.rstrip().splitlines()[-1]
    assert "StreammimlError: streammiml.rivals needs scikit-learn" in last
    assert last.endswith("pip install 'streammiml[sklearn]'")
