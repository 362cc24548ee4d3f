"""``MIMLfast`` keeps the conventions of scikit-learn, and says what the library says."""

import doctest
import pickle
import subprocess
import sys
import warnings
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    label_ranking_average_precision_score,
    label_ranking_loss,
    make_scorer,
)
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import streammiml as sm
from streammiml import estimator as module
from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml_tools.corpora.digits import digit_bags
from tests.planted import planted

NAMES = np.array(["lake", "rock", "sand", "tree", "wind"])
SMALL = {"shared_dim": 8, "subconcepts": 2, "epochs": 3}

# Settings of a run that reads from disk, or resumes; those of the kernel are parameters.
OF_STORES = {"fit_scaler", "order", "block_bags", "mix_blocks", "weights", "max_vif", "start"}
OF_STORES |= {"validation_store", "validate_every", "checkpoint_every", "replicas", "round_steps"}
OF_STORES |= {"preset", "prefer", "threshold", "time_limit", "bag_weights"}

CANNOT_HOLD = {
    "check_dtype_object": "wants a TypeError for a dict among numbers; ours are all ValueErrors",
    "check_estimators_nan_inf": "wants the word NaN; the message has nan, with bag and row",
    "check_fit2d_1sample": "wants the words one sample; the message says that nothing varies",
    **dict.fromkeys(
        (
            "check_sample_weight_equivalence_on_dense_data",
            "check_sample_weight_equivalence_on_sparse_data",
        ),
        "wants a bag of weight 2 to be two bags: a visit is a step, and two visits are two steps",
    ),
    "check_n_features_in_after_fitting": "calls partial_fit of what is no classifier to "
    "scikit-learn without classes, which a first call needs",
}


def arrays(block):
    """Bags as a list, and their labels as an indicator matrix of five."""
    marks = np.zeros((len(block), len(NAMES)), np.int64)
    for bag in range(len(block)):
        marks[bag, block.labels_of(bag)] = 1
    return [block.rows_of(bag) for bag in range(len(block))], marks


BLOCK = planted(260)
BAGS, MARKS = arrays(BLOCK.slice(0, 200))
NEW, NEW_MARKS = arrays(BLOCK.slice(200, 260))
LISTS = [NAMES[row == 1].tolist() for row in MARKS]


@pytest.fixture(scope="module")
def fitted():
    return sm.MIMLfast(**SMALL, seed=3).fit(BAGS, LISTS)


def same_weights(one, other):
    return (one.model_.labels == other.model_.labels).all()


# Conventions


@parametrize_with_checks(
    [sm.MIMLfast(**SMALL)], expected_failed_checks=lambda _: CANNOT_HOLD, xfail_strict=True
)
def test_mimlfast__passes_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_mimlfast__defaults_are_those_of_training():
    usual = TrainConfig()
    params = sm.MIMLfast().get_params()
    assert params == {name: getattr(usual, name) for name in params}
    assert set(params) == {field.name for field in fields(usual)} - OF_STORES


@pytest.mark.parametrize("call", ["fit", "partial_fit"])
def test_mimlfast__sample_weight_scales_the_steps_on_a_bag(call):
    bags, marks = arrays(planted(120))
    options = {**SMALL, "scale": "none", "init": "random"}

    def fitted(bags, **weights):
        return getattr(sm.MIMLfast(**options), call)(bags, marks, **weights).model_.labels.tobytes()

    assert fitted(bags, sample_weight=[1] * 120) == fitted(bags)
    weights = np.arange(120) % 2 * 2.0
    assert fitted(bags, sample_weight=weights) != fitted(bags)
    others = [bag if weight else -bag for bag, weight in zip(bags, weights, strict=True)]
    assert fitted(others, sample_weight=weights) == fitted(bags, sample_weight=weights)
    with pytest.raises(StreammimlError, match=r"shape \(3,\); expected \(120,\), one for each bag"):
        fitted(bags, sample_weight=[1, 2, 3])


def test_mimlfast__examples_in_docstrings_hold():
    results = doctest.testmod(module)
    assert results.attempted > 10
    assert results.failed == 0


def test_mimlfast__says_what_to_install_where_scikit_learn_is_absent():
    code = "import sys; sys.modules['sklearn'] = None; import streammiml; streammiml.MIMLfast"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.rstrip().endswith("pip install 'streammiml[sklearn]'")
    assert "StreammimlError: MIMLfast needs scikit-learn" in done.stderr


