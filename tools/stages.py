"""The stations between a source and its stores: what each reads, and which parts it writes.

Without ``--shuffle`` or ``--group`` there is one: spans become parts. Otherwise bags are spilled to
a store of their own first, every part of it sorted by a key (a hash, or where a bag first came);
then bags whose keys lie close together are fetched from all parts, sorted and written: one bucket
is held at a time. Every station can be gone on with after a kill, and works on any of its tasks
alone, in any process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.block_facts import top_label
from streammiml.bags.checks import StoreSpec, clean
from streammiml.bags.offsets import from_sizes
from streammiml.bags.parts import Arrays, load_arrays, save_arrays
from streammiml.bags.place import sync_file
from streammiml.bags.store import BagStore, open_one
from streammiml.bags.writer import BagWriter, Prepared, id_hashes, prepare
from streammiml.config import format_size
from streammiml.errors import StoreError
from streammiml_tools.choosing import (
    Split,
    has_any_label,
    joined_fragments,
    ranks_within,
    shaped,
    shuffle_keys,
    strata_of,
)
from streammiml_tools.conversion import Plan, Target, slot_bytes
from streammiml_tools.readers import reader_of
from streammiml_tools.readers.base import SourceError, Span

I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]
Facts = dict[str, int]

RUN = np.dtype([("key", "<u8"), ("number", "<i8"), ("nbytes", "<i8"), ("which", "u1")])
"""What is kept of a spilled bag: its place in the order, its number, its size, its split."""
SAMPLED_KEYS = 1 << 21
WIDER = "; leave --dtype out, or choose a wider one"


class Write(NamedTuple):
    """One part that is to be written."""

    target: int
    part: int
    block: BagBlock | Prepared
    numbers: I64
    """Of its bags in the source, for messages."""
    where: str
    run: NDArray[np.void] | None = None
    """What is kept of each bag, where the part is spilled."""


class Done(NamedTuple):
    """A task whose parts are all written."""

    task: int
    facts: Facts


class SpanTask(NamedTuple):
    """A span, and what comes before it."""

    number: int
    first_bag: int = 0
    kept_before: int = 0
    starts: I64 | None = None
    """Bags of each stratum that come before, where the split is stratified."""


class BucketTask(NamedTuple):
    """Bags of a range of keys: where they lie in each spilled part."""

    number: int
    lows: I64
    highs: I64


@dataclass(frozen=True)
class Stage:
    """One station: what it is called, and which stores it writes."""

    name: str
    plan: Plan
    targets: tuple[Target, ...]
    spec: StoreSpec
    n_parts: int
    counts: I64 | None = None
    """How often each label occurs, where the split is stratified."""
    source: str = ""
    """The spilled store that buckets are read from."""
    runs: tuple[tuple[int, int], ...] = ()
    """Number and first bag of each of its parts."""
    cut: int | None = None
    """Highest key that is kept; all unless given."""

    @property
    def folder(self) -> Path:
        """Where facts of finished tasks are kept."""
        return self.plan.folder / f"facts-{self.name}"

    def writes(self, task: SpanTask | BucketTask) -> Iterator[Write | Done]:
        """The parts of one task, ready to be written, and in the end what can be said of it."""
        placed = {f"to_{target}": 0 for target in range(len(self.targets))}
        if isinstance(task, SpanTask):
            items = _from_span(self, task)
        else:
            items = _grouped(self, task) if self.name == "group" else _ordered(self, task)
        drop = self.spec.empty_bags == "drop"
        for item in items:
            if isinstance(item, Done):
                yield item._replace(facts={**item.facts, **placed})
                continue
            assert isinstance(item.block, BagBlock)
            sizes = np.diff(item.block.bag_offsets)
            placed[f"to_{item.target}"] += int((sizes > 0).sum()) if drop else len(sizes)
            yield self.prepared(item)

    def parts_of(self, task: int) -> range:
        """Parts that a task writes."""
        if self.source:
            return range(task, task + 1)
        part = self.plan.parts[task]
        return range(part.first, part.stop)

    def facts(self, task: int) -> Facts | None:
        """What was said of a task that was finished; None if it was not."""
        try:
            found: Facts = json.loads((self.folder / f"{task:08d}.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return found

    def note(self, done: Done) -> None:
        """Keep what is said of a finished task."""
        path = self.folder / f"{done.task:08d}.json"
        beside = path.with_suffix(".partial")
        beside.write_text(json.dumps(done.facts))
        beside.replace(path)

    def join(self) -> list[BagWriter]:
        """Writers of another process than the one that began."""
        return [BagWriter.join(of.destination, staging=Path(of.staging)) for of in self.targets]

    def prepared(self, write: Write) -> Write:
        """A part in the store's types; what may not enter is told by its place in the source."""
        assert isinstance(write.block, BagBlock)
        try:
            return write._replace(block=prepare(write.block, self.spec, write.where))
        except StoreError as error:
            _explain(write, self.spec, "" if self.plan.settings.dtype is None else WIDER)
            raise error from None

    def perform(self, write: Write, writers: list[BagWriter]) -> None:
        """Write one part."""
        if write.run is not None:
            path = run_path(self.plan.folder, self.name, write.part)
            path.write_bytes(write.run.tobytes())
            sync_file(path)
        writers[write.target].write_part(write.part, write.block)


