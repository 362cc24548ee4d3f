"""Files of Arrow tables, opened alike: Parquet, Arrow IPC files (Feather) and streams.

A file is a row of groups (Parquet's row groups, Arrow's record batches), read one after the other;
a stream is one group. Nothing is mapped into memory: a file that shrinks while it is read must be
an error, not a dead process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streammiml.config import format_size
from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.ipc_messages import Message, NoMessages, messages

PARQUET, IPC, STREAM, FEATHER1 = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff", b"FEA1"
BATCH_BYTES = 8 << 20
"""Bytes of records that become one batch, about, where the format lets choose."""
BATCH_ROWS = 65536
BOMB_BYTES = 256 << 20
BOMB_RATIO = 1000
"""A group over the first size in memory and over this multiple of its bytes on disk is refused."""


@dataclass(frozen=True, slots=True)
class Table:
    """One file: what its records are, and how they are grouped."""

    path: str
    kind: str
    schema: pa.Schema
    group_bytes: tuple[int, ...]
    """Bytes of each group, as far as the file tells."""
    group_records: tuple[int, ...] | None
    """Records of each group, where the file tells without reading them."""

    @property
    def n_groups(self) -> int:
        """Groups of the file."""
        return len(self.group_bytes)

    def batches(
        self, start: int, stop: int, columns: Sequence[str]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Records of some groups with these columns, and the number of the first of each batch.

        Numbers count within the groups where the file does not tell how many come before.
        """
        first = sum(self.group_records[:start]) if self.group_records is not None else 0
        with _opening(self.path):
            for batch in _READ[self.kind](self, start, stop, list(columns)):
                if batch.num_rows:
                    yield first, batch
                first += batch.num_rows


def open_table(path: str | Path) -> Table:
    """Open a file by its first bytes."""
    stat = Path(path).stat()
    return _open_table(str(path), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=64)
def _open_table(path: str, _changed: int, size: int) -> Table:
    with _opening(path):
        kind = _kind(path)
        if kind == "parquet":
            return _open_parquet(path)
        opened = pa.ipc.open_stream if kind == "stream" else pa.ipc.open_file
        with pa.OSFile(path) as file, opened(file) as reader:
            schema = reader.schema
            n_groups = 1 if kind == "stream" else reader.num_record_batches
        found = _messages(path, size, 0 if kind == "stream" else len(IPC) + 2)
        if kind == "stream":
            # Read from front to end, whatever its batches.
            n_records = None if found is None else (sum(each.n_records for each in found),)
            return Table(path, kind, schema, (size,), n_records)
        if found is None or len(found) != n_groups:
            return Table(path, kind, schema, (size // max(1, n_groups),) * n_groups, None)
        sizes = tuple(each.in_memory for each in found)
        return Table(path, kind, schema, sizes, tuple(each.n_records for each in found))


def _messages(path: str, size: int, start: int) -> list[Message] | None:
    """Batches of a file, none of which becomes enormous; None if its layout is not known."""
    found: list[Message] = []
    with Path(path).open("rb") as file:
        file.seek(start)
        try:
            for number, message in enumerate(messages(file, size)):
                _refuse_enormous(path, f"batch {number}", message.on_disk, message.in_memory)
                found += [message] if message.is_records else []
        except NoMessages:
            return None
    return found


def _kind(path: str) -> str:
    with Path(path).open("rb") as file:
        head = file.read(8)
    if head.startswith(FEATHER1):
        raise SourceError(f"{path} is Feather of version 1; write it again in version 2")
    for magic, kind in ((PARQUET, "parquet"), (IPC, "ipc"), (STREAM, "stream")):
        if head.startswith(magic):
            return kind
    raise SourceError(f"{path} is neither Parquet nor Arrow: it begins with {head[:6]!r}")


@contextmanager
def _opening(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise SourceError(f"{path} cannot be read: {error.strerror}") from error
        why = " ".join(str(error).split())[:120]
        raise SourceError(f"{path} is damaged or cut short ({why}); fetch it again") from error


def _open_parquet(path: str) -> Table:
    with pq.ParquetFile(path, memory_map=False) as file:
        meta = file.metadata
        groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
        for number, group in enumerate(groups):
            _refuse_bomb(path, number, group)
        return Table(
            path,
            "parquet",
            file.schema_arrow,
            tuple(group.total_byte_size for group in groups),
            tuple(group.num_rows for group in groups),
        )


def _refuse_bomb(path: str, number: int, group: Any) -> None:
    """Refuse a group whose single values, laid side by side, are far more than its bytes."""
    chunks = [group.column(i) for i in range(group.num_columns)]
    # Four bytes a value, the least a feature takes in memory; lists may hide many in one record.
    n_bytes = 4 * sum(chunk.num_values for chunk in chunks)
    on_disk = sum(chunk.total_compressed_size for chunk in chunks)
    _refuse_enormous(path, f"row group {number}", on_disk, n_bytes)


def _refuse_enormous(path: str, which: str, on_disk: int, in_memory: int) -> None:
    if in_memory > max(BOMB_BYTES, BOMB_RATIO * on_disk):
        raise SourceError(
            f"{path}, {which}: {format_size(on_disk)} would become {format_size(in_memory)} in "
            "memory; write it anew in smaller groups"
        )


def _parquet_batches(
    table: Table, start: int, stop: int, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    records = sum((table.group_records or ())[start:stop])
    each = max(1, sum(table.group_bytes[start:stop]) // max(1, records))
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES // each))
    with pq.ParquetFile(
        table.path, memory_map=False, page_checksum_verification=True, pre_buffer=False
    ) as file:
        for group in range(start, stop):
            yield from file.iter_batches(batch_size=rows, row_groups=[group], columns=columns)


def _ipc_batches(
    table: Table, start: int, stop: int, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    options = pa.ipc.IpcReadOptions(included_fields=_places(table, columns))
    with pa.OSFile(table.path) as file, pa.ipc.open_file(file, options=options) as reader:
        for group in range(start, stop):
            yield from _small(reader.get_batch(group))


def _stream_batches(
    table: Table, start: int, stop: int, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    if start >= stop:
        return
    options = pa.ipc.IpcReadOptions(included_fields=_places(table, columns))
    with pa.OSFile(table.path) as file, pa.ipc.open_stream(file, options=options) as reader:
        yield from chain.from_iterable(map(_small, reader))


def _places(table: Table, columns: list[str]) -> list[int]:
    return sorted(table.schema.get_field_index(name) for name in columns)


def _small(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in slices of bounded size; nothing is copied."""
    each = max(1, batch.nbytes // max(1, batch.num_rows))
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES // each))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


_READ = {"parquet": _parquet_batches, "ipc": _ipc_batches, "stream": _stream_batches}