def test_mimlfast__has_no_probabilities():
    assert not hasattr(sm.MIMLfast(**SMALL), "predict_proba")
    assert not hasattr(sm.MIMLfast(**SMALL, calibrate="none"), "predict_proba")
    bags, marks = arrays(planted(60))
    model = sm.MIMLfast(**SMALL).fit(bags, marks)
    with pytest.raises(AttributeError, match=r"has no attribute 'predict_proba'$"):
        model.predict_proba(bags)


def test_predict_proba__is_that_of_the_calibrated_model():
    bags, marks = arrays(planted(90))
    model = sm.MIMLfast(**SMALL, calibrate="platt")
    assert hasattr(model, "predict_proba")
    got = model.fit(bags, marks).predict_proba(bags)
    assert got.shape == (90, 5)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, sm.predict(model.model_, bags).probabilities)
    # A higher score of a label means a higher probability.
    for margins, probabilities in zip(model.decision_function(bags).T, got.T, strict=True):
        assert (np.diff(probabilities[np.argsort(margins)]) >= 0).all()
    assert not hasattr(clone(model).set_params(calibrate=None), "predict_proba")
    model.partial_fit(bags, marks)
    assert not hasattr(model, "predict_proba")


def test_predict_proba__of_one_label_a_bag_adds_up_to_one():
    bags, marks = arrays(planted(90))
    one_each = NAMES[marks.argmax(axis=1)]
    got = sm.MIMLfast(**SMALL, calibrate="platt").fit(bags, one_each).predict_proba(bags)
    np.testing.assert_allclose(got.sum(axis=1), 1)


def test_clone__is_unfitted_and_fits_to_the_same_bits(fitted):
    copy = clone(fitted)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        copy.predict(BAGS)
    assert same_weights(copy.fit(BAGS, LISTS), fitted)
    assert not same_weights(clone(fitted).set_params(seed=4).fit(BAGS, LISTS), fitted)


@pytest.mark.parametrize("method", ["decision_function", "key_instances", "key_subconcepts"])
def test_unfitted__is_said_by_every_method(method):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(sm.MIMLfast(), method)(BAGS)


def test_pickle__gives_the_same_scores(fitted):
    copy = pickle.loads(pickle.dumps(fitted))
    assert copy.predict(NEW) == fitted.predict(NEW)
    assert (copy.decision_function(NEW) == fitted.decision_function(NEW)).all()
    again = clone(fitted).fit(BAGS, LISTS).partial_fit(NEW, NEW_MARKS)
    assert same_weights(copy.partial_fit(NEW, NEW_MARKS), again)


def test_model__saved_is_what_the_library_reads(fitted, tmp_path):
    fitted.model_.save(tmp_path / "model.safetensors")
    loaded = sm.load_model(tmp_path / "model.safetensors")
    assert loaded.label_names == tuple(NAMES)
    predictions = sm.predict(loaded, NEW)
    assert [tuple(NAMES[own].tolist()) for own in predictions.labels] == fitted.predict(NEW)


# Forms of bags and labels


def object_array(bags):
    out = np.empty(len(bags), object)
    out[:] = bags
    return out


def test_fit__takes_lists_tuples_and_object_arrays_alike(fitted):
    for bags in (tuple(BAGS), object_array(BAGS), [bag.tolist() for bag in BAGS]):
        assert same_weights(sm.MIMLfast(**SMALL, seed=3).fit(bags, LISTS), fitted)


def test_fit__takes_a_3d_array_as_bags_of_as_many_rows():
    cube = np.random.default_rng(1).normal(size=(80, 3, 4))
    marks = cube.max(axis=1)[:, :3] > 0.8
    by_cube = sm.MIMLfast(**SMALL).fit(cube, marks)
    for bags in (list(cube), cube.astype(object)):
        assert same_weights(by_cube, sm.MIMLfast(**SMALL).fit(bags, marks))
    assert (by_cube.key_instances(cube) == by_cube.key_instances(list(cube))).all()


