"""Predictions as a folder of Parquet files: one file for each part, one row group for each group.

Groups begin at fixed bags, so a file's bytes do not depend on memory or on the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streammiml.measure.output_plan import BagGroup, OutputPlan, PredictionCounts, WrittenPart
from streammiml.measure.prediction_folder import atomic_file
from streammiml.measure.predictions import schema, table


def begin(folder: Path, plan: OutputPlan) -> None:
    """Do nothing: Parquet needs no file that all parts share."""


def part_path(folder: Path, number: int) -> Path:
    """Path of the file of a part."""
    return folder / f"part-{number:06d}.parquet"


def write(folder: Path, number: int, plan: OutputPlan, groups: Iterable[BagGroup]) -> WrittenPart:
    """Write one part; its bytes do not depend on the process that writes it."""
    path, counts = part_path(folder, number), PredictionCounts(0, 0, 0)
    names = None if plan.label_names is None else pa.array(plan.label_names, pa.string())
    list_columns = ["labels", "label_names", "key_instances", "subconcepts", "score_labels"]
    with (
        atomic_file(path, plan.n_bytes) as file,
        pq.ParquetWriter(
            file,
            schema(
                top_k=plan.top_k is not None,
                probabilities=plan.has_probabilities,
                kept=plan.kept,
            ),
            compression="snappy",
            use_dictionary=[f"{name}.list.element" for name in list_columns],
            write_page_checksum=True,
        ) as writer,
    ):
        for group in groups:
            records: Any = table(group.predictions, group.first, group.ids, names, plan.kept)
            writer.write_table(records, row_group_size=max(1, len(group.predictions)))
            counts = counts.add(group.counts())
    return WrittenPart(counts, [path])
