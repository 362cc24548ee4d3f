"""Labels that --labels does not name: dropped and counted, or appended in an order of the scan."""

import json
import re

import numpy as np
import pandas as pd
import pytest

import streammiml as sm
from streammiml.errors import StreammimlError
from streammiml.verbs.main import run
from streammiml_tools.convert import convert
from streammiml_tools.convert.compare import compare
from streammiml_tools.convert.label_map import label_map
from streammiml_tools.convert.plan import ConvertConfig
from streammiml_tools.readers.base import Scan, SourceError, SourceOptions
from tests.tools.convert.cases import SMALL, said, stop_at_once

BAGS = [(f"b{i}", ["sea", "sky", "tree", "sun"][i % 4 :: 2]) for i in range(40)]
"""Ids and labels of bags: sea and tree, sky and sun, tree, sun, over and over."""


@pytest.fixture
def source(tmp_path):
    lines = [
        json.dumps({"id": name, "instances": [[i, 1], [i, 2]], "labels": labels,
                    "instance_labels": [labels[0], None]})
        for i, (name, labels) in enumerate(BAGS)
    ]  # fmt: skip
    (tmp_path / "d.jsonl").write_text("\n".join([*lines, ""]))
    return tmp_path / "d.jsonl"


def options(policy, *labels, **more):
    return SourceOptions(labels=labels, unknown_labels=policy, span_bytes=256, **more)


def names_in(store, bag):
    return [store.label_names[label] for label in store[bag].labels.tolist()]


def test_drop__leaves_labels_out_and_counts_them(source, tmp_path, capsys):
    (tmp_path / "names.txt").write_text("sky\nsun\nsea\n")
    words = ["convert", str(source), str(tmp_path / "x.zarr")]
    words += ["--labels", str(tmp_path / "names.txt"), "--unknown-labels", "drop"]
    assert run([*words, "--dry-run"]) == 0
    assert "1 label is not in --labels and dropped: tree" in said(capsys)[0]
    assert run(words) == 0
    out, err = said(capsys)
    assert "1 label is not in --labels and dropped: tree" in err
    assert "20 labels of 20 bags are not in --labels and were dropped" in out
    store = sm.open_store(tmp_path / "x.zarr")
    assert store.label_names == ["sky", "sun", "sea"]
    for bag, (_, labels) in enumerate(BAGS):
        assert sorted(names_in(store, bag)) == sorted({*labels} - {"tree"})
    # The row labels of a bag whose first label was dropped are unknown.
    assert store.read(2, 3).row_labels.tolist() == [-1, -1]
    assert store.read(0, 1).row_labels.tolist() == [2, -1]
    assert compare(tmp_path / "x.zarr", source, options("drop", "sky", "sun", "sea")).is_same


def test_append__puts_new_labels_after_the_given_ones(source, tmp_path):
    store = convert(source, tmp_path / "x.zarr", options=options("append", "old", "sun")).store
    assert store.label_names == ["old", "sun", "sea", "sky", "tree"]
    for bag, (_, labels) in enumerate(BAGS):
        assert sorted(names_in(store, bag)) == sorted(labels)


@pytest.mark.parametrize("policy", ["drop", "append"])
def test_unknown__the_result_is_the_same_on_workers_and_after_a_stop(source, tmp_path, policy):
    asked = options(policy, "sun", "sky")
    whole = convert(source, tmp_path / "whole.zarr", options=asked)
    spread = convert(source, tmp_path / "spread.zarr", options=asked, workers=2)
    stop_at_once(source, tmp_path / "resumed.zarr", options=asked)
    resumed = convert(source, tmp_path / "resumed.zarr", options=asked)
    for other in (spread, resumed):
        assert other.store.fingerprint == whole.store.fingerprint
        assert other.store.label_names == whole.store.label_names
        assert other.summary()["left_out"] == whole.summary()["left_out"]


def test_unknown__another_policy_does_not_resume(source, tmp_path):
    stop_at_once(source, tmp_path / "x.zarr", options=options("drop", "sun"))
    with pytest.raises(StreammimlError, match=r"begun with other options \(--unknown-labels\)"):
        convert(source, tmp_path / "x.zarr", options=options("append", "sun"))


def test_refuse__leaves_the_plan_as_it_was_before_there_was_a_choice(source, tmp_path):
    stop_at_once(source, tmp_path / "x.zarr")
    plan = json.loads((tmp_path / ".x.zarr.partial" / "plan.json").read_bytes())
    assert "unknown_labels" not in plan["options"]
    assert convert(source, tmp_path / "x.zarr", options=SMALL).store.n_bags == 40