def test_fit__takes_a_matrix_as_bags_of_one_row_each():
    rows = np.random.default_rng(1).normal(size=(80, 4))
    marks = rows[:, :3] > 0
    by_rows = sm.MIMLfast(**SMALL).fit(rows, marks)
    assert same_weights(by_rows, sm.MIMLfast(**SMALL).fit([row[None] for row in rows], marks))
    assert not by_rows.key_instances(rows).any()


def as_csr(bags, kind=sparse.csr_matrix):
    return [kind(np.where(np.abs(bag) > 0.3, bag, 0)) for bag in bags]


@pytest.mark.parametrize("lift", ["none", "context:mean"])
def test_fit__takes_sparse_bags_of_any_format(lift):
    by_csr = sm.MIMLfast(**SMALL, lift=lift).fit(as_csr(BAGS), MARKS)
    for kind in (sparse.coo_matrix, sparse.csc_matrix, sparse.csr_array):
        assert same_weights(by_csr, sm.MIMLfast(**SMALL, lift=lift).fit(as_csr(BAGS, kind), MARKS))
    dense = [bag.toarray() for bag in as_csr(NEW)]
    close = by_csr.decision_function(dense)
    np.testing.assert_allclose(by_csr.decision_function(as_csr(NEW)), close, rtol=1e-4, atol=1e-5)


def test_fit__adds_up_values_of_sparse_bags_that_come_twice_and_leaves_the_bags_alone():
    twice = sparse.csr_matrix((np.array([1.0, 2.0, 5.0]), [1, 1, 0], [0, 2, 3]), shape=(2, 3))
    bags, marks = [twice, *as_csr([bag[:, :3] for bag in BAGS])], np.vstack([MARKS[:1], MARKS])
    model = sm.MIMLfast(**SMALL).fit(bags, marks)
    model.predict(twice)
    assert twice.nnz == 3
    added = sparse.csr_matrix(np.array([[0, 3.0, 0], [5, 0, 0]]))
    assert (model.decision_function([twice]) == model.decision_function([added])).all()


@settings(max_examples=10)
@given(data=st.data())
def test_labels__say_the_same_in_every_form(data):
    n = data.draw(st.integers(10, 30))
    row = st.lists(st.booleans(), min_size=4, max_size=4)
    marks = np.array(data.draw(st.lists(row, min_size=n, max_size=n)))
    marks[0], marks[1] = [True, True, False, False], [False, False, True, True]
    numbers = [np.flatnonzero(own).tolist() for own in marks]
    backwards = [own[::-1] for own in numbers]
    forms = [marks, marks.astype(float), sparse.csr_matrix(marks), sparse.coo_array(marks)]
    forms += [numbers, backwards, [set(own) for own in numbers], object_array(numbers)]
    forms += [[np.array(own) for own in numbers], [[str(i) for i in own] for own in numbers]]
    models = [sm.MIMLfast(shared_dim=4, epochs=1).fit(BAGS[:n], form) for form in forms]
    for model, form in zip(models, forms, strict=True):
        assert same_weights(model, models[0])
        assert model.score(BAGS[:n], form) == models[0].score(BAGS[:n], marks)


def test_predict__answers_in_the_form_of_the_labels(fitted):
    by_marks = sm.MIMLfast(**SMALL, seed=3).fit(BAGS, MARKS)
    predicted = by_marks.predict(NEW)
    assert predicted.dtype == np.int64
    assert predicted.shape == NEW_MARKS.shape
    assert by_marks.classes_.tolist() == [0, 1, 2, 3, 4]
    assert fitted.predict(NEW) == [tuple(NAMES[row == 1].tolist()) for row in predicted]
    by_sparse = sm.MIMLfast(**SMALL, seed=3).fit(BAGS, sparse.csr_matrix(MARKS))
    assert (by_sparse.predict(NEW).toarray() == predicted).all()
    numbers = [np.flatnonzero(row) + 10 for row in MARKS]
    by_numbers = sm.MIMLfast(**SMALL, seed=3).fit(BAGS, numbers)
    assert by_numbers.classes_.tolist() == [10, 11, 12, 13, 14]
    assert by_numbers.predict(NEW) == [
        tuple((np.flatnonzero(row) + 10).tolist()) for row in predicted
    ]


