"""The plan of a conversion: decided once, saved, and loaded again when the conversion is resumed.

The plan is saved in a hidden folder beside the store. The folder holds all files until the store is
complete. The plan has records of the sources, the options, and the result of the first pass.
Running the same command again resumes the plan. Other options or a changed source are refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from streammiml._base.atomic import FolderLock, free_bytes, write_atomically
from streammiml._base.json_and_toml import parse_json
from streammiml.bags.block import BagBlock
from streammiml.bags.file_errors import writing
from streammiml.bags.kept_columns import KeptColumn
from streammiml.bags.layout import CHUNK_BYTES, CODECS, ROW_DTYPES
from streammiml.bags.location import SCHEMES, LocalFolder, open_location
from streammiml.bags.staging import staging_for
from streammiml.bags.validate import StoreSpec, backend_of
from streammiml.config import check_whole, format_size, parse_size
from streammiml.errors import StoreError, StreammimlError, unknown
from streammiml_tools.convert.label_map import LabelMap, MappedBags, label_map, options_of_source
from streammiml_tools.convert.sources import FileRecord, Sources, change_of, records_of
from streammiml_tools.convert.split_and_filter import Split
from streammiml_tools.readers import reader_module, reader_of
from streammiml_tools.readers.base import (
    BESIDE,
    NONE,
    SPAN_BYTES,
    Limits,
    Reader,
    Scan,
    SourceError,
    SourceOptions,
    Span,
)
from streammiml_tools.readers.label_table import BagLabels, load_label_table, no_ids
from streammiml_tools.readers.messages import listed
from streammiml_tools.readers.remote_files import keep_files_for

VERSION = 1
PLAN = "plan.json"
HELD_SPANS = 8
"""Upper limit of spans that a process holds at once: read, joined, converted, and read ahead."""
LEAST_SPAN = 64 << 10
"""Least size of a span, in bytes."""
GROWTH = {
    **dict.fromkeys((".gz", ".zst", ".tgz"), 64),
    **dict.fromkeys((".parquet", ".arrow", ".feather", ".ipc", ".tar"), 8),
}
"""By which factor a compressed file is expected to grow when it is decompressed. If it grows more,
its parts become larger (see ``slot_bytes``). More than 3.75 times the expected size is refused."""
NOT_KEEPING = ("arff", "matlab", "protein", "svmlight")
"""Readers that do not take ``--keep``: their files have no columns beside rows and labels."""
ID_COLUMNS = ("csv", "arrow", "jsonl")
"""Readers for which ``--bag-column`` names a column of the source, as it does of the table of
``--bag-labels``; the others know the ids of their bags."""
PLAIN_GROWTH = 4
"""The same factor for files that are not compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertConfig:
    """How stores are written; ``SourceOptions`` say how the source is read."""

    dtype: str | None = None
    """Type of the stored values; the narrowest type that holds them unless given."""
    codec: str = "auto"
    """none, lz4 or zstd; auto: none for float rows, lz4 for integer and sparse rows."""
    chunk_bytes: str = str(CHUNK_BYTES)
    """Approximate bytes that one read of the store fetches; 256KiB unless given."""
    empty_bags: str = "refuse"
    """What to do with bags without rows: refuse them, or drop and count them."""
    where_label: tuple[str, ...] = ()
    """Keep only bags with this label, by name or number; with several, bags with any of them."""
    limit: int | None = None
    """Keep only this many bags: the first ones of the result, before the split."""
    split: str | None = None
    """Write several stores: train=0.7,valid=0.1,test=0.2; by a hash of seed and bag number."""
    stratify: bool = False
    """Group bags by their rarest label, and split each group by the same shares."""
    shuffle: bool = False
    """Write bags in the order of a hash of seed and bag number."""
    seed: int = 0
    """Seed of split and shuffle."""
    memory: str = "1GiB"
    """Upper limit of memory of all processes together, beyond the interpreter and libraries."""

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in ROW_DTYPES:
            raise unknown("dtype", self.dtype, ROW_DTYPES)
        if self.codec not in ("auto", *CODECS):
            raise unknown("codec", self.codec, ("auto", *CODECS))
        if self.empty_bags not in ("refuse", "drop"):
            raise unknown("policy for empty bags", self.empty_bags, ("refuse", "drop"))
        check_whole("seed", self.seed, 0)
        if self.limit is not None:
            check_whole("limit", self.limit, 1)
        if self.split is not None:
            Split.parse(self.split)
        if self.stratify and self.split is None:
            raise StreammimlError("--stratify says how to split; give --split too")
        parse_size(self.memory)
        parse_size(self.chunk_bytes, option="chunk_bytes")

    def record(self) -> dict[str, Any]:
        """Return the settings that decide the result: all but ``memory``."""
        record = asdict(self)
        del record["memory"]
        return {**record, "where_label": list(self.where_label)}


