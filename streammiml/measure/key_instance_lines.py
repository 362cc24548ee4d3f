"""Key instances of every bag as JSON lines, read from a folder of predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from streammiml.measure.write_parquet import part_path

BAGS_AT_A_TIME = 256
_COLUMNS = ["bag", "bag_id", "labels", "label_names", "key_instances", "subconcepts"]


def key_instance_lines(folder: Path, n_parts: int) -> Iterator[bytes]:
    """Yield one line for each bag, in order, holding a few bags in memory at a time.

    A line has ``bag``, ``bag_id`` and ``labels``, a list with an object for each predicted label:
    ``label``, ``name``, ``score``, ``row`` (the key instance) and ``subconcept``.
    """
    for number in range(n_parts):
        with pq.ParquetFile(part_path(folder, number)) as file:
            for batch in file.iter_batches(BAGS_AT_A_TIME, columns=[*_COLUMNS, "scores"]):
                # Only scores of predicted labels become Python objects: creating them is slow.
                scores = batch["scores"].flatten().to_numpy().reshape(batch.num_rows, -1)
                for bag, bag_scores in zip(batch.select(_COLUMNS).to_pylist(), scores, strict=True):
                    line = _line(bag, bag_scores[bag["labels"]].tolist())
                    yield json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _line(bag: dict[str, Any], scores: list[float]) -> dict[str, Any]:
    names = bag["label_names"] or [None] * len(scores)
    values = (bag["labels"], names, scores, bag["key_instances"], bag["subconcepts"])
    fields = ("label", "name", "score", "row", "subconcept")
    labels = [dict(zip(fields, label, strict=True)) for label in zip(*values, strict=True)]
    return {"bag": bag["bag"], "bag_id": bag["bag_id"], "labels": labels}