def test_predict__gives_one_label_a_bag_where_each_had_one():
    first = NAMES[MARKS.argmax(axis=1)]
    model = sm.MIMLfast(**SMALL).fit(BAGS, first)
    predicted = model.predict(NEW)
    assert predicted.shape == (len(NEW),)
    best = model.decision_function(NEW).argmax(axis=1)
    assert predicted.tolist() == model.classes_[best].tolist()
    assert model.score(BAGS, first.tolist()) == model.score(BAGS, [[name] for name in first])


def test_fit__few_bags_or_one_label_hold_none_out():
    few = sm.MIMLfast(**SMALL, validation=0.1).fit(BAGS[:3], LISTS[:3])
    one = sm.MIMLfast(**SMALL, validation=0.1).fit(BAGS, MARKS[:, :1])
    many = sm.MIMLfast(**SMALL, validation=0.1).fit(BAGS, MARKS)
    shares = [model.model_.settings["validation"] for model in (few, one, many)]
    assert shares == [0.0, 0.0, 0.1]
    assert one.predict(NEW).shape == (len(NEW), 1)


# What it says


def test_scores__are_those_of_the_library(fitted):
    predictions = sm.predict(fitted.model_, NEW)
    raw = predictions.scores.astype(np.float64) - predictions.dummy_score[:, None]
    assert (fitted.decision_function(NEW) == raw).all()
    keys, subs = fitted.key_instances(NEW), fitted.key_subconcepts(NEW)
    bags, labels = np.nonzero(predictions.predicted)
    assert keys[bags, labels].tolist() == predictions.row_indices.tolist()
    assert subs[bags, labels].tolist() == predictions.subconcept_indices.tolist()
    assert keys.shape == subs.shape == (len(NEW), len(NAMES))


def test_key_instances__give_the_score_alone(fitted):
    scores = sm.predict(fitted.model_, NEW).scores
    for bag, rows in enumerate(fitted.key_instances(NEW)):
        alone = sm.predict(fitted.model_, [NEW[bag][[row]] for row in rows]).scores
        assert (np.diag(alone) == scores[bag]).all()


def test_predict__is_where_the_decision_is_above_zero():
    model = sm.MIMLfast(**SMALL, min_labels=0).fit(BAGS, MARKS)
    assert (model.predict(NEW) == (model.decision_function(NEW) > 0)).all()
    model.set_params(rule="top-r", min_labels=None).fit(BAGS, MARKS)
    assert set(model.predict(NEW).sum(axis=1)) == {model.model_.rule.r}


def test_score__is_label_ranking_average_precision(fitted):
    lists = [NAMES[row == 1] for row in NEW_MARKS]
    precision = fitted.score(NEW, lists)
    oracle = label_ranking_average_precision_score(NEW_MARKS, fitted.decision_function(NEW))
    assert precision == pytest.approx(oracle, abs=1e-12)
    held = MemoryBags(BLOCK.slice(200, 260), label_names=NAMES.tolist())
    assert precision == sm.evaluate(fitted.model_, held, threads=1)["average_precision"]


def test_scores__of_many_labels_are_joined_over_blocks(fitted, monkeypatch):
    before = fitted.decision_function(NEW), fitted.score(NEW, NEW_MARKS)
    monkeypatch.setattr(module, "BLOCK_BYTES", "1kB")
    assert (fitted.decision_function(NEW) == before[0]).all()
    assert fitted.score(NEW, NEW_MARKS) == before[1]


# In the tools of scikit-learn


@pytest.mark.parametrize("y", [LISTS, [set(own) for own in LISTS], MARKS, sparse.csr_matrix(MARKS)])
def test_grid_search__takes_labels_in_every_form(y):
    grid = {"shared_dim": np.array([2, 8]), "average": np.array([True])}
    search = GridSearchCV(sm.MIMLfast(**SMALL), grid, cv=2, error_score="raise").fit(BAGS, y)
    assert search.best_params_["shared_dim"] in (2, 8)
    best = search.best_estimator_
    assert search.best_estimator_.model_.shared_dim == search.best_params_["shared_dim"]
    assert search.score(BAGS, y) == best.score(BAGS, y)


def test_cross_validation__scores_by_decisions_and_predictions():
    by_decision = make_scorer(
        label_ranking_loss, response_method="decision_function", greater_is_better=False
    )
    model = sm.MIMLfast(**SMALL)
    for scoring in (None, by_decision, "f1_micro"):
        scores = cross_val_score(model, BAGS, MARKS, cv=2, scoring=scoring, error_score="raise")
        assert np.isfinite(scores).all()
    decisions = cross_val_predict(model, BAGS, MARKS, cv=2, method="decision_function")
    assert decisions.shape == MARKS.shape


