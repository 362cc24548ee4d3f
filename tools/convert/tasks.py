"""The stages of a conversion and their tasks: which bags a task reads, and which parts it writes.

Without ``--shuffle`` and ``--group`` there is one stage: each span of the source becomes parts of
the store. Otherwise bags are first spilled to a temporary store, each part of which is sorted by a
key: a hash for ``--shuffle``, else the number of the bag. Then each bucket, a range of keys that
fits in memory, is read from all parts, sorted and written. A task can run alone, in any process,
and the parts of finished tasks stay when a conversion is killed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml._base.atomic import sync_file
from streammiml._base.json_and_toml import parse_json
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.ids import id_hashes
from streammiml.bags.kept_columns import n_bytes as kept_bytes
from streammiml.bags.offsets import from_sizes
from streammiml.bags.prepared_bags import PreparedBags, prepare
from streammiml.bags.spool import Arrays, load_arrays, save_arrays
from streammiml.bags.store import BagStore, open_one
from streammiml.bags.validate import StoreSpec, clean
from streammiml.bags.writer import BagWriter
from streammiml.config import format_size
from streammiml.errors import StoreError, UnfitValueError
from streammiml_tools.convert.plan import HELD_SPANS, ConversionPlan, Target, slot_bytes
from streammiml_tools.convert.split_and_filter import (
    Split,
    has_any_label,
    joined_fragments,
    ranks_within,
    shaped,
    shuffle_keys,
    strata_of,
)
from streammiml_tools.readers.base import BESIDE, SourceError, Span
from streammiml_tools.readers.memory_checks import check_bag, check_dense

I64 = NDArray[np.int64]
Facts = dict[str, int]
"""Counts of bags, rows and labels of a task, by name; see ``no_facts``."""

RUN = np.dtype([("key", "<u8"), ("number", "<i8"), ("nbytes", "<i8"), ("which", "u1")])
"""Record of a spilled bag: its key, its number in the source, its size, its store of the split."""
SAMPLED_KEYS = 1 << 21
"""Approximate number of keys that are sampled to cut buckets of equal size."""
WIDER = "; leave --dtype out, or choose a wider type"


class PartWrite(NamedTuple):
    """A part to write."""

    target: int
    """Number of the store among the stage's targets."""
    part: int
    block: BagBlock | PreparedBags
    numbers: I64
    """Numbers of the bags in the source, for messages."""
    where: str
    """Name of the source, for messages."""
    run: NDArray[np.void] | None = None
    """Records of the bags, if the part is spilled."""


class TaskDone(NamedTuple):
    """The last item of a task: all of its parts have been yielded."""

    task: int
    facts: Facts


class SpanTask(NamedTuple):
    """Convert the bags of one span."""

    number: int
    first_bag: int = 0
    """Number of the span's first bag in the source."""
    kept_before: int = 0
    """Bags of earlier spans that are kept."""
    starts: I64 | None = None
    """Bags of each stratum in earlier spans, if the split is stratified."""


class BucketTask(NamedTuple):
    """Convert the spilled bags of one range of keys.

    In each spilled part, these are the bags ``lows`` to ``highs``.
    """

    number: int
    lows: I64
    highs: I64


