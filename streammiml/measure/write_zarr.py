"""Predictions as a Zarr group of arrays over bags; a part owns complete chunks of each array.

zarr reads a missing chunk as zeros, so only its checksums show whether a part is complete.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.errors import UnstableSpecificationWarning

from streammiml._base.atomic import sync_folder
from streammiml.bags.kept_columns import TEXT
from streammiml.measure.output_plan import BagGroup, OutputPlan, PredictionCounts, WrittenPart
from streammiml.measure.prediction_folder import disk_errors, partial_path

GROUP = "predictions.zarr"


def begin(folder: Path, plan: OutputPlan) -> None:
    """Write the metadata of the arrays; a resumed run writes the same bytes again."""
    with disk_errors(folder / GROUP, plan.n_bytes):
        partial = partial_path(folder / GROUP)
        _create(partial, plan)
        _move(partial, folder / GROUP)
        sync_folder(folder)


def write(folder: Path, number: int, plan: OutputPlan, groups: Iterable[BagGroup]) -> WrittenPart:
    """Write the chunks of one part to a partial folder, then move each to its final path."""
    counts = PredictionCounts(0, 0, 0)
    partial = partial_path(folder / f"part-{number:06d}")
    with disk_errors(folder / GROUP, plan.n_bytes):
        try:
            arrays = _create(partial, plan)
            for group in groups:
                bags = slice(group.first, group.first + len(group.predictions))
                for name, values in _values(group, plan).items():
                    arrays[name][bags] = values
                counts = counts.add(group.counts())
            moved = _move(partial, folder / GROUP)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    # ``begin`` rewrites the metadata on every run, so it belongs to no part.
    return WrittenPart(counts, [file for file in moved if file.name != "zarr.json"])


def _values(group: BagGroup, plan: OutputPlan) -> dict[str, Any]:
    """Values of each array; −1 is the key instance and sub-concept of labels not predicted.

    Their kept values are 0, or empty texts.
    """
    predictions = group.predictions
    keys, subs = (np.full(predictions.predicted.shape, -1, np.int32) for _ in range(2))
    keys[predictions.predicted] = predictions.row_indices
    subs[predictions.predicted] = predictions.subconcept_indices
    values = {
        "scores": predictions.scores,
        "dummy_score": predictions.dummy_score,
        "predicted": predictions.predicted,
        "key_instances": keys,
        "subconcepts": subs,
    }
    if predictions.score_labels is not None:
        values["score_labels"] = predictions.score_labels
    if predictions.probabilities is not None:
        values["probabilities"] = predictions.probabilities
    if plan.has_bag_ids:
        values["bag_id"] = np.array(group.ids, np.dtypes.StringDType())
    for column in plan.kept:
        kept = predictions.kept_values[column.name]
        dtype = np.dtypes.StringDType() if column.dtype == TEXT else column.dtype
        values[column.array] = np.zeros((*keys.shape, *kept.shape[1:]), dtype)
        values[column.array][predictions.predicted] = kept
    return values


def _create(path: Path, plan: OutputPlan) -> Any:
    """Create the group and its arrays with the full size of ``plan``; no chunk is written."""
    width = plan.n_labels if plan.top_k is None else min(plan.top_k, plan.n_labels)
    n, step = plan.n_bags, plan.group_bags
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "scores": ((n, width), "float32"),
        "dummy_score": ((n,), "float32"),
        "predicted": ((n, plan.n_labels), "bool"),
        "key_instances": ((n, plan.n_labels), "int32"),
        "subconcepts": ((n, plan.n_labels), "int32"),
    }
    if plan.top_k is not None:
        shapes["score_labels"] = ((n, width), "int32")
    if plan.has_probabilities:
        shapes["probabilities"] = ((n, width), "float32")
    if plan.has_bag_ids:
        shapes["bag_id"] = ((n,), "string")
    for column in plan.kept:
        widths = () if column.width == 1 else (column.width,)
        kind = "string" if column.dtype == TEXT else column.dtype
        shapes[column.array] = ((n, plan.n_labels, *widths), kind)
    names = None if plan.label_names is None else list(plan.label_names)
    root = zarr.create_group(path, attributes={"label_names": names})
    with warnings.catch_warnings():
        # Zarr's specification of strings is not final, but zarr-python and others read them.
        warnings.simplefilter("ignore", UnstableSpecificationWarning)
        for name, (shape, dtype) in shapes.items():
            root.create_array(
                name,
                shape=shape,
                dtype=dtype,
                chunks=(step, *shape[1:]),
                # Otherwise zarr does not write chunks of zeros, which would then seem missing.
                config={"write_empty_chunks": True},
            )
    return root


def _move(partial: Path, final: Path) -> list[Path]:
    """Sync all files, then move each to its final path; existing files have the same bytes."""
    files = [path for path in sorted(partial.rglob("*")) if path.is_file()]
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    moved = [final / file.relative_to(partial) for file in files]
    for file, target in zip(files, moved, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
    for folder in {final, *(target.parent for target in moved)}:
        sync_folder(folder)
    shutil.rmtree(partial)
    return moved
