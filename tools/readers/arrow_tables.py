"""One interface to files of Arrow tables: Parquet, Arrow IPC files (Feather) and IPC streams.

A file is a sequence of groups (row groups of Parquet, record batches of Arrow); a stream is one
group. Files are not memory-mapped: if a mapped file shrinks while it is read, the process dies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, repeat
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streammiml.config import format_size
from streammiml_tools.readers.base import Limits, SourceError
from streammiml_tools.readers.ipc_messages import (
    BatchSizes,
    file_messages,
    stream_messages,
)
from streammiml_tools.readers.messages import reason_of
from streammiml_tools.readers.parquet_footer import RowGroup, row_groups
from streammiml_tools.readers.partitions import keys_of, value_of
from streammiml_tools.readers.remote_files import arrow_file, arrow_source, source_path

PARQUET, IPC, STREAM, FEATHER1 = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff", b"FEA1"
BATCH_BYTES = 8 << 20
"""Size of a batch in bytes, approximately, if the format allows a choice."""
BATCH_ROWS = 65536
BOMB_BYTES = 256 << 20
BOMB_RATIO = 1000
"""A group that takes more than BOMB_BYTES in memory and more than this multiple of its bytes on
disk is refused."""
COLUMN_RATIO = 256
"""The lists and texts of a column may all be in one record. A column that takes more than this
multiple of its bytes on disk must fit into the allowed memory."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file: its schema, and the sizes of its groups."""

    path: str
    kind: str
    schema: pa.Schema
    group_bytes: tuple[int, ...]
    """Declared size of each group in memory."""
    group_records: tuple[int, ...]
    """Declared number of records of each group."""
    held_bytes: int
    """Declared bytes that must be held in memory together."""
    text_paths: tuple[str, ...] = ()
    """Paths, in a Parquet file, of columns of texts and of texts within lists."""
    partition: tuple[tuple[str, str | None], ...] = ()
    """Columns that have one value in the whole file, from the names of its folders."""

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return len(self.group_bytes)

    def check_memory(self, limits: Limits) -> None:
        """Refuse groups that need more memory than is allowed."""
        if self.held_bytes > limits.share:
            raise self._too_large("its largest batch", self.held_bytes, limits)

    def _too_large(self, what: str, n_bytes: int, limits: Limits) -> SourceError:
        enough = math.ceil(n_bytes * limits.n_processes * 1.1 / (1 << 20))
        return SourceError(
            f"{self.path}: {what} needs {format_size(n_bytes)}{limits.per_process}, more than "
            f"--memory {format_size(limits.memory)}; --memory {enough}MiB would be enough, or "
            "write the file again in smaller batches"
        )

    def batches(
        self, start: int, stop: int, columns: Sequence[str], limits: Limits
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the records of some groups in batches, each with the number of its first record.

        A record whose decoded columns take more memory than is allowed is refused.
        """
        first = sum(self.group_records[:start])
        values = {name: value for name, value in self.partition if name in columns}
        stored = [name for name in columns if name not in values]
        if values and not stored:
            yield from self._partition_batches(first, sum(self.group_records[start:stop]), values)
            return
        with _reading(self.path):
            for batch in _READ[self.kind](self, start, stop, stored):
                for piece, n_bytes in _bounded_pieces(batch):
                    if n_bytes > limits.share:
                        raise self._too_large(f"record {first}", n_bytes, limits)
                    yield first, _with_constants(piece, values)
                    first += piece.num_rows

    def _partition_batches(
        self, first: int, n_records: int, values: dict[str, str | None]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches of columns of the partition only; the file is not read."""
        for start in range(0, n_records, BATCH_ROWS):
            columns = _constants(values, min(BATCH_ROWS, n_records - start))
            yield first + start, pa.RecordBatch.from_arrays(columns, list(values))


def open_table(path: str | Path) -> TableFile:
    """Open a file; its first bytes determine the format."""
    stat = source_path(path).stat()
    return _open_table(str(path), stat.st_mtime_ns, stat.st_size)


def open_partition(path: str | Path) -> TableFile:
    """Open a file with the keys of its folders as columns of text (``split=train/a.parquet``).

    A column of the file with the name of a key is kept instead of the key.
    """
    stat = source_path(path).stat()
    return _open_partition(str(path), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=64)
def _open_partition(path: str, changed: int, size: int) -> TableFile:
    table = _open_table(path, changed, size)
    keys = {key: value for key, value in keys_of(path).items() if key not in table.schema.names}
    schema = table.schema
    for key in keys:
        schema = schema.append(pa.field(key, pa.string()))
    partition = tuple((key, value_of(value)) for key, value in keys.items())
    return replace(table, schema=schema, partition=partition)


def _constants(values: dict[str, str | None], n_records: int) -> list[pa.Array]:
    return [pa.repeat(pa.scalar(value, pa.string()), n_records) for value in values.values()]


def _with_constants(batch: pa.RecordBatch, values: dict[str, str | None]) -> pa.RecordBatch:
    """Append columns of one value each."""
    if not values:
        return batch
    columns = [*batch.columns, *_constants(values, batch.num_rows)]
    return pa.RecordBatch.from_arrays(columns, [*batch.schema.names, *values])


@lru_cache(maxsize=64)
def _open_table(path: str, _changed: int, size: int) -> TableFile:
    with _reading(path):
        kind = _kind(path)
        table = _open_parquet(path) if kind == "parquet" else _open_ipc(path, kind, size)
        for field in table.schema:
            # A name that is not UTF-8 raises here, and not later where it is first used.
            assert isinstance(f"{field.name} {field.type}", str)
    return table


def _open_ipc(path: str, kind: str, size: int) -> TableFile:
    # Sizes are checked before pyarrow opens the file, as pyarrow allocates what messages declare.
    batches, dictionary_bytes = _record_batches(path, kind, size)
    held_bytes = dictionary_bytes + max((batch.in_memory for batch in batches), default=0)
    open_reader = pa.ipc.open_stream if kind == "stream" else pa.ipc.open_file
    with arrow_file(path) as file, open_reader(file) as reader:
        schema = reader.schema
    n_records = tuple(batch.n_records for batch in batches)
    if kind == "stream":
        # A stream can only be read from its beginning, so all of its batches are one group.
        return TableFile(path, kind, schema, (size,), (sum(n_records),), held_bytes)
    sizes = tuple(batch.in_memory for batch in batches)
    return TableFile(path, kind, schema, sizes, n_records, held_bytes)


def _record_batches(path: str, kind: str, size: int) -> tuple[list[BatchSizes], int]:
    """Sizes of the record batches, and bytes of all dictionaries; huge sizes are refused."""
    batches: list[BatchSizes] = []
    dictionary_bytes = 0
    with source_path(path).open("rb") as file:
        messages = stream_messages if kind == "stream" else file_messages
        for message in messages(file, size):
            which = f"batch {len(batches)}" if message.is_records else "a dictionary"
            _refuse_enormous(path, which, message.on_disk, message.in_memory)
            if message.is_records:
                batches.append(message)
            else:
                dictionary_bytes += message.in_memory
    return batches, dictionary_bytes


def _kind(path: str) -> str:
    with source_path(path).open("rb") as file:
        head = file.read(8)
    if head.startswith(FEATHER1):
        raise SourceError(f"{path} is Feather version 1; write the file again as version 2")
    for magic, kind in ((PARQUET, "parquet"), (IPC, "ipc"), (STREAM, "stream")):
        if head.startswith(magic):
            return kind
    raise SourceError(f"{path} is neither Parquet nor Arrow: it begins with {head[:6]!r}")


@contextmanager
def _reading(path: str, group: str = "") -> Iterator[None]:
    """Turn any exception of pyarrow into a SourceError that names the file and the group.

    Damaged files make pyarrow raise its own exceptions, UnicodeDecodeError, ValueError, SystemError
    and OverflowError. So the body of this context must only call pyarrow.
    """
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise SourceError(f"{path} cannot be read: {error.strerror}") from error
        why = reason_of(error)
        where = f"{path}, {group}," if group else path
        raise SourceError(f"{where} is damaged or cut short ({why}); fetch it again") from error


def _open_parquet(path: str) -> TableFile:
    groups = row_groups(path)
    for number, group in enumerate(groups):
        _refuse_bomb(path, number, group)
    with pq.ParquetFile(arrow_source(path), memory_map=False) as file:
        return TableFile(
            path,
            "parquet",
            file.schema_arrow,
            tuple(group.in_memory for group in groups),
            tuple(group.n_rows for group in groups),
            max(map(_held_bytes, groups), default=0),
            _text_paths(file.schema),
        )


def _text_paths(schema: pq.ParquetSchema) -> tuple[str, ...]:
    leaves = (schema.column(i) for i in range(len(schema)))
    return tuple(leaf.path for leaf in leaves if leaf.logical_type.type == "STRING")


def _held_bytes(group: RowGroup) -> int:
    """Bytes of the columns of a row group that may be in one record and are tiny on disk."""
    total = 0
    for chunk in group.chunks:
        n_bytes = max(4 * chunk.n_values, chunk.in_memory)
        if (chunk.is_text or chunk.n_values > group.n_rows) and (
            n_bytes > COLUMN_RATIO * chunk.on_disk
        ):
            total += n_bytes
    return total


def _refuse_bomb(path: str, number: int, group: RowGroup) -> None:
    """Refuse a row group that takes far more memory than bytes on disk."""
    # Every value takes at least four bytes in memory, also in a list within one record.
    n_bytes = max(4 * sum(chunk.n_values for chunk in group.chunks), group.in_memory)
    on_disk = sum(chunk.on_disk for chunk in group.chunks)
    _refuse_enormous(path, f"row group {number}", on_disk, n_bytes)


def _refuse_enormous(path: str, which: str, on_disk: int, in_memory: int) -> None:
    if in_memory > max(BOMB_BYTES, BOMB_RATIO * on_disk):
        raise SourceError(
            f"{path}, {which}: {format_size(on_disk)} would become {format_size(in_memory)} in "
            "memory; write the file again in smaller groups"
        )


def _parquet_batches(
    table: TableFile, start: int, stop: int, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    records = sum(table.group_records[start:stop])
    record_bytes = max(1, sum(table.group_bytes[start:stop]) // max(1, records))
    batch_rows = max(1, min(BATCH_ROWS, BATCH_BYTES // record_bytes))
    # Texts stay dictionary-encoded: a text of 1 MB in every record would take gigabytes decoded.
    with pq.ParquetFile(
        arrow_source(table.path),
        memory_map=False,
        page_checksum_verification=True,
        pre_buffer=False,
        read_dictionary=table.text_paths,
    ) as file:
        for group in range(start, stop):
            batches = file.iter_batches(batch_size=batch_rows, row_groups=[group], columns=columns)
            name, n_records = f"row group {group}", 0
            for batch in _checked(table.path, batches, repeat(name)):
                yield batch
                n_records += batch.num_rows
            with _reading(table.path, name):
                if n_records != table.group_records[group]:
                    raise ValueError(
                        f"{n_records:,} records, {table.group_records[group]:,} declared"
                    )


def _ipc_batches(
    table: TableFile, start: int, stop: int, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    options = pa.ipc.IpcReadOptions(included_fields=_column_indices(table, columns))
    with arrow_file(table.path) as file, pa.ipc.open_file(file, options=options) as reader:
        numbers = range(start, stop)
        names = (f"batch {number}" for number in numbers)
        yield from _checked(table.path, map(reader.get_batch, numbers), names)


def _stream_batches(
    table: TableFile, start: int, stop: int, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    if start >= stop:
        return
    options = pa.ipc.IpcReadOptions(included_fields=_column_indices(table, columns))
    with arrow_file(table.path) as file, pa.ipc.open_stream(file, options=options) as reader:
        names = (f"batch {number}" for number in count())
        yield from _checked(table.path, iter(reader), names)


def _checked(
    path: str, batches: Iterator[pa.RecordBatch], names: Iterable[str]
) -> Iterator[pa.RecordBatch]:
    """Yield batches after a full validation; ``names`` are the batches' names for messages.

    pyarrow uses offsets and indices of a file unchecked. An invalid offset or index makes pyarrow
    read outside of its buffers, which kills the process.
    """
    for name in names:
        with _reading(path, name):
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate(full=True)
        yield batch


def _column_indices(table: TableFile, columns: list[str]) -> list[int]:
    return sorted(table.schema.get_field_index(name) for name in columns)


def _bounded_pieces(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Slice a batch into pieces of bounded size; yield each with its decoded bytes.

    Nothing is copied. A single record may exceed the bound.
    """
    rows = max(1, min(BATCH_ROWS, batch.num_rows))
    while rows > 1 and batch.nbytes // max(1, batch.num_rows) * rows > BATCH_BYTES:
        rows //= 2
    waiting = [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)][::-1]
    while waiting:
        piece = waiting.pop()
        n_bytes = sum(map(decoded_bytes, piece.columns))
        if n_bytes > 4 * BATCH_BYTES and piece.num_rows > 1:
            half = piece.num_rows // 2
            waiting += [piece.slice(half), piece.slice(0, half)]
        else:
            yield piece, n_bytes


def decoded_bytes(array: pa.Array) -> int:
    """Upper bound of the bytes of an array after its dictionaries and list views are decoded."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return decoded_bytes(array.storage)
    if pa.types.is_dictionary(kind):
        values = array.dictionary
        if is_text(values.type):
            lengths = pc.binary_length(values).fill_null(0)
            return int(pc.sum(lengths.take(array.indices)).as_py() or 0)
        return len(array) * max(8, decoded_bytes(values) if pa.types.is_nested(values.type) else 0)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        count = int(pc.sum(pc.list_value_length(array)).as_py() or 0)
        return count * _largest_item(array.values)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return decoded_bytes(array.flatten()) + 8 * len(array)
    return int(array.nbytes)


def _largest_item(values: pa.Array) -> int:
    """Upper bound of the bytes of one value."""
    kind = values.type
    if not len(values) or pa.types.is_primitive(kind):
        return 8
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        longest = pc.max(pc.list_value_length(values)).as_py() or 0
        return int(longest) * _largest_item(values.values)
    return max(8, decoded_bytes(values))


def is_text(kind: pa.DataType) -> bool:
    """Whether values are texts, in any of Arrow's text types."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


_READ = {"parquet": _parquet_batches, "ipc": _ipc_batches, "stream": _stream_batches}
