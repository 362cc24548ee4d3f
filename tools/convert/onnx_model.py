"""A model as an ONNX file, for programs that score bags without this package.

Inputs are ``rows`` (n, d), float32, as they are in a store, and ``bag`` (n,), int64: the number of
each row's bag, from 0 on, each with a row at least; rows of a bag need not be together. For one
bag, ``bag`` is all zeros. Outputs, for L labels and B bags:

================  =======  ==================================================================
``row_scores``    (n, L)   Score of each row on each label.
``bag_scores``    (B, L)   Score of each bag: the highest of its rows.
``dummy_score``   (B,)     Score of the dummy label, with the offset of the threshold.
``predicted``     (B, L)   Whether a label is predicted, by the model's rule.
``probabilities`` (B, L)   Probability of each label; only of calibrated models.
================  =======  ==================================================================

Every lift can be written in operators of ONNX. Label names are in the metadata, as a JSON list.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from streammiml.config import TRANSFORMS, format_size
from streammiml.errors import StreammimlError
from streammiml.model import Model

OPSET, IR_VERSION = 18, 9
"""The first versions with everything that the graph needs; runtimes since 2023 read them."""
MOST_BYTES = (1 << 31) - (1 << 20)
"""A file of protocol buffers has at most 2 GiB; the rest of the graph takes far less than 1 MiB."""
EXTREMES, EVERYTHING, MEAN = 1, 2, 3
"""Codes of contexts, as in ``kernel/lift.py``."""
LOWEST = np.float32(-3.4028235e38)


def onnx_bytes(model: Model) -> bytes:
    """Content of the ONNX file of a model; equal models give equal bytes."""
    size = sum(array.nbytes for array in (model.shared, model.labels, model.lift.frequencies))
    if size > MOST_BYTES:
        raise StreammimlError(
            f"the model has {format_size(size)} of weights, and an ONNX file holds at most 2 GiB; "
            "train with a smaller --shared-dim or fewer --subconcepts"
        )
    graph = _Graph()
    rows = _lifted(graph, model)
    row_scores = _row_scores(graph, model, rows)
    scores = graph.over_bags("max", row_scores)
    last = graph.constant([model.n_labels])
    first, end, columns = (graph.constant([number]) for number in (0, model.n_labels + 1, 1))
    graph.output("row_scores", graph.add("Slice", row_scores, first, last, columns))
    labels = graph.output("bag_scores", graph.add("Slice", scores, first, last, columns))
    own_dummy = graph.add("Slice", scores, last, end, columns)
    dummy = graph.add("Add", own_dummy, graph.constant(np.float32(model.rule.offset)))
    graph.output("dummy_score", graph.add("Squeeze", dummy, columns))
    graph.output("predicted", _predicted(graph, model, labels, dummy))
    outputs: list[tuple[str, int, list[str | int | None]]] = [
        ("row_scores", TensorProto.FLOAT, ["n", model.n_labels]),
        ("bag_scores", TensorProto.FLOAT, ["bags", model.n_labels]),
        ("dummy_score", TensorProto.FLOAT, ["bags"]),
        ("predicted", TensorProto.BOOL, ["bags", model.n_labels]),
    ]
    if model.calibration is not None:
        graph.output("probabilities", _probabilities(graph, model, labels, dummy))
        outputs.append(("probabilities", TensorProto.FLOAT, ["bags", model.n_labels]))
    inputs = [
        helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", model.n_features]),
        helper.make_tensor_value_info("bag", TensorProto.INT64, ["n"]),
    ]
    made = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "streammiml",
            inputs,
            [helper.make_tensor_value_info(*output) for output in outputs],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="streammiml",
    )
    names = json.dumps(list(model.label_names)) if model.label_names is not None else "null"
    for key, value in (("fingerprint", model.fingerprint), ("label_names", names)):
        made.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(made)
    content: bytes = made.SerializeToString(deterministic=True)
    return content


class _Graph:
    """Nodes and constants of a graph, named by their number."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._n_bags = ""

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def output(self, name: str, value: str) -> str:
        """Give a value the name of an output of the graph."""
        self.nodes.append(helper.make_node("Identity", [value], [name], name))
        return name

    def constant(self, values: Any) -> str:
        """Add a constant; whole numbers become int64, other numbers float32."""
        array = np.asarray(values)
        kind = {"i": np.int64, "f": np.float32, "b": np.bool_}[array.dtype.kind]
        name = f"constant_{len(self.constants)}"
        array = np.ascontiguousarray(array.astype(kind)).reshape(array.shape)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def over_bags(self, reduction: str, values: str) -> str:
        """(B, w) Maximum (``max``) or sum (``add``) of ``values`` (n, w) over the rows of a bag."""
        one, zero = self.constant([1]), self.constant([0])
        if not self._n_bags:
            last = self.add("ReduceMax", "bag", keepdims=1)
            self._n_bags = self.add("Add", last, one)
        shape = self.add("Shape", values)
        width = self.add("Slice", shape, one, self.constant([2]), zero)
        start = numpy_helper.from_array(
            np.array([LOWEST if reduction == "max" else 0], np.float32), "start"
        )
        table = self.add("Concat", self._n_bags, width, axis=0)
        empty = self.add("ConstantOfShape", table, value=start)
        places = self.add("Expand", self.add("Unsqueeze", "bag", one), shape)
        return self.add("ScatterElements", empty, places, values, axis=0, reduction=reduction)

    def of_bag(self, values: str) -> str:
        """(n, w) The row of ``values`` (B, w) of each row's bag."""
        return self.add("Gather", values, "bag", axis=0)


