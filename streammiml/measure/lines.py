"""Key instances of every bag as JSON lines, from the predictions that are in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from streammiml.measure.parquet_parts import path_of

BAGS_AT_A_TIME = 256
_COLUMNS = ["bag", "bag_id", "labels", "label_names", "key_instances", "subconcepts"]


def bag_lines(folder: Path, n_parts: int) -> Iterator[bytes]:
    """A line a bag, in order; a few bags are held at a time.

    Each has ``bag``, ``bag_id`` and ``labels``, a list with an object for each predicted label:
    ``label``, ``name``, ``score``, ``row`` (the key instance) and ``subconcept``.
    """
    for number in range(n_parts):
        with pq.ParquetFile(path_of(folder, number)) as file:
            for batch in file.iter_batches(BAGS_AT_A_TIME, columns=[*_COLUMNS, "scores"]):
                # Of all scores, Python gets only those of predicted labels.
                scores = batch["scores"].flatten().to_numpy().reshape(batch.num_rows, -1)
                for bag, own in zip(batch.select(_COLUMNS).to_pylist(), scores, strict=True):
                    said = _said(bag, own[bag["labels"]].tolist())
                    yield json.dumps(said, ensure_ascii=False).encode() + b"\n"


def _said(bag: dict[str, Any], scores: list[float]) -> dict[str, Any]:
    names = bag["label_names"] or [None] * len(scores)
    each = zip(bag["labels"], names, scores, bag["key_instances"], bag["subconcepts"], strict=True)
    fields = ("label", "name", "score", "row", "subconcept")
    labels = [dict(zip(fields, one, strict=True)) for one in each]
    return {"bag": bag["bag"], "bag_id": bag["bag_id"], "labels": labels}
