"""One pass that agrees with the three it stands for, however the bags are cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streammiml as sm
from streammiml.measure.full_evaluation import BINS, FARTHEST, PER_UNIT, evaluate_fully, margins_of
from streammiml.measure.metric import ScoredBlock
from streammiml.measure.scoring import ScoreOptions
from tests.measure.models import made_model
from tests.stores import made_block, write_store

MODEL = made_model(n_features=6, subconcepts=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluate") / "x.zarr"
    return write_store(path, made_block(70, n_features=6), n_labels=4)


def test_evaluate_fully__agrees_with_evaluate_and_explain(store, tmp_path):
    evaluation = evaluate_fully(MODEL, store, typical=3)
    assert evaluation.figures == sm.evaluate(MODEL, store)
    explained = sm.explain(MODEL, store, tmp_path / "out", typical=3)
    for label in explained["labels"]:
        for concept in label["subconcepts"]:
            at = label["label"], concept["subconcept"]
            assert evaluation.subconcepts.predicted[at] == concept["n_bags"]
            assert evaluation.subconcepts.right[at] == concept["n_bags_with_label"]
            here = evaluation.subconcepts.typical.at(at[0] * 3 + at[1])
            bags = [entry["bag"] for entry in concept["typical"]]
            assert evaluation.subconcepts.typical.bag[here].tolist() == bags
    assert evaluation.subconcepts.predicted.sum() == sum(
        label["n_bags"] for label in explained["labels"]
    )


@pytest.mark.parametrize("block_bytes", [200, 1000, 1 << 20])
def test_evaluate_fully__does_not_depend_on_how_bags_are_cut(store, block_bytes):
    want = evaluate_fully(MODEL, store, typical=2)
    got = evaluate_fully(
        MODEL, store, typical=2, options=ScoreOptions(block_bytes=block_bytes, threads=2)
    )
    assert got.figures == want.figures
    for one, other in zip(got.margins, want.margins, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(got.subconcepts.typical, want.subconcepts.typical, strict=True):
        np.testing.assert_array_equal(one, other)


def test_evaluate_fully__margins_are_of_every_pair(store):
    evaluation = evaluate_fully(MODEL, store, typical=1)
    assert evaluation.margins.carried.sum() == store.n_label_entries
    assert evaluation.margins.others.sum() == store.n_bags * 4 - store.n_label_entries


@given(
    score=st.floats(-(2.0**99), 2.0**99, width=32) | st.integers(-300, 300).map(lambda n: n / 64),
    dummy=st.sampled_from([0.0, 0.5, -3.25]),
    carried=st.booleans(),
)
def test_margins__a_pair_lies_on_the_side_that_predictions_have_it(score, dummy, carried):
    labels = np.array([0] if carried else [], np.int32)
    block = ScoredBlock(
        scores=np.array([[score]], np.float32),
        dummy=np.array([dummy], np.float32),
        predicted=np.array([[score > dummy]]),
        label_offsets=np.array([0, len(labels)]),
        labels=labels,
    )
    margins = margins_of(block)
    (place,) = np.flatnonzero(margins.carried + margins.others)
    assert bool(margins.carried.sum()) == carried
    assert (place >= BINS // 2) == (np.float32(score) > np.float32(dummy))
    over = float(np.float32(score)) - dummy
    if abs(over) < FARTHEST:
        assert (place - BINS // 2) / PER_UNIT < over <= (place + 1 - BINS // 2) / PER_UNIT
