"""Sheets of heat maps: drawn for predicted labels of stores with coordinates, always the same."""

import sys
from dataclasses import replace

import numpy as np
import pytest

import streammiml as sm
from streammiml.errors import StreammimlError
from streammiml.model import LabelRule
from tests.measure.models import made_model
from tests.stores import content, made_block, write_store

sheets = pytest.importorskip("streammiml.tell.map_sheets", reason="matplotlib is not installed")
MODEL = made_model(rule=LabelRule(), subconcepts=2)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    block = made_block(40)
    rows = np.arange(block.n_rows)
    kept = {"coords": np.column_stack([rows % 9, rows % 5]), "seconds": rows * 0.5}
    path = tmp_path_factory.mktemp("maps") / "x.zarr"
    return write_store(path, replace(block, kept=kept), n_labels=4)


def names(folder):
    return sorted(path.name for path in folder.glob("*.png"))


def test_explain__maps_the_typical_bags_of_each_label(store, tmp_path):
    summary = sm.explain(MODEL, store, tmp_path / "out")
    held = [label["label"] for label in summary["labels"] if label["n_bags"]]
    assert names(tmp_path / "out") == [f"heat_maps-{label:04d}.png" for label in held]
    sm.explain(MODEL, store, tmp_path / "again")
    assert content(tmp_path / "out") == content(tmp_path / "again")
    both = sm.explain(MODEL, store, tmp_path / "both", image="1x3", coordinates="seconds")
    assert both == summary
    assert len(names(tmp_path / "both")) == 2 * len(held) + 1
    sm.explain(MODEL, store, tmp_path / "none", coordinates="none")
    assert not names(tmp_path / "none")


def test_typical_bags__are_those_with_the_highest_scores(store, tmp_path):
    summary = sm.explain(MODEL, store, tmp_path / "out", coordinates="none")
    label = max(summary["labels"], key=lambda label: label["n_bags"])
    scores = sm.predict(MODEL, store.read(0, 40)).scores[:, label["label"]]
    predicted = sm.predict(MODEL, store.read(0, 40)).predicted[:, label["label"]]
    order = [bag for bag in np.argsort(-scores, kind="stable").tolist() if predicted[bag]]
    assert sheets.typical_bags(label) == order[:4]


def test_explain__draws_no_maps_without_matplotlib_unless_they_are_asked_for(
    store, tmp_path, monkeypatch
):
    for name in [*sys.modules]:
        if name.split(".")[0] == "matplotlib" or name.endswith(("_sheets", "map_sheets")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    sm.explain(MODEL, store, tmp_path / "out")
    assert not names(tmp_path / "out")
    with pytest.raises(StreammimlError, match=r"^pictures need matplotlib"):
        sm.explain(MODEL, store, tmp_path / "two", coordinates="coords")
