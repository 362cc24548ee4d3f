"""``Model.warm_up``: compile and load what scoring needs, before a service takes its first call."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

import numpy as np

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.errors import StreammimlError
from streammiml.measure.predict import predict_bags
from streammiml.measure.row_scores import row_scores
from streammiml.model import Model


def warm_up(model: Model, dtype: str, *, sparse: bool) -> None:
    """Score a bag of zeros; rows of another ``dtype`` and sparse rows need other kernels."""
    if sparse:
        # SciPy matrices are converted there; a caller who has none may not have SciPy.
        with suppress(StreammimlError):
            import_module("streammiml.bags.from_arrays")
    rows = SparseRows(
        offsets=np.array([0, 1, 1]),
        columns=np.zeros(1, np.uint32),
        values=np.zeros(1, _number_type(dtype)),
        n_features=model.n_features,
    )
    no_labels = np.zeros(2, np.int64), np.empty(0, np.int32)
    block = BagBlock(np.array([0, 2]), rows if sparse else rows.dense(), *no_labels)
    predict_bags(model, block if sparse else [block.rows_of(0)])
    row_scores(model, block if sparse else [block.rows_of(0)])


def _number_type(dtype: str) -> np.dtype[np.generic]:
    try:
        number_type = np.dtype(dtype)
    except TypeError:
        number_type = np.dtype(object)
    if number_type.kind not in "biuf":
        raise StreammimlError(f"dtype is {dtype!r}; expected a type of numbers, such as float32")
    return number_type
