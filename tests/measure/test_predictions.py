import sys
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.errors import StreammimlError
from streammiml.measure.predict import predict
from streammiml.measure.predictions import first_labels
from tests.measure.models import made_model
from tests.stores import made_block, plain, write_store

NAMES = ("sea", "sky", "sun", "tree")
BLOCK = plain(made_block(12))


@given(
    n=st.integers(0, 6), n_labels=st.integers(1, 7), k=st.integers(1, 9), seed=st.integers(0, 99)
)
def test_first_labels__are_sorted_by_score_then_number(n, n_labels, k, seed):
    scores = np.random.default_rng(seed).integers(0, 4, (n, n_labels)).astype(np.float32)
    for row, labels in zip(scores, first_labels(scores, k), strict=True):
        want = sorted(range(n_labels), key=lambda label, s=row: (-s[label], label))
        assert labels.tolist() == want[:k]


@pytest.mark.parametrize("names", [NAMES, None])
def test_to_arrow__is_the_table_of_the_folder(tmp_path, names):
    model = made_model(label_names=names)
    store = write_store(tmp_path / "x.zarr", BLOCK, n_labels=4, label_names=names)
    predict(model, store, tmp_path / "out")
    assert predict(model, BLOCK).to_arrow() == pq.read_table(tmp_path / "out")


def test_to_arrow__of_no_bags_has_the_same_columns():
    model = made_model(label_names=NAMES)
    none = predict(model, []).to_arrow()
    assert none.schema == predict(model, BLOCK).to_arrow().schema
    assert none.num_rows == 0


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_frames__hold_the_records_of_the_table(package, monkeypatch):
    pytest.importorskip(package)
    predictions = predict(made_model(label_names=NAMES), BLOCK)
    frame = getattr(predictions, f"to_{package}")()
    assert type(frame).__module__.startswith(package)
    table = predictions.to_arrow()
    assert list(frame.columns) == table.column_names
    for name in ("scores", "label_names", "key_instances"):
        assert [list(cell) for cell in frame[name]] == table[name].to_pylist()
    monkeypatch.setitem(sys.modules, package, None)
    message = f"^to_{package} needs {package}: pip install {package}$"
    with pytest.raises(StreammimlError, match=message):
        getattr(replace(predictions, label_names=None), f"to_{package}")()