@dataclass(frozen=True, slots=True)
class Target:
    """A store to write, and the folder for its parts until it is complete."""

    name: str
    destination: str
    staging: str

    @property
    def is_done(self) -> bool:
        """Whether the store is complete. A new plan is refused if its stores exist already."""
        location = open_location(self.destination)
        if isinstance(location, LocalFolder):
            return location.path.exists()
        return location.size("_streammiml/manifest.json") is not None


@dataclass(frozen=True, slots=True)
class PartNumbers:
    """The half-open range of part numbers that a span may fill."""

    first: int
    stop: int


def targets_of(destination: str, settings: ConvertConfig) -> tuple[Target, ...]:
    """Return the stores to write: one, or one for each name of the split."""
    folder = work_folder(destination)
    if settings.split is None:
        return (Target("", destination, str(folder / "store")),)
    stem, _, suffix = destination.rstrip("/").rpartition(".")
    return tuple(
        Target(name, f"{stem}-{name}.{suffix}", str(folder / f"store-{name}"))
        for name in Split.parse(settings.split).names
    )


class ConversionPlan:
    """Everything that decides the result of a conversion."""

    def __init__(
        self,
        destination: str,
        reader: str,
        scan: Scan,
        options: SourceOptions,
        settings: ConvertConfig,
    ) -> None:
        self.destination, self.reader, self.scan = destination, reader, scan
        self.options, self.settings = options, settings
        self.folder = work_folder(destination)
        # Workers of a cluster may know files under URLs from an earlier conversion.
        self._session = uuid4().hex

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """The stores to write: one, or one for each name of the split."""
        return targets_of(self.destination, self.settings)

    @property
    def spills(self) -> bool:
        """Whether bags go through a temporary store, because they change their order."""
        return self.settings.shuffle or self.options.group

    @cached_property
    def sparse(self) -> bool:
        """Whether rows are stored sparse."""
        return self.scan.sparse if self.options.sparse is None else self.options.sparse

    @cached_property
    def label_map(self) -> LabelMap | None:
        """The numbers of labels that change, as ``--unknown-labels`` drops or appends labels."""
        return label_map(self.scan, self.options, self.scan.spans[0].path.split(BESIDE)[0])

    @cached_property
    def spec(self) -> StoreSpec:
        """The specification of every store."""
        if self.label_map is None:
            return self.source_spec
        return replace(self.source_spec, label_names=self.label_map.names, n_labels=None)

    @cached_property
    def source_spec(self) -> StoreSpec:
        """The specification of a store with the labels of the source."""
        scan, settings = self.scan, self.settings
        return StoreSpec(
            n_features=scan.n_features,
            dtype=settings.dtype or scan.dtype,
            sparse=self.sparse,
            n_labels=scan.n_labels if scan.label_names is None else None,
            label_names=scan.label_names,
            feature_names=scan.feature_names,
            row_labels=scan.row_labels,
            bag_ids=scan.bag_ids,
            codec=settings.codec,
            chunk_bytes=parse_size(settings.chunk_bytes, option="chunk_bytes"),
            empty_bags=settings.empty_bags,
            kept=scan.kept,
        )

    @cached_property
    def parts(self) -> tuple[PartNumbers, ...]:
        """The part numbers of each span."""
        ranges, first = [], 0
        for span in self.scan.spans:
            stop = first + n_slots(span, self.options.span_bytes)
            ranges.append(PartNumbers(first, stop))
            first = stop
        return tuple(ranges)

    @property
    def n_parts(self) -> int:
        """Number of parts of all spans."""
        return self.parts[-1].stop if self.parts else 0

    @cached_property
    def reading(self) -> SourceOptions:
        """The options that the reader gets; it knows nothing of the table of ``--bag-labels``."""
        return reading_options(self.options, reader_of(self.reader))

    @cached_property
    def label_table(self) -> BagLabels | None:
        """The table of ``--bag-labels``; each process loads it once."""
        if self.options.bag_labels is None:
            return None
        return load_label_table(self.options.bag_labels, options_of_source(self.options))

    def read(self, span: Span) -> Iterator[BagBlock]:
        """Yield the bags of a span, with the labels of the table if there is one."""
        keep_files_for(self._session)
        for block in reader_of(self.reader).read(span, self.scan, self.reading):
            if self.label_table is None:
                yield block
            else:
                yield self.label_table.labelled(block, span.path.split(BESIDE)[0])

    def known(self, block: BagBlock, where: str) -> MappedBags:
        """Return the bags with the label numbers of the store, and counts of dropped labels."""
        if self.label_map is None:
            return MappedBags(block, 0, 0)
        return self.label_map.apply(block, where)

    @cached_property
    def wanted_labels(self) -> list[int]:
        """Numbers of the labels of ``--where-label``."""
        names, count = self.spec.label_names, self.spec.labels_known
        return [_label_number(label, names, count) for label in self.settings.where_label]

    @cached_property
    def needed_bytes(self) -> int:
        """Approximate bytes of disk for all files; the size of the source where rows are unknown.

        A store under a URL takes little local disk: parts are removed after they are uploaded.
        """
        copies = self.spills + self.options.group + (not self.destination.startswith(SCHEMES))
        scan = self.scan
        if scan.n_rows is None or self.sparse:
            return sum(span.n_bytes for span in scan.spans) * max(1, copies)
        row_bytes = scan.n_features * np.dtype(self.spec.dtype).itemsize
        return scan.n_rows * row_bytes * max(1, copies)

    def writing(self) -> AbstractContextManager[None]:
        """Return a context that turns a failure to write into an error of one line."""
        return writing(self.destination, self.folder, self.needed_bytes)

    def fingerprint(self) -> str:
        """Return a hash of everything that decides the result, for the writer."""
        return hashlib.sha256(json.dumps(self._record(), sort_keys=True).encode()).hexdigest()

    def _record(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "reader": self.reader,
            "options": _record_of(self.options),
            "settings": self.settings.record(),
            "scan": _scan_record(self.scan),
        }

    def save(self, records: list[FileRecord]) -> None:
        """Save the plan, with the records of its sources."""
        record = {**self._record(), "sources": records}
        write_atomically(self.folder / PLAN, json.dumps(record, sort_keys=True).encode())


