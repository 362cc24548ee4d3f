"""One pass that agrees with the three it stands for, however the bags are cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streammiml as sm
from streammiml.measure.metric import ScoredBlock
from streammiml.measure.survey import BINS, FARTHEST, PER_UNIT, margins_of, survey
from tests.measure.models import made_model
from tests.stores import made_block, write_store

MODEL = made_model(n_features=6, subconcepts=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("survey") / "x.zarr"
    return write_store(path, made_block(70, n_features=6), n_labels=4)


def test_survey__agrees_with_evaluate_and_explain(store, tmp_path):
    found = survey(MODEL, store, typical=3)
    assert found.figures == sm.evaluate(MODEL, store)
    said = sm.explain(MODEL, store, tmp_path / "out", typical=3)
    for label in said["labels"]:
        for concept in label["subconcepts"]:
            at = label["label"], concept["subconcept"]
            assert found.concepts.predicted[at] == concept["n_bags"]
            assert found.concepts.right[at] == concept["n_bags_with_label"]
            here = found.concepts.typical.at(at[0] * 3 + at[1])
            bags = [each["bag"] for each in concept["typical"]]
            assert found.concepts.typical.bag[here].tolist() == bags
    assert found.concepts.predicted.sum() == sum(label["n_bags"] for label in said["labels"])


@pytest.mark.parametrize("block_bytes", [200, 1000, 1 << 20])
def test_survey__does_not_depend_on_how_bags_are_cut(store, block_bytes):
    want = survey(MODEL, store, typical=2)
    got = survey(MODEL, store, typical=2, block_bytes=block_bytes, threads=2)
    assert got.figures == want.figures
    for one, other in zip(got.margins, want.margins, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(got.concepts.typical, want.concepts.typical, strict=True):
        np.testing.assert_array_equal(one, other)


def test_survey__margins_are_of_every_pair(store):
    found = survey(MODEL, store, typical=1)
    assert found.margins.carried.sum() == store.n_label_entries
    assert found.margins.others.sum() == store.n_bags * 4 - store.n_label_entries


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
    found = margins_of(block)
    (place,) = np.flatnonzero(found.carried + found.others)
    assert bool(found.carried.sum()) == carried
    assert (place >= BINS // 2) == (np.float32(score) > np.float32(dummy))
    over = float(np.float32(score)) - dummy
    if abs(over) < FARTHEST:
        assert (place - BINS // 2) / PER_UNIT < over <= (place + 1 - BINS // 2) / PER_UNIT