def root(bags):
    return [np.cbrt(bag) for bag in bags]


def test_pipeline__hands_bags_from_step_to_step():
    pipe = make_pipeline(FunctionTransformer(root), sm.MIMLfast(**SMALL)).fit(BAGS, LISTS)
    alone = sm.MIMLfast(**SMALL).fit(root(BAGS), LISTS)
    assert pipe.predict(NEW) == alone.predict(root(NEW))
    assert pipe.score(BAGS, LISTS) == alone.score(root(BAGS), LISTS)
    assert (cross_val_score(pipe, BAGS, LISTS, cv=2, error_score="raise") > 0).all()
    assert pipe.set_params(mimlfast__subconcepts=3)[-1].subconcepts == 3


# Going on


def test_partial_fit__learns_a_little_more_with_every_pass():
    model = sm.MIMLfast(shared_dim=8, subconcepts=2, init="random")
    scores = []
    for _ in range(6):
        for start in (0, 100):
            part = slice(start, start + 100)
            model.partial_fit(BAGS[part], LISTS[part], classes=NAMES[::-1])
        scores.append(model.score(BAGS, LISTS))
    assert scores[-1] > scores[0] + 0.05
    assert scores[-1] > 0.9
    assert model.classes_.tolist() == NAMES.tolist()


def test_partial_fit__takes_the_start_from_the_bags_of_the_first_pass():
    model = sm.MIMLfast(shared_dim=8, init="means", loss="pairs").partial_fit(BAGS, MARKS)
    assert model.model_.settings["init"] == "means"
    model.partial_fit(BAGS, MARKS)
    assert "init" not in model.model_.settings
    assert model.model_.settings["loss"] == "pairs"


def test_partial_fit__begins_as_one_epoch_without_validation():
    by_pass = sm.MIMLfast(shared_dim=8).partial_fit(BAGS, MARKS)
    by_epoch = sm.MIMLfast(shared_dim=8, epochs=1, validation=0.0).fit(BAGS, MARKS)
    assert same_weights(by_pass, by_epoch)
    # A second pass over the same bags makes other draws.
    config = TrainConfig(shared_dim=8, epochs=1, validation=0.0, seed=1)
    held = MemoryBags(BLOCK.slice(0, 200))
    second = sm.train(held, config, start=by_pass.model_)
    assert (by_pass.partial_fit(BAGS, MARKS).model_.labels == second.labels).all()
    # And fit forgets all passes.
    by_pass.set_params(epochs=1, validation=0.0).fit(BAGS, MARKS)
    assert same_weights(by_pass, by_epoch)


def test_partial_fit__decides_the_rule_by_all_bags():
    bare = np.zeros_like(MARKS[:1])
    model = sm.MIMLfast(**SMALL).fit(BAGS, MARKS)
    assert model.model_.rule.min_labels == 1
    model.partial_fit(BAGS[:50], np.vstack([bare, MARKS[1:50]]))
    model.partial_fit(BAGS[:50], MARKS[:50])
    assert model.model_.rule.min_labels == 0


def test_partial_fit__keeps_to_its_labels_and_features():
    model = sm.MIMLfast(**SMALL)
    with pytest.raises(StreammimlError, match="first partial_fit needs classes="):
        model.partial_fit(BAGS, LISTS)
    with pytest.raises(StreammimlError, match="classes have a label that is NoneType"):
        model.partial_fit(BAGS, LISTS, classes=[None, "lake"])
    with pytest.raises(StreammimlError, match=r"bag 0 has the label '\w+', which is none of"):
        model.partial_fit(BAGS, LISTS, classes=["lake"])
    model.partial_fit(BAGS, LISTS, classes=NAMES.tolist())
    with pytest.raises(StreammimlError, match="classes lacks 'rock', one of the 5 labels of the"):
        model.partial_fit(BAGS, LISTS, classes=["lake"])
    with pytest.raises(StreammimlError, match="bag 0 has the label 'moon', which is none"):
        model.partial_fit(BAGS[:1], [["moon"]])
    with pytest.raises(StreammimlError, match="X has 3 features, but MIMLfast is expecting 6"):
        model.partial_fit([bag[:, :3] for bag in BAGS], LISTS)