def new_plan(
    files: Sources,
    destination: str,
    settings: ConvertConfig,
    options: SourceOptions,
    n_processes: int,
) -> ConversionPlan:
    """Make the first pass over the sources and return a plan; nothing is written."""
    memory = parse_size(settings.memory)
    asked_bytes = options.span_bytes
    if asked_bytes == SPAN_BYTES and (settings.shuffle or options.group):
        # Every bucket of the result reads from every part, so few long spans are faster. They take
        # half of the memory, since keys are held beside them.
        asked_bytes = max(asked_bytes, span_bytes(memory, n_processes, memory) // 2)
    options = replace(
        options,
        span_bytes=span_bytes(memory, n_processes, asked_bytes),
        limits=limits_of(settings, options, n_processes),
    )
    if options.no_labels and not files.reader.may_lack_labels:
        raise SourceError(
            f"{files.paths[0]}: labels are part of {files.reader.name} files; leave out "
            "--label-columns none"
        )
    if options.kept_names and files.reader.name in NOT_KEEPING:
        raise SourceError(
            f"{files.paths[0]}: {files.reader.name} files have no columns to keep; leave out --keep"
        )
    scan = files.reader.scan(files.paths, reading_options(options, files.reader))
    if options.bag_labels is not None:
        table = load_label_table(options.bag_labels, options_of_source(options))
        scan = _with_labels(scan, table, files)
    scan = _with_count(scan, options, files.name)
    check_memory(scan, memory, n_processes, files.name)
    if not scan.spans:
        raise SourceError(f"{files.name} holds no bags")
    plan = ConversionPlan(destination, files.reader.name, scan, options, settings)
    if options.group and not scan.bag_ids:
        raise SourceError(f"{files.name} has no bag ids, which --group needs; give --bag-column")
    if options.group and settings.stratify:
        raise StreammimlError(
            "--stratify needs complete bags, but --group has yet to join them; convert with "
            "--group first, then split the resulting store"
        )
    # Computing these properties refuses unknown labels and impossible stores before any work.
    assert plan.spec is not None
    assert plan.wanted_labels is not None
    return plan


def reading_options(options: SourceOptions, reader: Reader) -> SourceOptions:
    """Return the options for a reader: without its labels, if a table has those of the bags."""
    options = options_of_source(options)
    if options.bag_labels is None:
        return options
    return replace(
        options,
        bag_labels=None,
        labels=None,
        n_labels=None,
        label_columns=(NONE,) if reader.may_lack_labels else None,
        bag_column=options.bag_column if reader.name in ID_COLUMNS else None,
    )


def _with_labels(scan: Scan, table: BagLabels, files: Sources) -> Scan:
    """Return the scan with the labels of a table; bags of files are looked up at once."""
    if not scan.bag_ids:
        raise no_ids(files.name)
    warnings = scan.warnings
    if files.reader.name == "files":
        ids = list(reader_module("files").ids_in(scan))
        table.refuse_missing(ids, files.name)
        without = table.without_bag(ids)
        if without:
            warnings += (
                f"{table.where} has labels for {len(without):,} more bags: {listed(without)}",
            )
    notes = (*(note for note in scan.notes if not note.startswith("no labels")), table.note)
    return replace(
        scan,
        label_names=table.names,
        n_labels=table.n_labels,
        row_labels=False,
        notes=notes,
        warnings=warnings,
    )


def _with_count(scan: Scan, options: SourceOptions, name: str) -> Scan:
    """Return the scan with the number of labels of ``--n-labels``; the writer refuses others."""
    if options.n_labels is None:
        return scan
    named = scan.label_names is not None
    known = len(scan.label_names or ()) if named else scan.n_labels
    if known is not None and known != options.n_labels and (named or known > options.n_labels):
        raise SourceError(f"{name} has {known:,} labels, but --n-labels gives {options.n_labels:,}")
    return scan if named else replace(scan, n_labels=options.n_labels)


def _label_number(label: str, names: tuple[str, ...] | None, count: int | None) -> int:
    if names is not None and label in names:
        return names.index(label)
    if label.isascii() and label.isdigit() and (count is None or int(label) < count):
        return int(label)
    known = ", ".join(names[:20]) if names else f"0 to {(count or 1) - 1}" if count else "numbers"
    raise SourceError(f"--where-label {label}: there is no such label; known: {known}")


def n_slots(span: Span, part_bytes: int) -> int:
    """Return how many parts a span may fill: one, unless the span is large or compressed."""
    growth = GROWTH.get(Path(span.path).suffix.lower())
    if growth is None and span.n_bytes <= 2 * part_bytes:
        return 1
    return max(4, math.ceil(span.n_bytes * (growth or PLAIN_GROWTH) / part_bytes))


def slot_bytes(slot: int, slots: int, part_bytes: int) -> float:
    """Return the size in bytes at which part ``slot`` of the ``slots`` parts of a span is full.

    Parts of the second, third and fourth quarter take two, four and eight times as much, so that a
    span which grows more than expected still fits.
    """
    return part_bytes * 2.0 ** min(3, 4 * slot // slots) if slots > 1 else math.inf


def work_folder(destination: str) -> Path:
    """Return the hidden folder of a conversion, beside its store."""
    backend_of(destination)
    return staging_for(destination)


def limits_of(settings: ConvertConfig, options: SourceOptions, n_processes: int) -> Limits:
    """Return the limits that a reader must keep during a conversion."""
    stops_early = settings.limit is not None and not (settings.shuffle or options.group)
    return Limits(parse_size(settings.memory), n_processes, reads_all=not stops_early)


def span_bytes(memory: int, n_processes: int, requested: int = SPAN_BYTES) -> int:
    """Return the size of spans: ``requested``, or less if memory is short."""
    fitting = memory // (HELD_SPANS * n_processes)
    if fitting < LEAST_SPAN:
        least = HELD_SPANS * n_processes * LEAST_SPAN
        raise StreammimlError(
            f"--memory {format_size(memory)} is too little for {n_processes} processes; "
            f"give at least {format_size(least)}"
        )
    return min(requested, fitting)


def check_spans(plan: ConversionPlan, memory: int, n_processes: int) -> None:
    """Refuse to resume a plan whose spans need more memory than is allowed now."""
    planned = plan.options.span_bytes
    if span_bytes(memory, n_processes, planned) < planned:
        raise StreammimlError(
            f"{plan.destination} was begun in spans of {format_size(planned)}, which need --memory "
            f"{math.ceil(HELD_SPANS * n_processes * planned / (1 << 20))}MiB; give that, or remove "
            f"{plan.folder} to start again"
        )


def check_memory(scan: Scan, memory: int, n_processes: int, name: str) -> None:
    """Refuse a source that must be loaded as a whole and does not fit in the allowed memory."""
    needed = scan.holds_bytes * n_processes
    if needed > memory:
        by_each = f" by each of {n_processes} processes" if n_processes > 1 else ""
        enough = f"{math.ceil(needed * 1.1) >> 20}MiB"
        raise SourceError(
            f"{name} must be loaded as a whole: {format_size(scan.holds_bytes)}{by_each}, more "
            f"than --memory {format_size(memory)}; --memory {enough} would do"
        )


def check_disk(plan: ConversionPlan) -> None:
    """Refuse a store that does not fit on the disk, where its size is known beforehand."""
    scan, spec = plan.scan, plan.spec
    if scan.n_rows is None or spec.sparse or spec.resolved_codec != "none":
        return
    if plan.settings.limit is not None or plan.settings.where_label:
        return
    needed = plan.needed_bytes
    existing = next(
        path for path in (plan.folder, *plan.folder.absolute().parents) if path.exists()
    )
    if needed > free_bytes(existing):
        raise StoreError(
            f"{plan.destination} needs {needed:,} bytes, {free_bytes(existing):,} are free; "
            "make room, or write elsewhere"
        )


class ConversionFolder:
    """The hidden folder of a conversion; a context manager that holds its lock."""

    def __init__(self, destination: str) -> None:
        self.folder = work_folder(destination)
        self._destination = destination
        self._lock: FolderLock | None = None
        self._is_discarded = False

    def __enter__(self) -> ConversionFolder:
        # The process that held the lock may remove the folder after this process opened the lock
        # file and before it locked it. Such a lock protects nothing, so try again.
        while self._lock is None:
            self._lock = self._locked()
            if not self._lock.is_in_place:
                self._lock.release()
                self._lock = None
        return self

    def _locked(self) -> FolderLock:
        folder = self.folder
        if not folder.absolute().parent.is_dir():
            raise StoreError(
                f"{self._destination} cannot be written: there is no folder {folder.parent}"
            )
        with writing(self._destination, folder.parent):
            folder.mkdir(exist_ok=True)
            return FolderLock(folder / "lock", self._destination)

    def __exit__(self, *_: object) -> None:
        # Remove before the lock is released: afterwards the folder may belong to another process.
        # A folder without a plan cannot be resumed.
        if self._is_discarded or not (self.folder / PLAN).exists():
            self.remove()
        if self._lock is not None:
            self._lock.release()

    def discard(self) -> None:
        """Remove the folder on exit, when no worker writes into it any more."""
        self._is_discarded = True

    def clear(self) -> None:
        """Delete leftovers of a conversion that was killed while it cleaned up."""
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()

    def remove(self) -> None:
        """Delete the folder."""
        # The plan goes first: if this process is killed here, the rest is not resumed.
        (self.folder / PLAN).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def saved_records(self) -> list[FileRecord]:
        """Records of the sources, as the plan of this conversion has them."""
        records: list[FileRecord] = parse_json((self.folder / PLAN).read_bytes())["sources"]
        return records

    def load_plan(
        self, files: Sources, options: SourceOptions, settings: ConvertConfig
    ) -> ConversionPlan | None:
        """Return the plan to resume, or None if there is none.

        A plan of other sources, options or settings is refused.
        """
        try:
            record = parse_json((self.folder / PLAN).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise self._cannot_resume("cannot be resumed: its plan is damaged") from None
        if record.get("version") != VERSION:
            raise self._cannot_resume("was begun by another version of streammiml")
        change = change_of(record["sources"], records_of(files.watched))
        if change is not None:
            raise self._cannot_resume(f"cannot be resumed: {change} since the conversion began")
        saved = _options_of(record["options"])
        if replace(saved, span_bytes=0) != replace(options, span_bytes=0, limits=saved.limits):
            names = _differing(saved, options)
            raise self._cannot_resume(f"was begun with other options ({names})")
        given = settings.record()
        changed = [name for name, value in record["settings"].items() if given[name] != value]
        if changed or record["reader"] != files.reader.name:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in changed) or "--format"
            raise self._cannot_resume(f"was begun with other options ({names})")
        saved = replace(saved, limits=options.limits)
        scan = _scan_of(record["scan"])
        return ConversionPlan(self._destination, record["reader"], scan, saved, settings)

    def _cannot_resume(self, why: str) -> StoreError:
        return StoreError(f"{self._destination} {why}; remove {self.folder} to start again")


def _differing(saved: SourceOptions, given: SourceOptions) -> str:
    names = [field.name for field in fields(saved) if field.name not in ("span_bytes", "limits")]
    changed = [name for name in names if getattr(saved, name) != getattr(given, name)]
    return ", ".join(f"--{name.replace('_', '-')}" for name in changed)


def _tuples(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with its lists turned back into tuples, which JSON saves as lists."""
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in record.items()
    }


def _record_of(options: SourceOptions) -> dict[str, Any]:
    """Return the options that decide the result: all but the limits."""
    record = asdict(options)
    del record["limits"]
    # An option that is not given is left out, so that conversions of earlier versions are resumed.
    for name in ("keep", "where"):
        if record[name] is None:
            del record[name]
    if options.unknown_labels == "refuse":
        del record["unknown_labels"]
    return record


def _scan_record(scan: Scan) -> dict[str, Any]:
    record = {**asdict(scan), "spans": [list(span) for span in scan.spans]}
    if not scan.kept:
        del record["kept"]
    return record


def _options_of(record: dict[str, Any]) -> SourceOptions:
    return SourceOptions(**_tuples(record))


def _scan_of(record: dict[str, Any]) -> Scan:
    spans = tuple(Span(*span) for span in record["spans"])
    kept = tuple(KeptColumn(*column) for column in record.get("kept", ()))
    return Scan(**{**_tuples(record), "spans": spans, "kept": kept})


def refuse_existing(targets: Sequence[Target]) -> None:
    """Refuse stores that exist before the conversion begins."""
    for target in targets:
        if target.is_done:
            raise StoreError(
                f"{target.destination} exists already; remove it or choose another name"
            )