def _lifted(graph: _Graph, model: Model) -> str:
    """(n, d') Lifted rows, as ``kernel/lift.py`` makes them."""
    lift, x = model.lift, "rows"
    if lift.transform:
        size, sign = graph.add("Abs", x), graph.add("Sign", x)
        if TRANSFORMS[lift.transform] == "sqrt":
            size = graph.add("Sqrt", size)
        else:
            size = graph.add("Log", graph.add("Add", size, graph.constant(1.0)))
        x = graph.add("Mul", size, sign)
    x = graph.add("Sub", x, graph.constant(lift.shift))
    x = graph.add("Mul", x, graph.constant(lift.scale))
    if lift.unit:
        x = _over_norm(graph, x)
    parts = [x]
    if lift.phases.size:
        turns = graph.add("MatMul", x, graph.constant(lift.frequencies))
        turns = graph.add("Add", turns, graph.constant(lift.phases))
        # The nearest whole turn is subtracted first: the cosine of large angles is less exact.
        turns = graph.add("Sub", turns, graph.add("Round", turns))
        waves = graph.add("Cos", graph.add("Mul", turns, graph.constant(2 * np.pi)))
        amplitude = graph.constant(float(np.sqrt(2 / lift.phases.size)))
        parts.append(graph.add("Mul", waves, amplitude))
    if lift.context in (EXTREMES, EVERYTHING):
        seen = graph.add("Concat", *parts, axis=1) if lift.context == EVERYTHING else x
        lowest = graph.add("Neg", graph.over_bags("max", graph.add("Neg", seen)))
        parts += [graph.of_bag(graph.over_bags("max", seen)), graph.of_bag(lowest)]
        if lift.context == EVERYTHING:
            parts.append(graph.of_bag(_mean(graph, seen)))
    if lift.context == MEAN:
        mean = _mean(graph, x)
        parts.append(graph.of_bag(_over_norm(graph, mean) if lift.unit else mean))
    column = graph.add("Slice", x, *(graph.constant([number]) for number in (0, 1, 1)))
    nothing = graph.add("Mul", column, graph.constant(0.0))
    parts.append(graph.add("Add", nothing, graph.constant(1.0)))
    return graph.add("Concat", *parts, axis=1)


def _over_norm(graph: _Graph, values: str) -> str:
    """Divide each row by its L2 norm; a row of zeros stays zero."""
    norm = graph.add("ReduceL2", values, graph.constant([1]), keepdims=1)
    is_zero = graph.add("Equal", norm, graph.constant(0.0))
    return graph.add("Div", values, graph.add("Where", is_zero, graph.constant(1.0), norm))


def _mean(graph: _Graph, values: str) -> str:
    """(B, w) Mean of ``values`` (n, w) over the rows of a bag."""
    column = graph.add("Slice", values, *(graph.constant([number]) for number in (0, 1, 1)))
    ones = graph.add("Add", graph.add("Mul", column, graph.constant(0.0)), graph.constant(1.0))
    return graph.add("Div", graph.over_bags("add", values), graph.over_bags("add", ones))