def run_path(folder: Path, stage: str, part: int) -> Path:
    """File of what is kept of a spilled part's bags."""
    return folder / f"runs-{stage}" / f"{part:08d}"


def _explain(write: Write, spec: StoreSpec, wider: str) -> None:
    """Say again what a writer has refused, with the bag's number in the source."""
    block = write.block
    assert isinstance(block, BagBlock)
    if block.bag_ids is None:
        names = [str(number) for number in write.numbers.tolist()]
        block, spec = replace(block, bag_ids=names), replace(spec, bag_ids=True)
    try:
        clean(block, spec, write.where)
    except StoreError as error:
        way = wider if f"fit into {spec.dtype}" in str(error) else ""
        raise SourceError(f"{error}{way}") from None


def empty_block(spec: StoreSpec) -> BagBlock:
    """A block without bags."""
    rows: NDArray[Any] | SparseRows = np.empty((0, spec.n_features), spec.dtype)
    if spec.sparse:
        none = np.empty(0, np.uint32)
        rows = SparseRows(np.zeros(1, np.int64), none, np.empty(0, spec.dtype), spec.n_features)
    return BagBlock(
        np.zeros(1, np.int64),
        rows,
        np.zeros(1, np.int64),
        np.empty(0, np.int32),
        np.empty(0, np.int32) if spec.row_labels else None,
        [] if spec.bag_ids else None,
    )


# From the source.


class _Chooser:
    """Which bags of a span are kept, and where they go; sees its blocks in order."""

    def __init__(self, stage: Stage, task: SpanTask) -> None:
        self._plan, self._counts = stage.plan, stage.counts
        settings = stage.plan.settings
        self._split = Split.parse(settings.split) if settings.split else None
        self._wanted = np.array(stage.plan.wanted_labels, np.int64)
        self._number, self._kept = task.first_bag, task.kept_before
        self._starts = None if task.starts is None else task.starts.copy()
        self.facts = no_facts()

    @property
    def is_full(self) -> bool:
        """Whether no bag that comes now is kept."""
        limit = self._plan.settings.limit
        return limit is not None and not self._plan.spills and self._kept >= limit

    def choose(self, block: BagBlock) -> tuple[BagBlock, I64, NDArray[np.uint8]]:
        """The bags that are kept, their numbers, and the store that each goes to."""
        settings, facts = self._plan.settings, self.facts
        numbers = np.arange(self._number, self._number + len(block))
        self._number += len(block)
        sizes = np.diff(block.bag_offsets)
        keep = np.ones(len(block), bool)
        facts["bags"] += len(block)
        facts["rows"] += block.n_rows
        if len(self._wanted) and not self._plan.options.group:
            keep = has_any_label(block, self._wanted)
            facts["unwanted"] += int((~keep).sum())
        drop = settings.empty_bags == "drop"
        if drop:
            facts["empty"] += int((keep & (sizes == 0)).sum())
        counted = keep & (sizes > 0) if drop else keep
        if drop and self._plan.spills:
            keep = counted
        if settings.limit is not None and not self._plan.spills:
            fits = self._kept + np.cumsum(counted) <= settings.limit
            facts["over"] += int((counted & ~fits).sum())
            keep, counted = keep & fits, counted & fits
        facts["kept"] += int(counted.sum())
        self._kept += int(counted.sum())
        if not keep.all():
            chosen = np.flatnonzero(keep)
            block, numbers = block.take(chosen), numbers[chosen]
        facts["kept_rows"] += block.n_rows
        facts["labels"] += len(block.label_indices)
        facts["top_label"] = max(facts["top_label"], top_label(block) if len(block) else -1)
        return block, numbers, self._which(block, numbers)

    def _which(self, block: BagBlock, numbers: I64) -> NDArray[np.uint8]:
        if self._split is None:
            return np.zeros(len(block), np.uint8)
        seed = self._plan.settings.seed
        if self._starts is None:
            return self._split.of_numbers(numbers, seed)
        assert self._counts is not None
        strata = strata_of(block.label_offsets, block.label_indices, self._counts)
        return self._split.of_ranks(strata, ranks_within(strata, self._starts), seed)


