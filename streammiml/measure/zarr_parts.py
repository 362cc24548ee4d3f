"""Predictions as a Zarr group of arrays over bags; a part owns whole chunks of each of them.

zarr takes a chunk that is missing for zeros: what says that a part is there is its mark.
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

from streammiml.bags.place import sync_folder
from streammiml.measure.folder import beside, saying_what_failed
from streammiml.measure.parts import Group, OutPlan, Tally, Written

GROUP = "predictions.zarr"


def begin(folder: Path, plan: OutPlan) -> None:
    """Describe the arrays; descriptions of a run before are the same."""
    with saying_what_failed(folder / GROUP, plan.n_bytes):
        made = beside(folder / GROUP)
        _create(made, plan)
        _move(made, folder / GROUP)
        sync_folder(folder)


def write(folder: Path, number: int, plan: OutPlan, groups: Iterable[Group]) -> Written:
    """Write the chunks of one part beside, and rename each into place."""
    tally = Tally(0, 0, 0)
    made = beside(folder / f"part-{number:06d}")
    with saying_what_failed(folder / GROUP, plan.n_bytes):
        try:
            arrays = _create(made, plan)
            for group in groups:
                here = slice(group.first, group.first + len(group.found))
                for name, values in _values(group, plan).items():
                    arrays[name][here] = values
                tally = tally.add(group.tally())
            moved = _move(made, folder / GROUP)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    # Descriptions are made anew by whoever begins.
    return Written(tally, [file for file in moved if file.name != "zarr.json"])


def _values(group: Group, plan: OutPlan) -> dict[str, Any]:
    found = group.found
    keys, subs = (np.full(found.predicted.shape, -1, np.int32) for _ in range(2))
    keys[found.predicted], subs[found.predicted] = found.row_indices, found.subconcept_indices
    values = {
        "scores": found.scores,
        "dummy_score": found.dummy_score,
        "predicted": found.predicted,
        "key_instances": keys,
        "subconcepts": subs,
    }
    if found.score_labels is not None:
        values["score_labels"] = found.score_labels
    if plan.has_bag_ids:
        values["bag_id"] = np.array(group.ids, np.dtypes.StringDType())
    return values


def _create(path: Path, plan: OutPlan) -> Any:
    """The group and its arrays, without chunks, with everything in the name of ``plan``."""
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
    if plan.has_bag_ids:
        shapes["bag_id"] = ((n,), "string")
    names = None if plan.label_names is None else list(plan.label_names)
    root = zarr.create_group(path, attributes={"label_names": names})
    with warnings.catch_warnings():
        # Text has no final place in Zarr's specification yet; zarr-python and others read it.
        warnings.simplefilter("ignore", UnstableSpecificationWarning)
        for name, (shape, dtype) in shapes.items():
            root.create_array(
                name,
                shape=shape,
                dtype=dtype,
                chunks=(step, *shape[1:]),
                # Otherwise chunks of zeros would be left out, as if they had been lost.
                config={"write_empty_chunks": True},
            )
    return root


def _move(made: Path, final: Path) -> list[Path]:
    """Rename every file into place, when all are on the disk; what was there is the same."""
    files = [path for path in sorted(made.rglob("*")) if path.is_file()]
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    moved = [final / file.relative_to(made) for file in files]
    for file, to in zip(files, moved, strict=True):
        to.parent.mkdir(parents=True, exist_ok=True)
        file.replace(to)
    for folder in {final, *(to.parent for to in moved)}:
        sync_folder(folder)
    shutil.rmtree(made)
    return moved