@pytest.mark.parametrize("form", ["lists", "matrix"])
def test_partial_fit__takes_a_new_label_and_keeps_what_it_knows_of_the_others(form):
    model, old = sm.MIMLfast(shared_dim=8, subconcepts=1), NAMES[1:]
    known = [[name for name in names if name != "lake"] for names in LISTS]
    for _ in range(6):
        model.partial_fit(BAGS, MARKS[:, 1:] if form == "matrix" else known, classes=old)
    assert model.classes_.tolist() == old.tolist()
    before = model.model_.labels.copy()
    marks = MARKS[:, [1, 2, 3, 4, 0]]
    y = marks if form == "matrix" else LISTS
    model.partial_fit(BAGS, y, classes=NAMES)
    # New labels are appended: they come first in the alphabet here.
    assert model.classes_.tolist() == [*old.tolist(), "lake"]
    assert model.model_.n_labels == 5
    after = model.model_.labels[:4]
    assert np.corrcoef(before[:4].ravel(), after.ravel())[0, 1] > 0.8
    for _ in range(8):
        model.partial_fit(BAGS, y)
    assert model.score(NEW, NEW_MARKS[:, [1, 2, 3, 4, 0]]) > 0.7
    assert model.decision_function(NEW).shape == (60, 5)


def test_n_iter__counts_passes():
    model = sm.MIMLfast(**SMALL).fit(BAGS, MARKS)
    assert model.n_iter_ == 3
    assert sm.MIMLfast(shared_dim=8, max_steps=250).fit(BAGS, MARKS).n_iter_ == 2
    assert model.partial_fit(BAGS, MARKS).n_iter_ == 2
    assert model.fit(BAGS, MARKS).n_iter_ == 3


def test_n_iter__is_that_of_the_first_restart():
    early = {**SMALL, "epochs": 60, "validation": 0.3, "patience": 1}
    alone, among = (
        [
            sm.MIMLfast(**early, seed=seed, restarts=count).fit(BAGS, MARKS).n_iter_
            for seed in range(4)
        ]
        for count in (1, 2)
    )
    assert alone == among


# Names of data frames

COLUMNS = [f"f{number}" for number in range(6)]


def frames(bags, columns=COLUMNS):
    return [pd.DataFrame(bag, columns=columns) for bag in bags]


def test_names__of_data_frames_are_kept(fitted):
    y = pd.DataFrame(MARKS, columns=NAMES)
    model = sm.MIMLfast(**SMALL, seed=3).fit(frames(BAGS), y)
    assert model.feature_names_in_.tolist() == COLUMNS
    assert model.feature_names_in_.dtype == object
    assert model.classes_.tolist() == NAMES.tolist()
    assert same_weights(model, fitted)
    assert not hasattr(fitted, "feature_names_in_")
    np.testing.assert_array_equal(model.predict(frames(NEW)), model.predict(NEW))
    assert model.model_.label_names == tuple(NAMES)
    model.partial_fit(BAGS, y)
    assert model.feature_names_in_.tolist() == COLUMNS
    model.fit(BAGS, MARKS)
    assert not hasattr(model, "feature_names_in_")
    assert model.classes_.tolist() == [0, 1, 2, 3, 4]
    numbered = sm.MIMLfast(**SMALL).fit([pd.DataFrame(bag) for bag in BAGS], pd.DataFrame(MARKS))
    assert not hasattr(numbered, "feature_names_in_")
    assert numbered.classes_.tolist() == [0, 1, 2, 3, 4]


def test_names__that_differ_are_refused():
    y, model = pd.DataFrame(MARKS, columns=NAMES), sm.MIMLfast(**SMALL)
    turned = [COLUMNS[1], COLUMNS[0], *COLUMNS[2:]]
    mixed = [*frames(BAGS[:3]), *frames(BAGS[3:], turned)]
    with pytest.raises(StreammimlError, match="column 0 of bag 3 is 'f1' and that of bag 0 'f0'"):
        model.fit(mixed, y)
    model.fit(frames(BAGS), y)
    for method in (model.predict, model.decision_function, lambda bags: model.partial_fit(bags, y)):
        with pytest.raises(
            StreammimlError, match="have a column 'f1' where the bags that MIMLfast"
        ):
            method(frames(BAGS, turned))
    with pytest.raises(StreammimlError, match="column 0 of y is 'wind' and label 0 is 'lake'"):
        model.score(frames(BAGS), y[NAMES[::-1]])


