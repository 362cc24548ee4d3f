"""What a conversion is to do, decided once and written down, so that it can be gone on with.

The plan lies in the hidden folder beside the store in which everything is written until it is
complete: sources as they were found, options, and what the first pass understood. Running the
same command again goes on with it; another command, or a source that has changed, is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from streammiml.bags.checks import StoreSpec, backend_of
from streammiml.bags.layout import CHUNK_BYTES, CODECS, ROW_DTYPES
from streammiml.bags.parts import Lock
from streammiml.bags.place import SCHEMES, LocalPlace, free_bytes, open_place, write_atomically
from streammiml.bags.store import staging_of
from streammiml.config import check_whole, format_size, parse_size
from streammiml.errors import StoreError, StreammimlError, unknown
from streammiml_tools.choosing import Split
from streammiml_tools.readers.base import SPAN_BYTES, Scan, SourceError, SourceOptions, Span
from streammiml_tools.sources import Sources, change_of, noted_of

VERSION = 1
PLAN = "plan.json"
HELD_SPANS = 8
"""Spans that a process holds at a time, at most: read, joined, converted, and one ahead."""
LEAST_SPAN = 64 << 10
GROWTH = {".gz": 64, ".zst": 64, ".parquet": 8, ".arrow": 8, ".feather": 8, ".ipc": 8}
"""How many times larger than their bytes the bags of a compressed file may be before parts grow;
at 3.75 times that they are refused."""
PLAIN_GROWTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertConfig:
    """How a source becomes a store, apart from what is in it."""

    dtype: str | None = None
    """Type of the stored values; the narrowest that holds them unless given."""
    codec: str = "auto"
    """none, lz4 or zstd; auto: none for float rows, lz4 for integer and sparse ones."""
    chunk_bytes: str = str(CHUNK_BYTES)
    """Bytes that one read of the store fetches, about; 256KiB unless given."""
    empty_bags: str = "refuse"
    """refuse, or drop: leave bags without rows out, and count them."""
    where_label: tuple[str, ...] = ()
    """Keep only bags that carry this label, by name or number; of several, any."""
    limit: int | None = None
    """Keep the first so many bags of the result, counted before it is split."""
    split: str | None = None
    """Several stores: train=0.7,valid=0.1,test=0.2; by a hash of seed and bag number."""
    stratify: bool = False
    """Split the bags of each rarest label by the same shares."""
    shuffle: bool = False
    """Write bags in the order of a hash of seed and bag number."""
    seed: int = 0
    """Of split and shuffle."""
    memory: str = "1GiB"
    """What is held at most, beyond the interpreter and its libraries, by all processes."""

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

    def kept(self) -> dict[str, Any]:
        """What decides the result; memory does not."""
        said = asdict(self)
        del said["memory"]
        return {**said, "where_label": list(self.where_label)}


@dataclass(frozen=True, slots=True)
class Target:
    """One store that is made."""

    name: str
    destination: str
    staging: str

    @property
    def is_done(self) -> bool:
        """Whether it is complete; whoever made the plan saw that there was none before."""
        place = open_place(self.destination)
        if isinstance(place, LocalPlace):
            return place.path.exists()
        return place.size("_streammiml/manifest.json") is not None


@dataclass(frozen=True, slots=True)
class Part:
    """Numbers of the parts that the bags of a span may fill."""

    first: int
    stop: int


def targets_of(destination: str, settings: ConvertConfig) -> tuple[Target, ...]:
    """The stores that are made, one unless there is a split."""
    folder = work_folder(destination)
    if settings.split is None:
        return (Target("", destination, str(folder / "store")),)
    stem, _, suffix = destination.rstrip("/").rpartition(".")
    return tuple(
        Target(name, f"{stem}-{name}.{suffix}", str(folder / f"store-{name}"))
        for name in Split.parse(settings.split).names
    )


class Plan:
    """A conversion as it was decided at its beginning."""

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

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """The stores that are made, one unless there is a split."""
        return targets_of(self.destination, self.settings)

    @property
    def spills(self) -> bool:
        """Whether bags must be written down before they can be put in order."""
        return self.settings.shuffle or self.options.group

    @cached_property
    def sparse(self) -> bool:
        """Whether rows are stored sparse."""
        return self.scan.sparse if self.options.sparse is None else self.options.sparse

    @cached_property
    def spec(self) -> StoreSpec:
        """What the stores hold."""
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
        )

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Parts of each span."""
        out, first = [], 0
        for span in self.scan.spans:
            stop = first + n_slots(span, self.options.span_bytes)
            out.append(Part(first, stop))
            first = stop
        return tuple(out)

    @property
    def n_parts(self) -> int:
        """Parts of all spans."""
        return self.parts[-1].stop if self.parts else 0

    @cached_property
    def wanted_labels(self) -> list[int]:
        """Numbers of the labels of which a bag must carry one; none if it need not."""
        names = self.scan.label_names
        count = len(names) if names is not None else self.scan.n_labels
        return [_label_number(label, names, count) for label in self.settings.where_label]

    def fingerprint(self) -> str:
        """A text that names what is converted, for the writer."""
        return hashlib.sha256(json.dumps(self._said(), sort_keys=True).encode()).hexdigest()

    def _said(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "reader": self.reader,
            "options": asdict(self.options),
            "settings": self.settings.kept(),
            "scan": {**asdict(self.scan), "spans": [list(span) for span in self.scan.spans]},
        }

    def save(self, noted: list[list[str | int]]) -> None:
        """Write it down, with what is noted of the sources."""
        said = {**self._said(), "sources": noted}
        write_atomically(self.folder / PLAN, json.dumps(said, sort_keys=True).encode())


