"""Key instances of every bag as JSON lines, read from a folder of predictions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from streammiml.measure.write_parquet import part_path

BAGS_AT_A_TIME = 256
_COLUMNS = ["bag", "bag_id", "labels", "label_names", "key_instances", "subconcepts"]
_PREFIX = "kept_"


def key_instance_lines(folder: Path, n_parts: int) -> Iterator[bytes]:
    """Yield one line for each bag, in order, holding a few bags in memory at a time.

    A line has ``bag``, ``bag_id`` and ``labels``, a list with an object for each predicted label:
    ``label``, ``name``, ``score``, ``row`` (the key instance) and ``subconcept``, and ``kept``, the
    values of kept columns in this row, if there are any; None for numbers that are not finite.
    """
    for number in range(n_parts):
        with pq.ParquetFile(part_path(folder, number)) as file:
            kept = [name for name in file.schema_arrow.names if name.startswith(_PREFIX)]
            columns = [*_COLUMNS, *kept]
            for batch in file.iter_batches(BAGS_AT_A_TIME, columns=[*columns, "scores"]):
                # Only scores of predicted labels become Python objects: creating them is slow.
                scores = batch["scores"].flatten().to_numpy().reshape(batch.num_rows, -1)
                for bag, bag_scores in zip(batch.select(columns).to_pylist(), scores, strict=True):
                    line = _line(bag, bag_scores[bag["labels"]].tolist())
                    yield json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _line(bag: dict[str, Any], scores: list[float]) -> dict[str, Any]:
    names = bag["label_names"] or [None] * len(scores)
    values = (bag["labels"], names, scores, bag["key_instances"], bag["subconcepts"])
    fields = ("label", "name", "score", "row", "subconcept")
    labels = [dict(zip(fields, label, strict=True)) for label in zip(*values, strict=True)]
    for name, of_labels in bag.items():
        if name.startswith(_PREFIX):
            for label, value in zip(labels, of_labels, strict=True):
                label.setdefault("kept", {})[name.removeprefix(_PREFIX)] = _finite(value)
    return {"bag": bag["bag"], "bag_id": bag["bag_id"], "labels": labels}


def _finite(value: Any) -> Any:
    """Return the value with None instead of numbers that JSON does not have."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