# One array that may be one bag


def test_fit__asks_about_an_array_with_the_labels_of_one_bag():
    for bags in (BAGS[0], pd.DataFrame(BAGS[0]), sparse.csr_matrix(BAGS[0])):
        for method in ("fit", "partial_fit"):
            with pytest.raises(StreammimlError, match=r"if the array is one bag, write \[X\]"):
                getattr(sm.MIMLfast(**SMALL), method)(bags, MARKS[:1])


def test_predict__asks_about_an_array_if_it_was_fitted_to_longer_bags(fitted):
    bag = next(bag for bag in NEW if len(bag) > 1)
    line = rf"one array of {len(bag)} rows is taken as {len(bag)} bags of one row; .* write \[X\]"
    for method in (fitted.predict, fitted.decision_function):
        with pytest.warns(UserWarning, match=line):
            assert len(method(bag)) == len(bag)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(fitted.predict(bag[:, None])) == len(bag)
        assert len(fitted.predict([bag])) == 1
        rows = np.concatenate(BAGS)[:200]
        single = sm.MIMLfast(**SMALL).fit(rows, MARKS)
        assert len(single.predict(rows[:7])) == 7


# Input that is refused


def changed(number, bag):
    return [*BAGS[:number], bag, *BAGS[number + 1 :]]


def with_value(number, value):
    bag = BAGS[number].astype(np.float64)
    bag[1, 2] = value
    return changed(number, bag)


BAD_BAGS = {
    "there are no bags": [],
    "bag 7 has no rows; leave it out": changed(7, np.empty((0, 6))),
    "bag 7 has 5 features and bag 0 has 6": changed(7, np.ones((2, 5))),
    r"bag 7 has shape \(6,\), expected \(rows, features\)": changed(7, np.ones(6)),
    "bag 7 is sparse and bag 0 is not": changed(7, sparse.csr_matrix(BAGS[7])),
    "bag 7 cannot be made an array: .*inhomogeneous": changed(7, [[1, 2], [3]]),
    "bag 7, row 1: value is nan": with_value(7, np.nan),
    "bag 7, row 1: value is inf": with_value(7, np.inf),
    "bag 7, row 1: 1e.300 does not fit into float32": with_value(7, 1e300),
    "bag 7 holds complex64 values. Complex data not supported": changed(7, BAGS[7] * 1j),
    "bag 7 holds <U32 values, expected numbers": changed(7, BAGS[7].astype(str)),
    "bag 7 holds values that are not numbers: .* not 'dict'": changed(7, np.full((1, 6), {})),
    "bags hold complex128 values. Complex data not supported": np.ones((200, 6)) * 1j,
    "bags are an array of 1 dimensions": np.arange(200.0),
    "bags are an array of 4 dimensions": np.ones((2, 2, 2, 2)),
    r"bag 0 has 0 feature\(s\)": np.ones((200, 2, 0)),
}


@pytest.mark.parametrize("match", BAD_BAGS)
def test_bags__that_cannot_be_used_are_refused_by_every_method(match, fitted):
    bags = BAD_BAGS[match]
    for use in (
        lambda: sm.MIMLfast(**SMALL).fit(bags, LISTS),
        lambda: sm.MIMLfast(**SMALL).partial_fit(bags, MARKS),
        lambda: fitted.predict(bags),
        lambda: fitted.score(bags, LISTS),
    ):
        with pytest.raises(StreammimlError, match=match) as caught:
            use()
        assert "\n" not in str(caught.value)


def test_bags__of_other_features_are_refused_after_fitting(fitted):
    other = [bag[:, :5] for bag in NEW]
    match = "bag 0 of X has 5 features, but MIMLfast is expecting 6 features as input"
    for method in ("predict", "decision_function", "key_instances", "key_subconcepts"):
        with pytest.raises(StreammimlError, match=match):
            getattr(fitted, method)(other)
    with pytest.raises(StreammimlError, match=match):
        fitted.score(other, NEW_MARKS)