def no_facts() -> Facts:
    """Nothing counted yet."""
    names = ("bags", "rows", "kept", "kept_rows", "labels", "empty", "unwanted", "over")
    return {**dict.fromkeys((*names, "n_bytes"), 0), "top_label": -1}


def _blocks(plan: Plan, span: Span) -> Iterator[BagBlock]:
    for block in reader_of(plan.reader).read(span, plan.scan, plan.options):
        yield shaped(block, sparse=plan.sparse)


def _from_span(stage: Stage, task: SpanTask) -> Iterator[Write | Done]:
    plan = stage.plan
    span, parts = plan.scan.spans[task.number], stage.parts_of(task.number)
    chooser = _Chooser(stage, task)
    names: list[str] = []
    held: list[tuple[BagBlock, I64, NDArray[np.uint8]]] = []
    slot = n_bytes = 0
    blocks = iter(()) if chooser.is_full else _blocks(plan, span)
    for block in blocks:
        chosen = chooser.choose(block)
        if len(chosen[0]):
            held.append(chosen)
            n_bytes += chosen[0].nbytes
            names += chosen[0].bag_ids or []
        if n_bytes >= slot_bytes(slot, len(parts), plan.options.span_bytes):
            if slot == len(parts) - 1:
                raise SourceError(
                    f"{span.path} grows to more than {format_size(n_bytes * len(parts))} from "
                    f"{format_size(span.n_bytes)} when it is read; decompress it, or cut it, first"
                )
            yield from _placed(stage, held, parts[slot], span.path)
            held, slot, n_bytes = [], slot + 1, 0
        if chooser.is_full:
            break
    for part in parts[slot:]:
        yield from _placed(stage, held, part, span.path)
        held = []
    if len(stage.targets) > 1 and plan.spec.bag_ids:
        _keep_names(plan.folder, task.number, names)
    chooser.facts["n_bytes"] = span.n_bytes
    yield Done(task.number, chooser.facts)


def _placed(
    stage: Stage, held: list[tuple[BagBlock, I64, NDArray[np.uint8]]], part: int, where: str
) -> Iterator[Write]:
    """The bags of one part, for each store that is written."""
    if held:
        block = BagBlock.join([each[0] for each in held])
        numbers, which = (np.concatenate([each[i] for each in held]) for i in (1, 2))
    else:
        block, numbers, which = empty_block(stage.plan.spec), np.empty(0, np.int64), np.empty(0)
    where = where.split("\0")[0]
    if stage.name == "spill":
        yield _spilled(stage, block, numbers, which, part, where)
        return
    for target in range(len(stage.targets)):
        if len(stage.targets) == 1:
            yield Write(target, part, block, numbers, where)
        else:
            mine = np.flatnonzero(which == target)
            yield Write(target, part, block.take(mine), numbers[mine], where)