def _row_scores(graph: _Graph, model: Model, rows: str) -> str:
    """(n, L + 1) Score of each row: the highest of the sub-concepts of a label; the dummy last.

    With restarts, the mean of theirs.
    """
    scores = [_scores_of_restart(graph, model.restart(i), rows) for i in range(model.restarts)]
    if len(scores) == 1:
        return scores[0]
    return graph.add("Mean", *scores)


def _scores_of_restart(graph: _Graph, model: Model, rows: str) -> str:
    """(n, L + 1) As ``_row_scores``, of a model with one restart."""
    if model.has_shared_space:
        rows = graph.add("MatMul", rows, graph.constant(model.shared))
    n_vectors, k, width = model.labels.shape
    vectors = model.labels.reshape(n_vectors * k, width).T
    scores = graph.add("MatMul", rows, graph.constant(vectors))
    by_label = graph.add("Reshape", scores, graph.constant([-1, n_vectors, k]))
    return graph.add("ReduceMax", by_label, graph.constant([2]), keepdims=0)


def _predicted(graph: _Graph, model: Model, labels: str, dummy: str) -> str:
    """(B, L) Whether a label is predicted; ``measure/rules.py`` says the same."""
    rule = model.rule
    if rule.name == "top-r":
        return _highest(graph, model, labels, max(rule.r, rule.min_labels))
    if rule.name == "margin":
        labels_up = graph.add("Add", labels, graph.constant(1.0))
        chosen = graph.add("Greater", labels_up, dummy)
    else:
        chosen = graph.add("Greater", labels, dummy)
    if rule.min_labels:
        chosen = graph.add("Or", chosen, _highest(graph, model, labels, rule.min_labels))
    return chosen


def _highest(graph: _Graph, model: Model, labels: str, count: int) -> str:
    """(B, L) True for the highest scores of a bag; ties go to the lowest label."""
    count = min(count, model.n_labels)
    graph.nodes.append(
        helper.make_node("TopK", [labels, graph.constant([count])], ["top", "places"], "TopK")
    )
    none = graph.add("Mul", labels, graph.constant(0.0))
    ones = graph.add("Add", graph.add("Mul", "top", graph.constant(0.0)), graph.constant(1.0))
    marks = graph.add("ScatterElements", none, "places", ones, axis=1)
    return graph.add("Greater", marks, graph.constant(0.5))


def _probabilities(graph: _Graph, model: Model, labels: str, dummy: str) -> str:
    """(B, L) Probabilities; ``_base/calibration.py`` says the same.

    A line through knots is its first value plus the rise of each piece, times the share of the
    piece that lies below the margin.
    """
    calibration = model.calibration
    assert calibration is not None, "the caller has asked"
    margins = graph.add("Sub", labels, dummy)
    logits = graph.add("Mul", margins, graph.constant(calibration.platt[:, 0]))
    logits = graph.add("Add", logits, graph.constant(calibration.platt[:, 1]))
    probabilities = graph.add("Sigmoid", logits)
    for label, (start, stop) in enumerate(pairwise(calibration.offsets.tolist())):
        if stop == start:
            continue
        xs, ys = calibration.margins[start:stop], calibration.probabilities[start:stop]
        line = _line(graph, graph.add("Gather", margins, graph.constant([label]), axis=1), xs, ys)
        is_label = np.arange(model.n_labels) == label
        probabilities = graph.add("Where", graph.constant(is_label), line, probabilities)
    return probabilities


def _line(graph: _Graph, margins: str, xs: NDArray[Any], ys: NDArray[Any]) -> str:
    """(B, 1) Values at ``margins`` (B, 1) of the line through the knots."""
    first = graph.constant(float(ys[0]))
    if len(xs) == 1:
        return graph.add("Add", graph.add("Mul", margins, graph.constant(0.0)), first)
    above = graph.add("Sub", margins, graph.constant(xs[:-1]))
    share = graph.add("Div", above, graph.constant(np.diff(xs)))
    share = graph.add("Clip", share, graph.constant(0.0), graph.constant(1.0))
    rise = graph.add("MatMul", share, graph.constant(np.diff(ys)[:, None]))
    return graph.add("Add", rise, first)