def test_bags__sparse_ones_are_refused_by_a_model_that_shifts_rows():
    model = sm.MIMLfast(**SMALL, scale="standard").fit(BAGS, MARKS)
    with pytest.raises(StreammimlError, match=r"fitted on dense bags and these are sparse; give"):
        model.predict(as_csr(NEW))


def with_labels(number, labels):
    return [*LISTS[:number], labels, *LISTS[number + 1 :]]


BAD_LABELS = {
    "requires y to be passed": None,
    "there are 200 bags, and labels for 199": LISTS[:-1],
    "there are 200 bags, and labels for 198": MARKS[:-2],
    "y holds 2, and an indicator matrix holds 0 and 1": MARKS * 2,
    "y holds nan, and an indicator": np.where(MARKS == 1, np.nan, 0),
    "y is a matrix of <U4, expected 0 and 1; give names as lists": np.tile(NAMES, (200, 1)),
    "bag 3 has a label twice: .'lake', 'lake'.*np.array": with_labels(3, ["lake", "lake"]),
    "labels of bag 3 are 'lake' and those of bag 0 .* list for every": with_labels(3, "lake"),
    "bag 3 has a label that is NoneType": with_labels(3, [None]),
    "bag 3 has a label that is 0.5": with_labels(3, [0.5]),
    "bag 3 has a label that is bool; .* indicator matrix must be an array": with_labels(3, [True]),
    "labels are both names, such as 'lake', and numbers, such as 4": with_labels(3, [4]),
    "every bag has all 2 labels, .* indicator matrix must be an array": [[0, 1], [1, 0]] * 100,
    "has no labels to learn from": np.zeros_like(MARKS),
}


@pytest.mark.parametrize("match", BAD_LABELS)
def test_labels__that_cannot_be_learned_are_refused(match):
    with pytest.raises(StreammimlError, match=match) as caught:
        sm.MIMLfast(**SMALL).fit(BAGS, BAD_LABELS[match])
    assert "\n" not in str(caught.value)


def test_score__refuses_labels_that_were_not_fitted(fitted):
    with pytest.raises(StreammimlError, match="bag 1 has the label 'moon', which is none"):
        fitted.score(NEW[:2], [["lake"], ["moon"]])
    with pytest.raises(StreammimlError, match="y has 4 columns for 5 labels"):
        fitted.score(NEW, NEW_MARKS[:, :4])
    with pytest.raises(StreammimlError, match="there are 2 bags, and labels for 1"):
        fitted.score(NEW[:2], [["lake"]])


@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ({"shared_dim": 0}, "shared_dim must be a whole number at least 1, got 0"),
        ({"rule": "best"}, "no rule is called 'best'"),
        ({"memory": "10kB"}, "--memory"),
    ],
)
def test_fit__checks_parameters_and_memory(setting, match):
    with pytest.raises(StreammimlError, match=match):
        sm.MIMLfast(**setting).fit(BAGS, MARKS)


# Quality


def test_mimlfast__ranks_digits_far_better_than_regression_on_mean_rows():
    bags, marks = digits(600, half=0)
    test_bags, test_marks = digits(400, half=1)
    model = sm.MIMLfast(shared_dim=30, subconcepts=3, epochs=20).fit(bags, marks)
    ours = label_ranking_loss(test_marks, model.decision_function(test_bags))
    peer = min(regression_loss(bags, marks, test_bags, test_marks, c) for c in (1, 10, 100))
    assert ours < 0.5 * peer
    assert peer < 0.1, "the peer has learned too"


def digits(n_bags, *, half):
    block, _ = digit_bags(n_bags, seed=1, half=half)
    marks = np.zeros((n_bags, 10), np.int64)
    for bag in range(n_bags):
        marks[bag, block.labels_of(bag)] = 1
    return [block.rows_of(bag) for bag in range(n_bags)], marks


def regression_loss(bags, marks, test_bags, test_marks, c):
    means, test_means = (
        np.array([bag.mean(axis=0) / 16 for bag in part]) for part in (bags, test_bags)
    )
    model = OneVsRestClassifier(LogisticRegression(C=c, solver="liblinear")).fit(means, marks)
    return label_ranking_loss(test_marks, model.decision_function(test_means))