def _spilled(
    stage: Stage, block: BagBlock, numbers: I64, which: NDArray[Any], part: int, where: str
) -> Write:
    """A part of the spilled store: its bags sorted by key."""
    settings = stage.plan.settings
    run = np.zeros(len(block), RUN)
    if stage.plan.options.group and stage.name == "spill":
        assert block.bag_ids is not None
        run["key"] = _id_keys(block.bag_ids)
        # A returning id is what this is about: the number keeps them apart until they are joined.
        pairs = zip(numbers.tolist(), block.bag_ids, strict=True)
        block = replace(block, bag_ids=[f"{number}:{name}" for number, name in pairs])
    else:
        by_hash = settings.shuffle
        run["key"] = shuffle_keys(numbers, settings.seed) if by_hash else numbers
    run["number"], run["nbytes"], run["which"] = numbers, bag_bytes(block), which
    order = np.argsort(run, order=("key", "number"))
    return Write(0, part, block.take(order), numbers[order], where, run[order])


def _id_keys(names: list[str]) -> NDArray[np.uint64]:
    """64 bits of each name; the same in every process."""
    return id_hashes(names) if names else np.empty(0, np.uint64)


def bag_bytes(block: BagBlock) -> I64:
    """Bytes that each bag takes, about."""
    rows = block.rows
    if isinstance(rows, SparseRows):
        of_values = rows.columns.itemsize + rows.values.itemsize
        found: I64 = np.diff(rows.offsets[block.bag_offsets]) * of_values + 64
        return found
    out: I64 = np.diff(block.bag_offsets) * rows.shape[1] * rows.itemsize + 64
    return out


def _keep_names(folder: Path, task: int, names: list[str]) -> None:
    raw = [name.encode() for name in names]
    arrays: Arrays = {
        "offsets": from_sizes([len(each) for each in raw]),
        "bytes": np.frombuffer(b"".join(raw), np.uint8),
    }
    save_arrays(folder / "names" / f"{task:08d}", arrays, {})


# Counting before splitting.


def survey(number: int, stage: Stage) -> Facts:
    """Count the bags of a span, and keep their labels where the split is stratified."""
    plan = stage.plan
    path = plan.folder / "survey" / f"{number:08d}"
    loaded = load_arrays(path)
    if loaded is not None:
        return dict(loaded[1])
    chooser = _Chooser(replace(stage, plan=_unlimited(plan)), SpanTask(number))
    sizes, labels = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for block in _blocks(plan, plan.scan.spans[number]):
        chosen, _, _ = chooser.choose(block)
        if plan.settings.stratify:
            sizes.append(np.diff(chosen.label_offsets))
            labels.append(chosen.label_indices)
    arrays: Arrays = {
        "offsets": from_sizes(np.concatenate(sizes)),
        "labels": np.concatenate(labels),
    }
    save_arrays(path, arrays, chooser.facts)
    return chooser.facts


def _unlimited(plan: Plan) -> Plan:
    settings = replace(plan.settings, limit=None, split=None, stratify=False)
    return Plan(plan.destination, plan.reader, plan.scan, plan.options, settings)


def surveyed_labels(plan: Plan, number: int) -> tuple[I64, NDArray[np.int32]]:
    """Label offsets and labels of the bags that are kept of a span."""
    loaded = load_arrays(plan.folder / "survey" / f"{number:08d}")
    assert loaded is not None, "spans are surveyed before they are split"
    return loaded[0]["offsets"], loaded[0]["labels"]


# From spilled bags.


