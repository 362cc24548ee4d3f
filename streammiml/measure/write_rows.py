"""Row scores beside predictions: one Parquet file for each part, in the folder ``_rows``.

A part has the bags of the part of the predictions with the same number, and is recorded with it.
Row groups have a fixed number of records, so a file's bytes depend neither on the memory nor on the
number of workers. The name of the folder begins with an underscore because readers of Parquet
folders ignore such names: ``OUT`` itself stays a table of predictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import KeptColumn
from streammiml.errors import StreammimlError
from streammiml.kernel.score import Scores
from streammiml.measure.label_choice import Labels, chosen_labels
from streammiml.measure.prediction_folder import atomic_file, disk_errors
from streammiml.measure.predictions import Predictions
from streammiml.measure.row_records import (
    Bools,
    name_array,
    row_entries,
    row_table,
    schema_of,
)
from streammiml.measure.tasks import BagRange
from streammiml.model import Model
from streammiml.scorer import RowScorer

FOLDER = "_rows"
GROUP_RECORDS = 1 << 16
"""Records of a row group, which a task holds beside the bags that it reads."""
ALL_ROWS, TOP = "all", "top:"


@dataclass(frozen=True, slots=True, eq=False)
class RowOutput:
    """The choice of row scores that are written, and the scorer that computes them."""

    scorer: RowScorer
    top: int | None
    """Rows of each bag and label, those with the highest scores; None for all rows."""
    is_chosen: bool
    """Whether all labels of the scorer are written; otherwise each bag has its own labels: those
    that are predicted for it, and those that it carries in the store."""
    label_names: tuple[str, ...] | None
    """Names of all labels of the model."""

    @classmethod
    def of(
        cls, model: Model, names: tuple[str, ...] | None, rows: str, labels: Labels | None
    ) -> RowOutput:
        """Check what a user asks for: ``rows`` is ``all`` or ``top:N``."""
        top = None if rows == ALL_ROWS else _top(rows)
        numbers = sorted(chosen_labels(labels, names, model.n_labels))
        return cls(RowScorer(model, numbers), top, labels is not None, names)

    def record(self) -> str:
        """Everything that decides the bytes of the files, for the record of the folder."""
        rows = ALL_ROWS if self.top is None else f"{TOP}{self.top}"
        labels = f"labels {', '.join(map(str, self.scorer.labels))}"
        return f"{rows} of {labels if self.is_chosen else 'the own labels of each bag'}"

    def wanted(self, block: BagBlock, predictions: Predictions) -> Bools | None:
        """(bags, L) Labels that are written for each bag; None for all labels of the scorer."""
        if self.is_chosen:
            return None
        wanted = predictions.predicted.copy()
        bags = np.repeat(np.arange(len(block)), np.diff(block.label_offsets))
        wanted[bags, block.label_indices] = True
        return wanted


def _top(rows: object) -> int:
    """N of ``top:N``."""
    count = rows.removeprefix(TOP) if isinstance(rows, str) and rows.startswith(TOP) else ""
    if not count.isdecimal() or int(count) < 1:
        raise StreammimlError(
            f"rows is {rows!r}; expected all, or top:N for the N highest rows of each bag and "
            "label, such as top:20"
        )
    return int(count)


def row_path(folder: Path, number: int) -> Path:
    """Path of the file of a part."""
    return folder / FOLDER / f"part-{number:06d}.parquet"


class RowPart:
    """The file of a part while it is written."""

    def __init__(
        self,
        path: Path,
        output: RowOutput,
        writer: Any,
        n_bytes: int,
        kept: Sequence[KeptColumn],
    ) -> None:
        self.path, self._output, self._writer, self._n_bytes = path, output, writer, n_bytes
        self._kept = kept
        self._names = name_array(output.label_names, output.scorer.labels)
        self._waiting: list[Any] = []
        self._n_waiting = 0

    def add(
        self, bags: BagRange, block: BagBlock, scores: Scores, predictions: Predictions
    ) -> None:
        """Score and write the rows of some bags, whose ``scores`` are known."""
        output = self._output
        table_of = {
            "first": bags.start,
            "ids": bags.bag_ids(),
            "labels": output.scorer.labels,
            "names": self._names,
            "dummy": scores.value[:, -1],
            "block": block,
            "kept": self._kept,
        }
        for entries in row_entries(
            block,
            output.scorer,
            wanted=output.wanted(block, predictions),
            top=output.top,
            n_bytes=self._n_bytes,
            first=bags.start,
            name=bags.source.name,
        ):
            self._add(row_table(entries, **table_of))

    def _add(self, table: Any) -> None:
        """Keep records until there are enough for a row group."""
        self._waiting.append(table)
        self._n_waiting += table.num_rows
        if self._n_waiting < GROUP_RECORDS:
            return
        joined = pa.concat_tables(self._waiting)
        end = self._n_waiting // GROUP_RECORDS * GROUP_RECORDS
        for start in range(0, end, GROUP_RECORDS):
            self._write(joined.slice(start, GROUP_RECORDS))
        self._waiting, self._n_waiting = [joined.slice(end)], self._n_waiting - end

    def finish(self) -> None:
        """Write the last records."""
        if self._n_waiting:
            self._write(pa.concat_tables(self._waiting))
        self._waiting, self._n_waiting = [], 0

    def _write(self, group: Any) -> None:
        # Errors are reported here: this runs while the file of the predictions is open, too. Pages
        # end where chunks of an Arrow column end, so there must be one chunk.
        with disk_errors(self.path):
            self._writer.write_table(group.combine_chunks(), row_group_size=GROUP_RECORDS)


@contextmanager
def open_row_part(
    output: RowOutput, folder: Path, number: int, n_bytes: int, kept: Sequence[KeptColumn] = ()
) -> Iterator[RowPart]:
    """Open the file of a part, which is complete when the context ends.

    About ``n_bytes`` of row scores are computed at a time. ``kept`` are the kept columns that are
    written too.
    """
    path = row_path(folder, number)
    with disk_errors(path):
        path.parent.mkdir(exist_ok=True)
    with (
        atomic_file(path) as file,
        pq.ParquetWriter(
            file,
            schema_of(kept),
            compression="snappy",
            use_dictionary=["bag", "bag_id", "label", "label_name", "subconcept"],
            write_page_checksum=True,
        ) as writer,
    ):
        part = RowPart(path, output, writer, n_bytes, kept)
        yield part
        part.finish()


def count_records(folder: Path, n_parts: int) -> int:
    """Number of row scores in all parts, by the footers of the files."""
    return sum(pq.read_metadata(row_path(folder, number)).num_rows for number in range(n_parts))
