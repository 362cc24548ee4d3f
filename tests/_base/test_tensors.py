"""Tables of tensors: what fits is taken, and whatever does not is named."""

import numpy as np
import pytest

from streammiml._base.tensors import (
    CHECKPOINT_TENSORS,
    MODEL_TENSORS,
    TensorSpec,
    check_tensors,
)
from streammiml.errors import StreammimlError

TABLE = {
    "a": TensorSpec("float32", ("rows", "width")),
    "b": TensorSpec("int64", ("rows",)),
    "c": TensorSpec("float64", ("width",), is_optional=True),
}
SIZES = {"rows": 2, "width": 3}


def tensors_with(**changes):
    tensors = {"a": np.ones((2, 3), np.float32), "b": np.arange(2), "c": np.ones(3)}
    return {name: array for name, array in (tensors | changes).items() if array is not None}


@pytest.mark.parametrize("changes", [{}, {"c": None}])
def test_check_tensors__takes_what_fits(changes):
    check_tensors(tensors_with(**changes), TABLE, SIZES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": None}, "it lacks the tensor 'a'"),
        ({"d": np.ones(1)}, "it has a tensor 'd' that does not belong there"),
        ({"b": np.arange(2.0)}, "b is float64, expected int64"),
        ({"b": np.arange(3)}, r"b has shape \(3,\), expected \(2,\)"),
        ({"a": np.ones((3, 2), np.float32)}, r"a has shape \(3, 2\), expected \(2, 3\)"),
        ({"a": np.ones(6, np.float32)}, r"a has shape \(6,\), expected \(2, 3\)"),
        ({"c": np.array([1, np.inf, 1])}, "c holds values that are not finite"),
    ],
)
def test_check_tensors__names_what_does_not_fit(changes, message):
    with pytest.raises(StreammimlError, match=message):
        check_tensors(tensors_with(**changes), TABLE, SIZES)


def test_check_tensors__without_sizes_looks_at_names_and_dtypes():
    check_tensors(tensors_with(b=np.arange(9)), TABLE)
    with pytest.raises(StreammimlError, match="b is float32"):
        check_tensors(tensors_with(b=np.ones(2, np.float32)), TABLE)


def test_tables__of_model_and_checkpoint_agree_on_what_both_hold():
    for name, spec in MODEL_TENSORS.items():
        if name.startswith("calibration."):
            continue  # Fitted after the last checkpoint.
        group = "weights" if name in ("shared", "labels") else "lift"
        # A checkpoint holds one restart, so its shared space has the width of the labels.
        shape = tuple("width" if size == "shared width" else size for size in spec.shape)
        assert CHECKPOINT_TENSORS[f"{group}.{name}"] == spec._replace(shape=shape)