def bucket_tasks(stage: Stage, source_stage: str, part_bytes: int) -> list[BucketTask]:
    """Ranges of keys whose bags fit into memory together, found from a sample of all keys."""
    folder = stage.plan.folder
    runs = [np.fromfile(run_path(folder, source_stage, part), RUN) for part, _ in stage.runs]
    total = sum(len(run) for run in runs)
    step = max(1, total // SAMPLED_KEYS)
    sample = np.sort(np.concatenate([run[["key", "nbytes"]][::step] for run in runs]), order="key")
    sums = np.cumsum(sample["nbytes"]) * step
    at = np.searchsorted(sums, np.arange(part_bytes, int(sums[-1]) + 1, part_bytes))
    inner = np.unique(sample["key"][np.minimum(at, len(sample) - 1)])
    # Keys from one bound on and below the next; nothing lies above the last.
    places = [np.searchsorted(run["key"], inner) for run in runs]
    ends = [
        np.concatenate([[0], place, [len(run)]]) for place, run in zip(places, runs, strict=True)
    ]
    table = np.array(ends, np.int64).reshape(len(runs), -1)
    return [
        BucketTask(number, table[:, number], table[:, number + 1])
        for number in range(table.shape[1] - 1)
    ]


def highest_key(stage: Stage, source_stage: str, limit: int) -> int | None:
    """The key of the last bag that a limit keeps; None if it keeps all."""
    kept = np.empty(0, np.uint64)
    for part, _ in stage.runs:
        keys = np.fromfile(run_path(stage.plan.folder, source_stage, part), RUN)["key"]
        kept = np.concatenate([kept, keys])
        if len(kept) > limit:
            kept = np.partition(kept, limit)[: limit + 1]
    return int(np.sort(kept)[limit - 1]) if len(kept) > limit else None


def _fetched(
    stage: Stage, task: BucketTask, source_stage: str
) -> tuple[BagBlock, NDArray[np.void]]:
    """Bags of a bucket, from all parts of the spilled store, with what is kept of each."""
    store = _spill_store(stage.source)
    blocks, runs = [], []
    for (part, first), low, high in zip(
        stage.runs, task.lows.tolist(), task.highs.tolist(), strict=True
    ):
        if low == high:
            continue
        path = run_path(stage.plan.folder, source_stage, part)
        run = np.fromfile(path, RUN, high - low, offset=low * RUN.itemsize)
        block = store.read(first + low, first + high)
        if store.has_bag_ids:
            block = replace(block, bag_ids=store.bag_ids(first + low, first + high))
        blocks.append(block)
        runs.append(run)
    if not blocks:
        return empty_block(stage.spec), np.empty(0, RUN)
    return BagBlock.join(blocks), np.concatenate(runs)


_SPILLS: dict[str, BagStore] = {}


def _spill_store(path: str) -> BagStore:
    if path not in _SPILLS:
        _SPILLS.clear()
        _SPILLS[path] = open_one(path)
    return _SPILLS[path]


def _grouped(stage: Stage, task: BucketTask) -> Iterator[Write | Done]:
    """Bags made whole, spilled again in the order of the result."""
    plan, facts = stage.plan, no_facts()
    block, run = _fetched(stage, task, "spill")
    numbers = run["number"].astype(np.int64)
    if len(block):
        names = [name.partition(":")[2] for name in block.bag_ids or []]
        block, numbers = joined_fragments(block, names, numbers)
    facts["bags"] = len(block)
    if plan.wanted_labels and len(block):
        keep = has_any_label(block, np.array(plan.wanted_labels))
        facts["unwanted"] = int((~keep).sum())
        block, numbers = block.take(np.flatnonzero(keep)), numbers[keep]
    facts |= {"kept": len(block), "rows": block.n_rows, "kept_rows": block.n_rows}
    facts |= {"labels": len(block.label_indices), "n_bytes": block.nbytes}
    facts["top_label"] = top_label(block) if len(block) else -1
    which = np.zeros(len(block), np.uint8)
    yield _spilled(stage, block, numbers, which, task.number, plan.destination)
    yield Done(task.number, facts)


def _ordered(stage: Stage, task: BucketTask) -> Iterator[Write | Done]:
    """The bags of one bucket in their final order, to the store that each belongs to."""
    plan, facts = stage.plan, no_facts()
    block, run = _fetched(stage, task, "group" if plan.options.group else "spill")
    order = np.argsort(run, order=("key", "number"))
    if stage.cut is not None:
        fits = run["key"][order] <= np.uint64(stage.cut)
        facts["over"] = int((~fits).sum())
        order = order[fits]
    block, run = block.take(order), run[order]
    numbers = run["number"].astype(np.int64)
    facts |= {"bags": len(block), "rows": block.n_rows, "kept": len(block)}
    facts |= {"kept_rows": block.n_rows, "labels": len(block.label_indices)}
    facts |= {"n_bytes": block.nbytes, "top_label": top_label(block) if len(block) else -1}
    which = run["which"]
    if plan.settings.split is not None and plan.options.group:
        which = Split.parse(plan.settings.split).of_numbers(numbers, plan.settings.seed)
    for target in range(len(stage.targets)):
        if len(stage.targets) == 1:
            yield Write(target, task.number, block, numbers, plan.destination)
        else:
            mine = np.flatnonzero(which == target)
            yield Write(target, task.number, block.take(mine), numbers[mine], plan.destination)
    yield Done(task.number, facts)
