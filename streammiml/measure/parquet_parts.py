"""Predictions as a folder of Parquet files, one a part; row groups lie at fixed bags."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streammiml.measure.folder import written_whole
from streammiml.measure.outcome import schema, table
from streammiml.measure.parts import Group, OutPlan, Tally, Written


def begin(folder: Path, plan: OutPlan) -> None:
    """Nothing needs to be there before the parts."""


def path_of(folder: Path, number: int) -> Path:
    """Where a part lies."""
    return folder / f"part-{number:06d}.parquet"


def write(folder: Path, number: int, plan: OutPlan, groups: Iterable[Group]) -> Written:
    """Write one part; the same bytes whoever writes it."""
    path, tally = path_of(folder, number), Tally(0, 0, 0)
    names = None if plan.label_names is None else pa.array(plan.label_names, pa.string())
    listed = ["labels", "label_names", "key_instances", "subconcepts", "score_labels"]
    with (
        written_whole(path, plan.n_bytes) as file,
        pq.ParquetWriter(
            file,
            schema(top_k=plan.top_k is not None),
            compression="snappy",
            use_dictionary=[f"{name}.list.element" for name in listed],
            write_page_checksum=True,
        ) as writer,
    ):
        for group in groups:
            made: Any = table(group.found, group.first, group.ids, names)
            writer.write_table(made, row_group_size=max(1, len(group.found)))
            tally = tally.add(group.tally())
    return Written(tally, [path])