def test_unknown__goes_with_filter_and_shuffle(source, tmp_path):
    settings = ConvertConfig(shuffle=True, where_label=("tree",))
    asked = options("append", "sun")
    store = convert(source, tmp_path / "x.zarr", settings, asked).store
    assert store.n_bags == 20
    assert all("tree" in names_in(store, bag) for bag in range(20))
    with pytest.raises(
        SourceError, match=r"--where-label tree: there is no such label; known: sun"
    ):
        convert(source, tmp_path / "y.zarr", settings, options("drop", "sun"))


def test_drop__with_group_counts_each_label_of_a_bag_once(tmp_path):
    lines = [f"b{i % 3},{i},{'sea;sky' if i % 3 else 'sea'}" for i in range(12)]
    (tmp_path / "d.csv").write_text("\n".join(["bag,x,labels", *lines, ""]))
    converted = convert(
        tmp_path / "d.csv", tmp_path / "x.zarr", options=options("drop", "sea", group=True)
    )
    left_out = converted.summary()["left_out"]
    assert (left_out["unknown_labels"], left_out["with_unknown_labels"]) == (2, 2)
    assert converted.store.n_bags == 3
    assert converted.store.n_labels == 1


def test_unknown__goes_with_a_table_of_labels_and_from_python(tmp_path):
    rows = pd.DataFrame({"doc": ["a", "a", "b"], "x": [1.0, 2.0, 3.0]})
    topics = pd.DataFrame({"doc": ["a", "b"], "topics": [["sea", "sky"], ["sky"]]})
    how = {"bag": "doc", "labels": topics, "unknown_labels": "append", "label_names": ["sky"]}
    first = sm.convert(rows, tmp_path / "x.zarr", **how).store
    assert first.label_names == ["sky", "sea"]
    assert [bag.labels.tolist() for bag in first] == [[0, 1], [0]]
    # The names of a store, given as a path and as itself.
    for number, names in enumerate((tmp_path / "x.zarr", first)):
        how |= {"label_names": names, "unknown_labels": "refuse"}
        again = sm.convert(rows, tmp_path / f"{number}.zarr", **how).store
        assert again.fingerprint == first.fingerprint
    with pytest.raises(StreammimlError, match="label_names are a int without names; give a list"):
        sm.convert(rows, tmp_path / "z.zarr", bag="doc", labels=topics, label_names=3)
    with pytest.raises(StreammimlError, match="'sea' is not known; known: sky; add it to --labels"):
        sm.convert(rows, tmp_path / "z.zarr", bag="doc", labels=topics, label_names=["sky"])


def test_drop__labels_by_number_beyond_the_names_go(tmp_path):
    (tmp_path / "d.csv").write_text("bag,x,labels\na,1,0;2\nb,2,1\nc,3,2\n")
    store = convert(
        tmp_path / "d.csv", tmp_path / "x.zarr", options=options("drop", "sky", "sea")
    ).store
    assert [bag.labels.tolist() for bag in store] == [[0], [1], []]
    message = r"d.csv: label 2 is not among the numbers 0 to 1, and a number has no name to append"
    with pytest.raises(SourceError, match=message):
        convert(tmp_path / "d.csv", tmp_path / "y.zarr", options=options("append", "sky", "sea"))
    with pytest.raises(SourceError, match=r"labels are numbers, and so are names of --labels \(7"):
        convert(tmp_path / "d.csv", tmp_path / "y.zarr", options=options("drop", "7", "0"))


def test_drop__of_all_labels_is_refused(source, tmp_path):
    with pytest.raises(SourceError, match=r"none of the labels is named by --labels: sea, sky"):
        convert(source, tmp_path / "x.zarr", options=options("drop", "car"))


def test_unknown__needs_names_and_a_known_policy():
    with pytest.raises(StreammimlError, match="--unknown-labels drop needs --labels, which names"):
        SourceOptions(unknown_labels="drop")
    with pytest.raises(StreammimlError, match="no policy for unknown labels is called 'keep'"):
        SourceOptions(unknown_labels="keep", labels=("a",))


def test_label_map__refusing_is_left_to_the_reader():
    scan = Scan(spans=(), n_features=1, label_names=("a", "b"))
    assert label_map(scan, SourceOptions(labels=("a",)), "d") is None
    mapped = label_map(scan, options("append", "b"), "d")
    assert mapped.names == ("b", "a")
    np.testing.assert_array_equal(mapped.numbers, [1, 0])
    assert re.match(r"1 label is not in --labels and appended after the 1: a", mapped.note)
    assert label_map(scan, options("append", "b", "a"), "d").note is None