def _label_number(label: str, names: tuple[str, ...] | None, count: int | None) -> int:
    if names is not None and label in names:
        return names.index(label)
    if label.isascii() and label.isdigit() and (count is None or int(label) < count):
        return int(label)
    known = ", ".join(names[:20]) if names else f"0 to {(count or 1) - 1}" if count else "numbers"
    raise SourceError(f"--where-label {label}: there is no such label; known: {known}")


def n_slots(span: Span, part_bytes: int) -> int:
    """Parts that a span may need: one, unless it could not be cut as small as asked."""
    growth = GROWTH.get(Path(span.path).suffix.lower())
    if growth is None and span.n_bytes <= 2 * part_bytes:
        return 1
    return max(4, math.ceil(span.n_bytes * (growth or PLAIN_GROWTH) / part_bytes))


def slot_bytes(slot: int, slots: int, part_bytes: int) -> float:
    """Bytes after which a part of a span is full: the last quarters take two, four, eight times."""
    return part_bytes * 2.0 ** min(3, 4 * slot // slots) if slots > 1 else math.inf


def work_folder(destination: str) -> Path:
    """Where a conversion keeps everything until it is complete."""
    backend_of(destination)
    if destination.startswith(SCHEMES):
        key = hashlib.sha256(destination.encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"streammiml-{key}.partial"
    return staging_of(Path(destination))


def span_bytes(memory: int, n_processes: int, asked: int = SPAN_BYTES) -> int:
    """Bytes of a span that fit into memory with all that is held beside it."""
    fitting = memory // (HELD_SPANS * n_processes)
    if fitting < LEAST_SPAN:
        least = HELD_SPANS * n_processes * LEAST_SPAN
        raise StreammimlError(
            f"--memory {format_size(memory)} is too little for {n_processes} processes; "
            f"{format_size(least)} is the least"
        )
    return min(asked, fitting)


def check_spans(plan: Plan, memory: int, n_processes: int) -> None:
    """Refuse to go on with spans that were cut for more memory than is allowed now."""
    asked = plan.options.span_bytes
    if span_bytes(memory, n_processes, asked) < asked:
        raise StreammimlError(
            f"{plan.destination} was begun in spans of {format_size(asked)}, which need --memory "
            f"{math.ceil(HELD_SPANS * n_processes * asked / (1 << 20))}MiB; give that, or remove "
            f"{plan.folder} to start anew"
        )


def check_memory(scan: Scan, memory: int, n_processes: int, where: str) -> None:
    """Refuse, before the first bag, what cannot be read in the memory that is allowed."""
    need = scan.holds_bytes * n_processes
    if need > memory:
        much = f" by each of {n_processes} processes" if n_processes > 1 else ""
        raise SourceError(
            f"{where} must be held whole: {format_size(scan.holds_bytes)}{much}, more than "
            f"--memory {format_size(memory)}; --memory {math.ceil(need * 1.1) >> 20}MiB would do"
        )


def check_disk(plan: Plan) -> None:
    """Refuse, before the first bag, a store that the disk has no room for, where that is known."""
    scan, spec = plan.scan, plan.spec
    if scan.n_rows is None or spec.sparse or spec.resolved_codec != "none":
        return
    copies = 1 + plan.spills + plan.options.group
    if plan.settings.limit is not None or plan.settings.where_label:
        return
    need = scan.n_rows * scan.n_features * np.dtype(spec.dtype).itemsize * copies
    there = next(path for path in (plan.folder, *plan.folder.absolute().parents) if path.exists())
    if need > free_bytes(there):
        raise StoreError(
            f"{plan.destination} needs {need:,} bytes, {free_bytes(there):,} are free; "
            "make room, or write elsewhere"
        )


class Work:
    """The folder of a conversion, locked; a context manager."""

    def __init__(self, destination: str) -> None:
        self.folder = work_folder(destination)
        self._destination = destination
        self._lock: Lock | None = None
        self._worthless = False

    def __enter__(self) -> Work:
        # Whoever held it may have taken the folder away after it was opened here, before it was
        # locked: then what is locked is nobody's any more.
        while self._lock is None:
            self._lock = self._locked()
            if not self._lock.is_in_place:
                self._lock.release()
                self._lock = None
        return self

    def _locked(self) -> Lock:
        folder = self.folder
        if not folder.absolute().parent.is_dir():
            raise StoreError(
                f"{self._destination} cannot be written: there is no folder {folder.parent}"
            )
        try:
            folder.mkdir(exist_ok=True)
            return Lock(folder / "lock", self._destination)
        except OSError as error:
            raise StoreError(f"{self._destination} cannot be written: {error.strerror}") from error

    def __exit__(self, *_: object) -> None:
        # Removed before it is let go of: afterwards it may be somebody else's. What lies there
        # without a plan can be of no use to anybody.
        if self._worthless or not (self.folder / PLAN).exists():
            self.remove()
        if self._lock is not None:
            self._lock.release()

    def discard(self) -> None:
        """Take everything away when it is left: then no worker writes into it any more."""
        self._worthless = True

    def clear(self) -> None:
        """Take away what a conversion left that was killed while it cleaned up."""
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()

    def remove(self) -> None:
        """Take everything away that is not the store."""
        # The plan goes first: without it the rest is nobody's.
        (self.folder / PLAN).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def resumed(
        self, sources: Sources, options: SourceOptions, settings: ConvertConfig
    ) -> Plan | None:
        """The plan that was begun here before, if it is the same; None if there is none."""
        path = self.folder / PLAN
        try:
            said = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise self._other("cannot be gone on with: its plan is damaged") from None
        if said.get("version") != VERSION:
            raise self._other("was begun by another version of streammiml")
        change = change_of(said["sources"], noted_of(sources.paths))
        if change is not None:
            raise self._other(f"cannot be gone on with: {change} since it was begun")
        scan = said["scan"]
        own = _as_options(said["options"])
        if asdict(replace(own, span_bytes=0)) != asdict(replace(options, span_bytes=0)):
            raise self._other(f"was begun with other options ({_differing(own, options)})")
        kept = settings.kept()
        wrong = [name for name, value in said["settings"].items() if kept[name] != value]
        if wrong or said["reader"] != sources.reader.name:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in wrong) or "--format"
            raise self._other(f"was begun with other options ({names})")
        return Plan(self._destination, said["reader"], _as_scan(scan), own, settings)

    def _other(self, why: str) -> StoreError:
        return StoreError(f"{self._destination} {why}; remove {self.folder} to start anew")


def _differing(one: SourceOptions, two: SourceOptions) -> str:
    names = [field.name for field in fields(one) if field.name != "span_bytes"]
    wrong = [name for name in names if getattr(one, name) != getattr(two, name)]
    return ", ".join(f"--{name.replace('_', '-')}" for name in wrong)


def _tuples(said: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in said.items()}


def _as_options(said: dict[str, Any]) -> SourceOptions:
    return SourceOptions(**_tuples(said))


def _as_scan(said: dict[str, Any]) -> Scan:
    spans = tuple(Span(*span) for span in said["spans"])
    return Scan(**{**_tuples(said), "spans": spans})


def refuse_existing(targets: Sequence[Target]) -> None:
    """Refuse destinations that are there before anything is begun."""
    for target in targets:
        if target.is_done:
            raise StoreError(
                f"{target.destination} exists already; remove it or choose another name"
            )
