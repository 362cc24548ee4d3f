"""Tables of the tensors in model files and checkpoints, with names, dtypes and shapes.

Compiled code trusts shapes: a tensor that is too short makes it read memory behind the array. So
every tensor that comes from a file is compared with these tables before anything uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streammiml.errors import DivergedError, StreammimlError


class TensorSpec(NamedTuple):
    """The dtype and shape that one tensor must have."""

    dtype: str
    shape: tuple[str, ...]
    """Names of sizes: tensors that share a name agree in that dimension."""
    is_optional: bool = False


_LIFT = {
    "shift": TensorSpec("float32", ("features",)),
    "scale": TensorSpec("float32", ("features",)),
    "frequencies": TensorSpec("float32", ("features", "fourier")),
    "phases": TensorSpec("float32", ("fourier",)),
}
_SHARED, _LABELS = ("lifted", "width"), ("vectors", "subconcepts", "width")

MODEL_TENSORS = {
    "shared": TensorSpec("float32", ("lifted", "shared width")),
    "labels": TensorSpec("float32", _LABELS),
    **_LIFT,
    "calibration.platt": TensorSpec("float32", ("labels", "line"), is_optional=True),
    "calibration.offsets": TensorSpec("int64", ("knot bounds",), is_optional=True),
    "calibration.margins": TensorSpec("float32", ("knots",), is_optional=True),
    "calibration.probabilities": TensorSpec("float32", ("knots",), is_optional=True),
}
"""``lifted`` is 0 without a shared space; ``vectors`` counts the dummy label too. ``subconcepts``
and ``shared width`` are those of all restarts together."""

CHECKPOINT_TENSORS = {
    "weights.shared": TensorSpec("float32", _SHARED),
    "weights.labels": TensorSpec("float32", _LABELS),
    "best.shared": TensorSpec("float32", _SHARED, is_optional=True),
    "best.labels": TensorSpec("float32", _LABELS, is_optional=True),
    "averages.shared": TensorSpec("float64", ("averaged lifted", "width")),
    "averages.labels": TensorSpec("float64", ("averaged vectors", "subconcepts", "width")),
    "averages.shared_seen": TensorSpec("int64", ("averaged lifted",)),
    "averages.labels_seen": TensorSpec("int64", ("averaged vectors", "subconcepts")),
    **{f"lift.{name}": spec for name, spec in _LIFT.items()},
    **{f"lift.{name}": TensorSpec("int64", ("one",)) for name in ("transform", "unit", "context")},
}
"""``width`` is padded for the kernels; the averaged sizes are 0 without averaging."""


def check_tensors(
    tensors: Mapping[str, npt.NDArray[Any]],
    table: Mapping[str, TensorSpec],
    sizes: Mapping[str, int] | None = None,
) -> None:
    """Refuse missing tensors, unknown tensors, and tensors that differ from the table.

    Values must be finite. Without ``sizes``, only names and dtypes are checked.
    """
    for name in tensors:
        if name not in table:
            raise StreammimlError(f"it has a tensor {name!r} that does not belong there")
    for name, spec in table.items():
        if name not in tensors:
            if spec.is_optional:
                continue
            raise StreammimlError(f"it lacks the tensor {name!r}")
        tensor = tensors[name]
        if tensor.dtype != spec.dtype:
            raise StreammimlError(f"{name} is {tensor.dtype}, expected {spec.dtype}")
        if sizes is None:
            continue
        expected = tuple(sizes[size] for size in spec.shape)
        if tensor.shape != expected:
            raise StreammimlError(f"{name} has shape {tensor.shape}, expected {expected}")
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise DivergedError(f"{name} holds values that are not finite: training diverged")
