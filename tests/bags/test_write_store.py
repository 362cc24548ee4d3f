"""write_store: bags in memory come out of the store as they went in."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import streammiml as sm
from streammiml.bags import write_store as module
from streammiml.errors import StreammimlError
from tests.stores import BACKENDS

RNG = np.random.default_rng(2)
BAGS = [RNG.standard_normal((n, 3)).astype(np.float32) for n in (2, 1, 4)]
NAMES = [["sky"], [], ["sea", "sky"]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
def test_bags__come_out_as_they_went_in(tmp_path, backend, part_bytes, monkeypatch):
    monkeypatch.setattr(module, "PART_BYTES", part_bytes)
    store = sm.write_store(
        tmp_path / f"x.{backend}",
        BAGS,
        NAMES,
        ids=["a", "b", "c"],
        row_labels=[["sky", -1], [1], ["sea", 1, -1, 0]],
        feature_names=["x", "y", "z"],
    )
    assert [bag.id for bag in store] == ["a", "b", "c"]
    assert [bag.labels.tolist() for bag in store] == [[1], [], [0, 1]]
    for bag, rows in zip(store, BAGS, strict=True):
        np.testing.assert_array_equal(bag.rows, rows)
    assert store.read(0, 3).row_labels.tolist() == [1, -1, 1, 0, 1, -1, 0]
    assert (store.label_names, store.feature_names) == (["sea", "sky"], ["x", "y", "z"])


def test_forms__of_bags_and_labels_give_the_same_store(tmp_path):
    bags = RNG.integers(0, 3, (4, 2, 3)).astype(np.uint8)
    matrix = np.array([[0, 1], [1, 0], [1, 1], [0, 0]])
    want = sm.write_store(tmp_path / "a.zarr", bags, matrix).fingerprint
    assert sm.write_store(tmp_path / "b.zarr", list(bags), matrix > 0).fingerprint == want
    sparse_matrix = sparse.csr_matrix(matrix)
    assert sm.write_store(tmp_path / "c.zarr", bags, sparse_matrix).fingerprint == want
    of_rows = sm.write_store(tmp_path / "s.zarr", [sparse.csr_matrix(bag) for bag in bags], matrix)
    assert of_rows.sparse
    np.testing.assert_array_equal(of_rows[2].rows, bags[2])
    assert sm.write_store(tmp_path / "n.zarr", bags, None).n_labels == 0
    kinds = {"bool": "uint8", "int64": "float32", "float16": "float16", "float64": "float32"}
    for kind, stored in kinds.items():
        written = sm.write_store(tmp_path / f"{kind}.zarr", bags.astype(kind), matrix)
        assert written.dtype == stored


@pytest.mark.parametrize(
    ("bags", "more", "message"),
    [
        ([], {}, "there are no bags to write"),
        ([np.eye(2), sparse.eye(2).tocsr()], {}, "bag 1 is sparse, unlike bag 0; give bags of one"),
        ([np.eye(2), np.eye(3)], {}, r"bag 1 has shape \(3, 3\), expected \(rows, 2\)"),
        ([np.array([["a"]])] * 2, {}, "bags have values of type <U1, expected numbers"),
        ([np.eye(2)] * 2, {"ids": ["a"]}, "2 bags, but 1 ids"),
        ([np.eye(2)] * 2, {"ids": ["a", "a"]}, "bag id 'a' comes twice|bag ids? "),
        ([np.eye(2), np.full((1, 2), np.nan)], {}, "nan"),
        ([np.eye(2)] * 2, {"row_labels": [[1, 0]]}, "2 bags, but row labels for 1"),
        ([np.eye(2)] * 2, {"row_labels": [[1, 0], [1]]}, "bag 1 has 2 rows, but 1 row labels"),
        (
            [np.eye(2)] * 2,
            {"row_labels": [["x", 0], [1, 0]]},
            "bag 0 has a row of label 'x', which no bag has; name all labels by label_names",
        ),
        (
            [np.eye(2)] * 2,
            {"row_labels": [[1, 0], [np.nan, 1]]},
            "bag 1 has a row of label nan; labels of rows are names or whole numbers, −1 where unk",
        ),
        (
            [np.eye(2)] * 2,
            {"row_labels": [[0.9, 0], [1, 1]]},
            r"bag 0 has a row of label 0\.9; lab",
        ),
        ([np.eye(2)] * 2, {"row_labels": [[True, 0], [1, 1]]}, "bag 0 has a row of label True; l"),
        ([np.eye(2)] * 2, {"row_labels": [[None, 0], [1, 1]]}, "bag 0 has a row of label None; l"),
        ([np.eye(2)] * 2, {"row_labels": [[2**40, 0], [1, 1]]}, "bag 0 has a row of label 1099511"),
        (
            [np.eye(2)] * 2,
            {"row_labels": {"a": [1, 0], "b": [1, 1]}},
            "row_labels are a dict, expected the labels of each bag in the order of the bags",
        ),
    ],
)
def test_bags__that_cannot_be_written_are_refused(tmp_path, bags, more, message):
    with pytest.raises(StreammimlError, match=message):
        sm.write_store(tmp_path / "x.zarr", bags, [["a"], ["b"]], **more)
    assert not any(tmp_path.iterdir())


def test_killed_writer__resumes_only_with_the_same_bags(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PART_BYTES", 1)
    written = []

    def stop(self, part, block):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(part)
        return write_part(self, part, block)

    write_part = sm.BagWriter.write_part
    monkeypatch.setattr(sm.BagWriter, "write_part", stop)
    with pytest.raises(KeyboardInterrupt):
        sm.write_store(tmp_path / "x.zarr", BAGS, NAMES)
    with pytest.raises(StreammimlError, match="was begun with other settings or another source"):
        sm.write_store(tmp_path / "x.zarr", [bag + 1 for bag in BAGS], NAMES)
    monkeypatch.setattr(sm.BagWriter, "write_part", write_part)
    store = sm.write_store(tmp_path / "x.zarr", BAGS, NAMES)
    assert store.fingerprint == sm.write_store(tmp_path / "y.zarr", BAGS, NAMES).fingerprint


def test_indexed_labels__are_put_in_the_order_of_the_ids(tmp_path):
    labels = pd.DataFrame({"x": [0, 1], "y": [1, 1]}, index=["b", "a"])
    of_rows = pd.Series([[1, -1.0], np.array([0.0, 1.0])], index=["b", "a"])
    bags = [np.eye(2)] * 2
    store = sm.write_store(tmp_path / "x.zarr", bags, labels, ids=["a", "b"], row_labels=of_rows)
    assert [bag.labels.tolist() for bag in store] == [[0, 1], [1]]
    assert store.read(0, 2).row_labels.tolist() == [0, 1, 1, -1]
    with pytest.raises(StreammimlError, match="labels are a dict, expected the labels of each b"):
        sm.write_store(tmp_path / "y.zarr", bags, {"a": ["x"], "b": ["y"]}, ids=["a", "b"])