@dataclass(frozen=True)
class Stage:
    """A stage of a conversion: its name, its input, and the stores that it writes."""

    name: str
    plan: ConversionPlan
    targets: tuple[Target, ...]
    spec: StoreSpec
    n_parts: int
    counts: I64 | None = None
    """How often each label occurs, if the split is stratified."""
    source: str = ""
    """Temporary store that buckets are read from; empty if the stage reads spans."""
    runs: tuple[tuple[int, int], ...] = ()
    """Number and first bag of each part of the temporary store."""
    cut: int | None = None
    """Highest key that ``--limit`` keeps; None keeps all."""

    @property
    def folder(self) -> Path:
        """Folder for the facts of finished tasks."""
        return self.plan.folder / f"facts-{self.name}"

    def items(self, task: SpanTask | BucketTask) -> Iterator[PartWrite | TaskDone]:
        """Yield the parts of a task, ready to be written, and in the end its facts."""
        placed = {f"to_{target}": 0 for target in range(len(self.targets))}
        if isinstance(task, SpanTask):
            items = _span_items(self, task)
        else:
            items = _group_items(self, task) if self.name == "group" else _order_items(self, task)
        drop = self.spec.empty_bags == "drop"
        for item in items:
            if isinstance(item, TaskDone):
                yield item._replace(facts={**item.facts, **placed})
                continue
            assert isinstance(item.block, BagBlock)
            sizes = np.diff(item.block.bag_offsets)
            placed[f"to_{item.target}"] += int((sizes > 0).sum()) if drop else len(sizes)
            yield self._prepared(item)

    def parts_of(self, task: int) -> range:
        """Return the numbers of the parts that a task writes."""
        if self.source:
            return range(task, task + 1)
        part = self.plan.parts[task]
        return range(part.first, part.stop)

    def load_facts(self, task: int) -> Facts | None:
        """Return the facts of a finished task; None if it is not finished."""
        try:
            facts: Facts = parse_json((self.folder / f"{task:08d}.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return facts

    def save_facts(self, done: TaskDone) -> None:
        """Save the facts of a task whose parts are all written."""
        path = self.folder / f"{done.task:08d}.json"
        partial = path.with_suffix(".partial")
        with self.plan.writing():
            partial.write_text(json.dumps(done.facts))
            partial.replace(path)

    def join_writers(self) -> list[BagWriter]:
        """Return a writer for each target in a process that did not begin the stores."""
        needed = self.plan.needed_bytes
        return [
            BagWriter.join(target.destination, staging=Path(target.staging), needed=needed)
            for target in self.targets
        ]

    def _prepared(self, write: PartWrite) -> PartWrite:
        """Return the part in the types of the store.

        An error about a bag names the bag by its id or number in the source.
        """
        assert isinstance(write.block, BagBlock)
        block = prepared(self.plan, write.block, write.numbers, write.where, self.spec)
        return write._replace(block=block)

    def write(self, write: PartWrite, writers: list[BagWriter]) -> None:
        """Write a part and the records of its bags."""
        if write.run is not None:
            path = run_path(self.plan.folder, self.name, write.part)
            with self.plan.writing():
                path.write_bytes(write.run.tobytes())
                sync_file(path)
        writers[write.target].write_part(write.part, write.block)


def run_path(folder: Path, stage: str, part: int) -> Path:
    """Return the file with the records of a spilled part's bags."""
    return folder / f"runs-{stage}" / f"{part:08d}"


def prepared(
    plan: ConversionPlan,
    block: BagBlock,
    numbers: I64,
    where: str,
    spec: StoreSpec | None = None,
) -> PreparedBags:
    """Return the bags in the types of a store, by default of the stores of the plan.

    An error about a bag names the bag by its id, or by its number in the source.
    """
    spec = spec or plan.spec
    try:
        return prepare(block, spec, where)
    except StoreError as error:
        wider = "" if plan.settings.dtype is None else WIDER
        _raise_with_number(block, numbers, where, spec, wider)
        raise error from None


def _raise_with_number(
    block: BagBlock, numbers: I64, where: str, spec: StoreSpec, wider: str
) -> None:
    """Check bags again with their numbers in the source as ids, so that the error names these."""
    if block.bag_ids is None:
        ids = [str(number) for number in numbers.tolist()]
        block, spec = replace(block, bag_ids=ids), replace(spec, bag_ids=True)
    try:
        clean(block, spec, where)
    except UnfitValueError as error:
        raise SourceError(f"{error}{wider}") from None
    except StoreError as error:
        raise SourceError(str(error)) from None


def empty_block(spec: StoreSpec) -> BagBlock:
    """Return a block without bags."""
    rows: NDArray[Any] | SparseRows = np.empty((0, spec.n_features), spec.dtype)
    if spec.sparse:
        columns = np.empty(0, np.uint32)
        rows = SparseRows(np.zeros(1, np.int64), columns, np.empty(0, spec.dtype), spec.n_features)
    return BagBlock(
        np.zeros(1, np.int64),
        rows,
        np.zeros(1, np.int64),
        np.empty(0, np.int32),
        np.empty(0, np.int32) if spec.row_labels else None,
        [] if spec.bag_ids else None,
        {column.name: column.empty() for column in spec.kept},
    )


def no_facts() -> Facts:
    """Return facts with all counts at 0."""
    names = ("bags", "rows", "kept", "kept_rows", "labels", "empty", "unwanted", "over")
    unknown = ("unknown_labels", "with_unknown")
    return {**dict.fromkeys((*names, *unknown, "n_bytes"), 0), "top_label": -1}


# From the source.


class _KeptBags(NamedTuple):
    """Bags that a conversion keeps."""

    block: BagBlock
    numbers: I64
    """Number of each bag in the source."""
    which: NDArray[np.uint8]
    """Number of the store that each bag goes to."""


class _BagFilter:
    """Chooses the bags of a span that are kept, and their stores; takes blocks in order."""

    def __init__(self, stage: Stage, task: SpanTask) -> None:
        self._plan, self._counts = stage.plan, stage.counts
        settings = stage.plan.settings
        self._split = Split.parse(settings.split) if settings.split else None
        self._labels = np.array(stage.plan.wanted_labels, np.int64)
        self._next_bag, self._kept = task.first_bag, task.kept_before
        self._starts = None if task.starts is None else task.starts.copy()
        self._where = _source_name(stage.plan.scan.spans[task.number].path)
        self.facts = no_facts()

    @property
    def is_full(self) -> bool:
        """Whether ``--limit`` is reached, so that no further bag is kept."""
        limit = self._plan.settings.limit
        return limit is not None and not self._plan.spills and self._kept >= limit

    def choose(self, block: BagBlock) -> _KeptBags:
        """Return the bags of a block that are kept, and add to the facts."""
        settings, facts = self._plan.settings, self.facts
        # Fragments of a bag are joined first, so that each of its labels is counted once.
        if not self._plan.options.group:
            block = _known(self._plan, block, self._where, facts)
        numbers = np.arange(self._next_bag, self._next_bag + len(block))
        self._next_bag += len(block)
        sizes = np.diff(block.bag_offsets)
        keep = np.ones(len(block), bool)
        facts["bags"] += len(block)
        facts["rows"] += block.n_rows
        if len(self._labels) and not self._plan.options.group:
            keep = has_any_label(block, self._labels)
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
        facts["top_label"] = max(facts["top_label"], block.top_label if len(block) else -1)
        return _KeptBags(block, numbers, self._stores_of(block, numbers))

    def _stores_of(self, block: BagBlock, numbers: I64) -> NDArray[np.uint8]:
        if self._split is None:
            return np.zeros(len(block), np.uint8)
        seed = self._plan.settings.seed
        if self._starts is None:
            return self._split.of_numbers(numbers, seed)
        assert self._counts is not None
        strata = strata_of(block.label_offsets, block.label_indices, self._counts)
        return self._split.of_ranks(strata, ranks_within(strata, self._starts), seed)


def _known(plan: ConversionPlan, block: BagBlock, where: str, facts: Facts) -> BagBlock:
    """Return the block with the label numbers of the store; count labels that are dropped."""
    mapped = plan.known(block, where)
    facts["unknown_labels"] += mapped.n_dropped
    facts["with_unknown"] += mapped.n_bags
    return mapped.block


def blocks_of(plan: ConversionPlan, span: Span) -> Iterator[BagBlock]:
    """Yield the bags of a span, their rows dense or sparse as in the store."""
    for block in plan.read(span):
        check_dense(_source_name(span.path), block.rows, plan.sparse, plan.options.limits)
        yield shaped(block, sparse=plan.sparse)


def _source_name(path: str) -> str:
    """Return the first file of a span, for messages."""
    return path.split(BESIDE)[0]


def _span_items(stage: Stage, task: SpanTask) -> Iterator[PartWrite | TaskDone]:
    plan = stage.plan
    span, parts = plan.scan.spans[task.number], stage.parts_of(task.number)
    bag_filter = _BagFilter(stage, task)
    ids: list[str] = []
    kept_blocks: list[_KeptBags] = []
    slot = n_bytes = 0
    blocks = iter(()) if bag_filter.is_full else blocks_of(plan, span)
    for block in blocks:
        kept = bag_filter.choose(block)
        if len(kept.block):
            kept_blocks.append(kept)
            n_bytes += kept.block.nbytes
            ids += kept.block.bag_ids or []
            # The plan reserves memory for HELD_SPANS spans; check that a larger part fits too.
            if n_bytes > HELD_SPANS * plan.options.span_bytes:
                check_bag(_source_name(span.path), n_bytes, plan.options.limits)
        if n_bytes >= slot_bytes(slot, len(parts), plan.options.span_bytes):
            if slot == len(parts) - 1:
                raise SourceError(
                    f"{span.path} grows to more than {format_size(n_bytes * len(parts))} from "
                    f"{format_size(span.n_bytes)} when it is read; decompress or cut the file first"
                )
            yield from _part_writes(stage, kept_blocks, parts[slot], span.path)
            kept_blocks, slot, n_bytes = [], slot + 1, 0
        if bag_filter.is_full:
            break
    for part in parts[slot:]:
        yield from _part_writes(stage, kept_blocks, part, span.path)
        kept_blocks = []
    if len(stage.targets) > 1 and plan.spec.bag_ids:
        with plan.writing():
            _save_ids(plan.folder, task.number, ids)
    bag_filter.facts["n_bytes"] = span.n_bytes
    yield TaskDone(task.number, bag_filter.facts)


def _part_writes(
    stage: Stage, kept_blocks: list[_KeptBags], part: int, path: str
) -> Iterator[PartWrite]:
    """Yield one part for each store, with the bags that go to it."""
    if kept_blocks:
        block = BagBlock.join([kept.block for kept in kept_blocks])
        numbers = np.concatenate([kept.numbers for kept in kept_blocks])
        which = np.concatenate([kept.which for kept in kept_blocks])
    else:
        block, numbers = empty_block(stage.plan.spec), np.empty(0, np.int64)
        which = np.empty(0, np.uint8)
    where = _source_name(path)
    if stage.name == "spill":
        yield _spilled_part(stage, _KeptBags(block, numbers, which), part, where)
    else:
        yield from _split_writes(stage, _KeptBags(block, numbers, which), part, where)


def _split_writes(stage: Stage, bags: _KeptBags, part: int, where: str) -> Iterator[PartWrite]:
    if len(stage.targets) == 1:
        yield PartWrite(0, part, bags.block, bags.numbers, where)
        return
    for target in range(len(stage.targets)):
        chosen = np.flatnonzero(bags.which == target)
        yield PartWrite(target, part, bags.block.take(chosen), bags.numbers[chosen], where)


def _spilled_part(stage: Stage, bags: _KeptBags, part: int, where: str) -> PartWrite:
    """Return a part of the temporary store, with its bags sorted by key."""
    settings, block, numbers = stage.plan.settings, bags.block, bags.numbers
    run = np.zeros(len(block), RUN)
    if stage.plan.options.group and stage.name == "spill":
        assert block.bag_ids is not None
        run["key"] = _id_keys(block.bag_ids)
        # Fragments of a bag share its id, which a store refuses; numbers keep them apart until the
        # next stage joins them.
        pairs = zip(numbers.tolist(), block.bag_ids, strict=True)
        block = replace(block, bag_ids=[f"{number}:{name}" for number, name in pairs])
    else:
        run["key"] = shuffle_keys(numbers, settings.seed) if settings.shuffle else numbers
    run["number"], run["nbytes"], run["which"] = numbers, bag_bytes(block), bags.which
    order = np.argsort(run, order=("key", "number"))
    return PartWrite(0, part, block.take(order), numbers[order], where, run[order])


def _id_keys(ids: list[str]) -> NDArray[np.uint64]:
    """Return a hash of each id; the same in every process."""
    return id_hashes(ids) if ids else np.empty(0, np.uint64)


def bag_bytes(block: BagBlock) -> I64:
    """Return the approximate size of each bag in bytes."""
    rows = block.rows
    n_bytes: I64
    if isinstance(rows, SparseRows):
        value_bytes = rows.columns.itemsize + rows.values.itemsize
        n_bytes = np.diff(rows.offsets[block.bag_offsets]) * value_bytes + 64
    else:
        n_bytes = np.diff(block.bag_offsets) * rows.shape[1] * rows.itemsize + 64
    if block.kept:
        row_bytes = sum(map(kept_bytes, block.kept.values())) / max(block.n_rows, 1)
        n_bytes += (np.diff(block.bag_offsets) * row_bytes).astype(np.int64)
    return n_bytes


def _save_ids(folder: Path, task: int, ids: list[str]) -> None:
    encoded = [name.encode() for name in ids]
    arrays: Arrays = {
        "offsets": from_sizes([len(name) for name in encoded]),
        "bytes": np.frombuffer(b"".join(encoded), np.uint8),
    }
    save_arrays(folder / "names" / f"{task:08d}", arrays, {})


# Counting before splitting.


def survey(number: int, stage: Stage) -> Facts:
    """Count the bags of a span, and save their labels if the split is stratified."""
    plan = stage.plan
    path = plan.folder / "survey" / f"{number:08d}"
    loaded = load_arrays(path)
    if loaded is not None:
        return dict(loaded[1])
    bag_filter = _BagFilter(replace(stage, plan=_without_limit(plan)), SpanTask(number))
    sizes, labels = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for block in blocks_of(plan, plan.scan.spans[number]):
        kept = bag_filter.choose(block).block
        if plan.settings.stratify:
            sizes.append(np.diff(kept.label_offsets))
            labels.append(kept.label_indices)
    arrays: Arrays = {
        "offsets": from_sizes(np.concatenate(sizes)),
        "labels": np.concatenate(labels),
    }
    with plan.writing():
        save_arrays(path, arrays, bag_filter.facts)
    return bag_filter.facts


def _without_limit(plan: ConversionPlan) -> ConversionPlan:
    """Return the plan without limit and split, which are applied after the survey."""
    settings = replace(plan.settings, limit=None, split=None, stratify=False)
    return ConversionPlan(plan.destination, plan.reader, plan.scan, plan.options, settings)


def surveyed_labels(plan: ConversionPlan, number: int) -> tuple[I64, NDArray[np.int32]]:
    """Return label offsets and labels of the kept bags of a span."""
    loaded = load_arrays(plan.folder / "survey" / f"{number:08d}")
    assert loaded is not None, "spans are surveyed before they are split"
    return loaded[0]["offsets"], loaded[0]["labels"]


# From spilled bags.


def bucket_tasks(stage: Stage, source_stage: str, part_bytes: int) -> list[BucketTask]:
    """Cut the keys into ranges of about ``part_bytes`` of bags, by a sample of all keys."""
    folder = stage.plan.folder
    runs = [np.fromfile(run_path(folder, source_stage, part), RUN) for part, _ in stage.runs]
    n_bags = sum(len(run) for run in runs)
    step = max(1, n_bags // SAMPLED_KEYS)
    sample = np.sort(np.concatenate([run[["key", "nbytes"]][::step] for run in runs]), order="key")
    sums = np.cumsum(sample["nbytes"]) * step
    cuts = np.searchsorted(sums, np.arange(part_bytes, int(sums[-1]) + 1, part_bytes))
    bounds = np.unique(sample["key"][np.minimum(cuts, len(sample) - 1)])
    # A bucket has the keys from one bound, inclusive, to the next, exclusive; the last is open.
    ends = [np.concatenate([[0], np.searchsorted(run["key"], bounds), [len(run)]]) for run in runs]
    table = np.array(ends, np.int64).reshape(len(runs), -1)
    return [
        BucketTask(number, table[:, number], table[:, number + 1])
        for number in range(table.shape[1] - 1)
    ]


def highest_key(stage: Stage, source_stage: str, limit: int) -> int | None:
    """Return the key of the last bag that a limit keeps; None if it keeps all."""
    lowest = np.empty(0, np.uint64)
    for part, _ in stage.runs:
        keys = np.fromfile(run_path(stage.plan.folder, source_stage, part), RUN)["key"]
        lowest = np.concatenate([lowest, keys])
        if len(lowest) > limit:
            lowest = np.partition(lowest, limit)[: limit + 1]
    return int(np.sort(lowest)[limit - 1]) if len(lowest) > limit else None


def _read_bucket(
    stage: Stage, task: BucketTask, source_stage: str
) -> tuple[BagBlock, NDArray[np.void]]:
    """Return the bags of a bucket, from all parts of the temporary store, and their records."""
    store = _temporary_store(stage.source)
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


_OPEN_STORES: dict[str, BagStore] = {}
"""The temporary store that was opened last, by its path."""


def _temporary_store(path: str) -> BagStore:
    if path not in _OPEN_STORES:
        _OPEN_STORES.clear()
        _OPEN_STORES[path] = open_one(path)
    return _OPEN_STORES[path]


def _group_items(stage: Stage, task: BucketTask) -> Iterator[PartWrite | TaskDone]:
    """Join the fragments of each bag, and spill the bags again by the key of their final order."""
    plan, facts = stage.plan, no_facts()
    block, run = _read_bucket(stage, task, "spill")
    numbers = run["number"].astype(np.int64)
    if len(block):
        ids = [name.partition(":")[2] for name in block.bag_ids or []]
        block, numbers = joined_fragments(block, ids, numbers)
        block = _known(plan, block, plan.destination, facts)
    facts["bags"] = len(block)
    if plan.wanted_labels and len(block):
        keep = has_any_label(block, np.array(plan.wanted_labels))
        facts["unwanted"] = int((~keep).sum())
        block, numbers = block.take(np.flatnonzero(keep)), numbers[keep]
    facts |= {"kept": len(block), "rows": block.n_rows, "kept_rows": block.n_rows}
    facts |= {"labels": len(block.label_indices), "n_bytes": block.nbytes}
    facts["top_label"] = block.top_label if len(block) else -1
    bags = _KeptBags(block, numbers, np.zeros(len(block), np.uint8))
    yield _spilled_part(stage, bags, task.number, plan.destination)
    yield TaskDone(task.number, facts)


def _order_items(stage: Stage, task: BucketTask) -> Iterator[PartWrite | TaskDone]:
    """Sort the bags of a bucket into their final order and divide them among the stores."""
    plan, facts = stage.plan, no_facts()
    block, run = _read_bucket(stage, task, "group" if plan.options.group else "spill")
    order = np.argsort(run, order=("key", "number"))
    if stage.cut is not None:
        fits = run["key"][order] <= np.uint64(stage.cut)
        facts["over"] = int((~fits).sum())
        order = order[fits]
    block, run = block.take(order), run[order]
    numbers = run["number"].astype(np.int64)
    facts |= {"bags": len(block), "rows": block.n_rows, "kept": len(block)}
    facts |= {"kept_rows": block.n_rows, "labels": len(block.label_indices)}
    facts |= {"n_bytes": block.nbytes, "top_label": block.top_label if len(block) else -1}
    which = run["which"]
    if plan.settings.split is not None and plan.options.group:
        which = Split.parse(plan.settings.split).of_numbers(numbers, plan.settings.seed)
    bags = _KeptBags(block, numbers, which)
    yield from _split_writes(stage, bags, task.number, plan.destination)
    yield TaskDone(task.number, facts)
