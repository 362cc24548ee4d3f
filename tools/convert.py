"""``convert``: foreign files to a store, in parts, by one process or many; run again to go on."""

from __future__ import annotations

import json as json_format
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from cyclopts import Parameter

from streammiml.bags.checks import backend_of
from streammiml.bags.ids import refuse_twice
from streammiml.bags.parts import load_arrays, split_names
from streammiml.bags.store import BagStore, open_one
from streammiml.bags.summary import describe
from streammiml.bags.writer import BagWriter, id_hashes
from streammiml.blocks.prefetch import run_ahead
from streammiml.cluster import Pool, open_pool
from streammiml.config import format_size, parse_size
from streammiml.errors import StoreError, StreammimlError
from streammiml_tools.choosing import strata_of
from streammiml_tools.conversion import (
    HELD_SPANS,
    ConvertConfig,
    Plan,
    Target,
    Work,
    check_disk,
    check_memory,
    check_spans,
    refuse_existing,
    span_bytes,
    targets_of,
)
from streammiml_tools.readers.base import SPAN_BYTES, SourceError, SourceOptions
from streammiml_tools.readers.text import twice
from streammiml_tools.showing import Show
from streammiml_tools.sources import Sources, change_of, find_sources, noted_of
from streammiml_tools.stages import (
    RUN,
    BucketTask,
    Done,
    Facts,
    SpanTask,
    Stage,
    Write,
    bucket_tasks,
    highest_key,
    no_facts,
    run_path,
    survey,
    surveyed_labels,
)

TWICE = "bag ids come twice"
SAID_BYTES = 16 << 20
"""What is held whole is told beforehand from here on."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage of a conversion is."""

    stage: str
    bags: int
    n_bytes: int
    """Of the source, or of what was spilled from it."""
    total_bytes: int
    seconds: float
    """Since this process began with the stage."""
    bytes_before: int
    """Done by a process before this one."""


Watch = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Converted:
    """What a conversion came to."""

    stores: tuple[BagStore, ...]
    facts: Facts
    seconds: float

    @property
    def store(self) -> BagStore:
        """The store, or the first of a split."""
        return self.stores[0]

    def said(self) -> dict[str, Any]:
        """Counts, what was left out and why, and every store; for machines."""
        facts = self.facts
        return {
            "source": {"n_bags": facts["bags"], "n_rows": facts["rows"]},
            "left_out": {
                "empty_bags": facts["empty"],
                "without_label": facts["unwanted"],
                "beyond_limit": facts["over"],
            },
            "seconds": round(self.seconds, 3),
            "stores": [{"path": store.name, **describe(store)} for store in self.stores],
        }


def convert(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    store: str | os.PathLike[str],
    settings: ConvertConfig | None = None,
    options: SourceOptions | None = None,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    watch: Watch | None = None,
    say: Callable[[str], None] | None = None,
) -> Converted:
    """Convert foreign files to a store; going on with it where the same call was killed before.

    Parameters
    ----------
    sources
        Files, folders, globs or stores, all of one format.
    store
        Folder or URL; its suffix, ``.zarr`` or ``.parquet``, decides the backend. With a split,
        ``corpus.zarr`` stands for ``corpus-train.zarr`` and so on.
    settings
        What is made of the source.
    options
        What is said of the source.
    workers
        Processes of a local cluster that read and write parts.
    scheduler
        Address of a running Dask scheduler to use instead; its workers must see the same files.
    watch
        Called with every part that is finished.
    say
        Called with lines that the user should know of before the work begins.
    """
    begun = time.monotonic()
    settings, options = settings or ConvertConfig(), options or SourceOptions()
    named = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    destination = os.fspath(store)
    backend_of(destination)
    found = find_sources([os.fspath(each) for each in named], options)
    with ExitStack() as stack:
        work = stack.enter_context(Work(destination))
        pool = None
        if workers is not None or scheduler is not None:
            pool = stack.enter_context(
                open_pool(workers=workers, scheduler=scheduler, relief="--memory")
            )
        plan, noted = planned(work, found, destination, settings, options, pool)
        for line in _warnings(plan, found):
            (say or _ignore)(line)
        engine = _Engine(plan, work, pool, watch)
        stack.callback(engine.close)
        try:
            facts = engine.run()
        except SourceError as error:
            # What is in the source can only be put right by another source, or other options.
            # Workers of somebody else's cluster may still be writing.
            if scheduler is None and not _may_pass(error):
                work.discard()
            raise
        change = change_of(noted, noted_of(found.paths))
        if change is not None:
            raise SourceError(
                f"{change} while it was converted; remove {work.folder} and run again"
            )
        stores = engine.finish()
        work.remove()
    return Converted(stores, facts, time.monotonic() - begun)


def _ignore(line: str) -> None:
    del line


def _may_pass(error: SourceError) -> bool:
    return error.may_pass or isinstance(error.__cause__, OSError)


def _warnings(plan: Plan, found: Sources) -> Iterator[str]:
    """What a user may not expect."""
    if plan.scan.holds_bytes > SAID_BYTES:
        yield f"{found.paths[0]} is held whole: {format_size(plan.scan.holds_bytes)}"
    for path in found.left_out[:10]:
        yield f"{path} is left out: of no known format"
    if any(plan.folder.glob("facts-*/*.json")):
        yield f"going on with what was written to {plan.destination} before"


def planned(
    work: Work,
    found: Sources,
    destination: str,
    settings: ConvertConfig,
    options: SourceOptions,
    pool: Pool | None,
) -> tuple[Plan, list[Any]]:
    """The plan that was begun before, or a new one, written down."""
    noted = noted_of(found.paths)
    n_processes = 1 if pool is None else pool.n_threads
    plan = work.resumed(found, options, settings)
    where = ", ".join(str(path) for path in found.paths[:3])
    memory = parse_size(settings.memory)
    if plan is not None:
        check_memory(plan.scan, memory, n_processes, where)
        check_spans(plan, memory, n_processes)
        return plan, noted
    refuse_existing(targets_of(destination, settings))
    plan = understood(found, destination, settings, options, n_processes)
    check_disk(plan)
    try:
        work.clear()
        plan.save(noted)
    except OSError as error:
        raise StoreError(f"{destination} cannot be written: {error.strerror}") from error
    return plan, noted


def understood(
    found: Sources,
    destination: str,
    settings: ConvertConfig,
    options: SourceOptions,
    n_processes: int,
) -> Plan:
    """What the first pass over a source makes of it; nothing is written."""
    memory = parse_size(settings.memory)
    asked = options.span_bytes
    if asked == SPAN_BYTES and (settings.shuffle or options.group):
        # What is put in order is read from every span for every part of the result: fewer, longer
        # ones. Half of what fits, since keys are held beside them.
        asked = max(asked, span_bytes(memory, n_processes, memory) // 2)
    options = replace(options, span_bytes=span_bytes(memory, n_processes, asked))
    if options.no_labels and not found.reader.may_lack_labels:
        raise SourceError(
            f"{found.paths[0]}: labels are part of {found.reader.name} files; leave out "
            "--label-columns none"
        )
    scan = found.reader.scan(found.paths, options)
    where = ", ".join(str(path) for path in found.paths[:3])
    check_memory(scan, memory, n_processes, where)
    if not scan.spans:
        raise SourceError(f"{where} holds no bags")
    plan = Plan(destination, found.reader.name, scan, options, settings)
    if options.group and not scan.bag_ids:
        raise SourceError(f"{where} has no ids of bags that --group could go by; give --bag-column")
    if options.group and settings.stratify:
        raise StreammimlError(
            "--stratify needs whole bags, and --group makes them; convert with --group first, "
            "then split that store"
        )
    # Refuses labels that are not there, and settings that make no store, before the first bag.
    assert plan.spec is not None
    assert plan.wanted_labels is not None
    return plan


class _Engine:
    """Takes a plan through its stages, whichever of them are still to be done."""

    def __init__(self, plan: Plan, work: Work, pool: Pool | None, watch: Watch | None) -> None:
        self.plan, self.folder = plan, work.folder
        self._work, self._pool, self._watch = work, pool, watch
        self._top_label = -1
        self._stage: Stage | None = None
        self._writers: dict[str, BagWriter] = {}

    def run(self) -> Facts:
        """Everything but the last step: all parts of all stores are written."""
        plan, settings = self.plan, self.plan.settings
        if not plan.spills:
            stage = Stage("store", self.plan, self.plan.targets, self.plan.spec, self.plan.n_parts)
            facts = self._spans(stage)
            self._refuse_empty(facts)
            self._refuse_twice(facts)
            return facts
        facts = self._spilled("spill", None)
        last = "spill"
        if plan.options.group:
            grouped = self._spilled("group", "spill")
            fragments = facts
            facts = {**grouped, "rows": fragments["rows"], "empty": fragments["empty"]}
            last = "group"
        stage = self._from_spill("store", last, self.plan.targets, self.plan.spec)
        if settings.limit is not None:
            stage = replace(stage, cut=highest_key(stage, last, settings.limit))
        placed = self._buckets(stage, last)
        self._refuse_empty(placed)
        facts |= {name: placed[name] for name in ("kept", "kept_rows", "labels", "over")}
        return facts

    # Stages.

    def _spilled(self, name: str, before: str | None) -> Facts:
        """Bags written to a store of this conversion's own, sorted within its parts."""
        spill = Target("", str(self.folder / f"{name}.zarr"), str(self.folder / f"{name}-parts"))
        spec = replace(self.plan.spec, codec="none", empty_bags="refuse")
        if before is None:
            stage = Stage(name, self.plan, (spill,), spec, self.plan.n_parts)
            facts = self._spans(stage)
        else:
            stage = self._from_spill(name, before, (spill,), spec)
            facts = self._buckets(stage, before)
        if not spill.is_done:
            if not facts["kept"]:
                raise self._no_bags(facts)
            assert self._stage is not None
            with self._writers.pop(spill.destination) as writer:
                writer.finish(self._stage.n_parts)
        return facts

    def _from_spill(self, name: str, before: str, targets: tuple[Target, ...], spec: Any) -> Stage:
        source = str(self.folder / f"{before}.zarr")
        runs, first = [], 0
        for path in sorted((run_path(self.folder, before, 0).parent).iterdir()):
            count = path.stat().st_size // RUN.itemsize
            runs.append((int(path.name), first))
            first += count
        return Stage(name, self.plan, targets, spec, 0, source=source, runs=tuple(runs))

    def _spans(self, stage: Stage) -> Facts:
        counts, starts = self._before(stage)
        stage = replace(stage, counts=counts)
        n_tasks = len(self.plan.scan.spans)
        run_path(self.folder, stage.name, 0).parent.mkdir(exist_ok=True)
        (self.folder / "names").mkdir(exist_ok=True)
        total = sum(span.n_bytes for span in self.plan.scan.spans)

        def task(number: int, before: Facts) -> SpanTask:
            if starts is not None:
                return starts[number]
            return SpanTask(number, before["bags"], before["kept"])

        return self._tasks(stage, n_tasks, task, total)

    def _buckets(self, stage: Stage, before: str) -> Facts:
        tasks = bucket_tasks(stage, before, self.plan.options.span_bytes)
        self._stage = stage = replace(stage, n_parts=len(tasks))
        run_path(self.folder, stage.name, 0).parent.mkdir(exist_ok=True)
        return self._tasks(stage, len(tasks), lambda number, _: tasks[number], 0)

    def _before(self, stage: Stage) -> tuple[Any, list[SpanTask] | None]:
        """What comes before each span, where that must be known before spans are read."""
        plan, settings = self.plan, self.plan.settings
        spans = plan.scan.spans
        n_bags = [span.n_bags for span in spans]
        counts_limit = settings.limit is not None and not plan.spills
        by_number = settings.split is not None or plan.spills or counts_limit
        told = None not in n_bags and not (
            counts_limit and (settings.where_label or settings.empty_bags == "drop")
        )
        if not settings.stratify and (self._pool is None or not by_number):
            return None, None
        if told and not settings.stratify:
            firsts = np.cumsum([0, *(count or 0 for count in n_bags)]).tolist()
            return None, [SpanTask(i, firsts[i], firsts[i]) for i in range(len(spans))]
        surveyed = self._survey(stage)
        firsts = np.cumsum([0, *(each["bags"] for each in surveyed)]).tolist()
        kept = np.cumsum([0, *(each["kept"] for each in surveyed)]).tolist()
        if not settings.stratify:
            return None, [SpanTask(i, firsts[i], kept[i]) for i in range(len(spans))]
        top = max(each["top_label"] for each in surveyed)
        counts = np.zeros(max(plan.spec.labels_known or 0, top + 1), np.int64)
        for number in range(len(spans)):
            counts += np.bincount(surveyed_labels(plan, number)[1], minlength=len(counts))
        starts, tasks = np.zeros(len(counts) + 1, np.int64), []
        for number in range(len(spans)):
            tasks.append(SpanTask(number, firsts[number], kept[number], starts.copy()))
            strata = strata_of(*surveyed_labels(plan, number), counts)
            starts += np.bincount(strata, minlength=len(starts))
        return counts, tasks

    def _survey(self, stage: Stage) -> list[Facts]:
        (self.folder / "survey").mkdir(exist_ok=True)
        numbers = range(len(self.plan.scan.spans))
        total = sum(span.n_bytes for span in self.plan.scan.spans)
        results: Iterable[Facts]
        if self._pool is None:
            results = (survey(number, stage) for number in numbers)
        else:
            results = self._pool.map(_surveyed, numbers, self._pool.share(stage))
        out, begun, done, bags = [], time.monotonic(), 0, 0
        for number, facts in enumerate(results):
            out.append(facts)
            done += self.plan.scan.spans[number].n_bytes
            bags += facts["bags"]
            self._tell(Progress("count", bags, done, total, time.monotonic() - begun, 0))
        return out

    # Tasks of a stage.

    def _tasks(
        self,
        stage: Stage,
        n_tasks: int,
        task: Callable[[int, Facts], SpanTask | BucketTask],
        total_bytes: int,
    ) -> Facts:
        """Do what is not done of a stage; what all its tasks say, added up."""
        stage.folder.mkdir(exist_ok=True)
        self._stage = stage
        begun = all(not target.is_done for target in stage.targets)
        writers = [self._writer(target, stage) for target in stage.targets] if begun else []
        done: dict[int, Facts] = {}
        for number in range(n_tasks):
            facts = stage.facts(number)
            parts = stage.parts_of(number)
            if facts is not None and all(w.has_part(part) for w in writers for part in parts):
                done[number] = facts
        if not begun and len(done) < n_tasks:
            raise StoreError(
                f"{self.plan.destination} cannot be gone on with: {self.folder} was changed; "
                f"remove it and {stage.targets[0].destination} to start anew"
            )
        before = sum(facts["n_bytes"] for facts in done.values())
        sums, bags, started = no_facts(), 0, time.monotonic()
        total = total_bytes or n_tasks
        for item in self._results(stage, n_tasks, task, done, writers):
            bags += item.facts["bags"] if item.task not in done else 0
            for name, value in item.facts.items():
                sums[name] = (
                    max(sums[name], value) if name == "top_label" else value + sums.get(name, 0)
                )
            at = sums["n_bytes"] if total_bytes else item.task + 1
            earlier = before if total_bytes else 0
            self._tell(Progress(stage.name, bags, at, total, time.monotonic() - started, earlier))
        self._top_label = max(self._top_label, sums["top_label"])
        return sums

    def _results(
        self,
        stage: Stage,
        n_tasks: int,
        task: Callable[[int, Facts], SpanTask | BucketTask],
        done: dict[int, Facts],
        writers: list[BagWriter],
    ) -> Iterator[Done]:
        if self._pool is not None:
            wanted = (task(n, no_facts()) for n in range(n_tasks) if n not in done)
            fresh = self._pool.map(_elsewhere, wanted, self._pool.share(stage))
            for number in range(n_tasks):
                if number in done:
                    yield Done(number, done[number])
                    continue
                yield next(fresh)
                for writer in writers:
                    writer.absorb()
            return
        with run_ahead(_produced(stage, n_tasks, task, done), depth=2) as ahead:
            for item in ahead:
                if isinstance(item, Write):
                    stage.perform(item, writers)
                    continue
                if item.task not in done:
                    stage.note(item)
                yield item

    def _writer(self, target: Target, stage: Stage) -> BagWriter:
        if target.destination not in self._writers:
            self._writers[target.destination] = BagWriter.begin(
                target.destination,
                stage.spec,
                source=self.plan.fingerprint(),
                staging=Path(target.staging),
            )
        return self._writers[target.destination]

    def _tell(self, progress: Progress) -> None:
        if self._watch is not None:
            self._watch(progress)

    # The end.

    def _refuse_empty(self, facts: Facts) -> None:
        """Refuse stores without bags before the first of a split is made visible."""
        if not facts["kept"]:
            raise self._no_bags(facts)
        for number, target in enumerate(self.plan.targets):
            if not facts.get(f"to_{number}", 0):
                raise SourceError(
                    f"{target.destination} would hold no bags: {facts['kept']:,} are too few for "
                    f"--split {self.plan.settings.split}; choose other shares, or another --seed"
                )

    def _no_bags(self, facts: Facts) -> SourceError:
        return SourceError(
            f"{self.plan.destination} would hold no bags: of {facts['bags']:,} that were read, "
            f"{facts['unwanted']:,} have none of the wanted labels and {facts['empty']:,} no rows"
        )

    def _refuse_twice(self, facts: Facts) -> None:
        """Refuse two bags of one id that went to different stores; each looks at its own."""
        if len(self.plan.targets) == 1 or not self.plan.spec.bag_ids or not facts["kept"]:
            return
        hashes, starts = [], [0]
        for span in range(len(self.plan.scan.spans)):
            names = self._names(span)
            hashes.append(id_hashes(names) if names else np.empty(0, np.uint64))
            starts.append(starts[-1] + len(names))

        def name_of(bag: int) -> str:
            span = bisect_right(starts, bag) - 1
            return self._names(span)[bag - starts[span]]

        try:
            refuse_twice(np.concatenate(hashes), name_of, self.plan.destination)
        except StoreError as error:
            raise self._returning(error) from None

    def _names(self, span: int) -> list[str]:
        """Ids of the bags that were kept of a span."""
        loaded = load_arrays(self.folder / "names" / f"{span:08d}")
        return [] if loaded is None else split_names(loaded[0]["offsets"], loaded[0]["bytes"])

    def _returning(self, error: StoreError) -> SourceError:
        """A returning id, with the way out; what was written of it is of no use to that."""
        self._work.remove()
        way = "" if self.plan.reader == "store" else "; --group brings the rows of a bag together"
        return SourceError(f"{error}{way}")

    def finish(self) -> tuple[BagStore, ...]:
        """Make the stores visible that are not yet."""
        known = self.plan.spec.labels_known
        n_labels = self._top_label + 1 if known is None and len(self.plan.targets) > 1 else None
        assert self._stage is not None
        stores = []
        for target in self.plan.targets:
            if target.is_done:
                stores.append(open_one(target.destination))
                continue
            writer = self._writer(target, self._stage)
            try:
                stores.append(writer.finish(self._stage.n_parts, n_labels=n_labels))
            except StoreError as error:
                if TWICE in str(error):
                    raise self._returning(error) from None
                raise
        return tuple(stores)

    def close(self) -> None:
        """Let go of what is being written."""
        for writer in self._writers.values():
            writer.close()


def _produced(
    stage: Stage,
    n_tasks: int,
    task: Callable[[int, Facts], SpanTask | BucketTask],
    done: dict[int, Facts],
) -> Iterator[Write | Done]:
    """Parts of one task after the other; what earlier tasks counted tells the later ones."""
    before = no_facts()
    for number in range(n_tasks):
        items = iter([Done(number, done[number])]) if number in done else None
        for item in items or stage.writes(task(number, before)):
            if isinstance(item, Done):
                before["bags"] += item.facts["bags"]
                before["kept"] += item.facts["kept"]
            yield item


def _elsewhere(task: SpanTask | BucketTask, stage: Stage) -> Done:
    """One task in another process: all of its parts are written when it returns."""
    # Workers share the cores already: a parser that takes all of them takes them from the others.
    pa.set_cpu_count(1)
    writers = stage.join()
    try:
        for item in stage.writes(task):
            if isinstance(item, Write):
                stage.perform(item, writers)
            else:
                stage.note(item)
                return item
    except SourceError as error:
        error.may_pass = _may_pass(error)
        raise
    raise AssertionError("a task ends with what it has done")


def _surveyed(number: int, stage: Stage) -> Facts:
    """One span counted in another process."""
    try:
        return survey(number, stage)
    except SourceError as error:
        error.may_pass = _may_pass(error)
        raise


# The verb.


def convert_verb(
    *paths: Annotated[str, Parameter(name="SOURCE... STORE", negative="")],
    workers: int | None = None,
    scheduler: str | None = None,
    dry_run: bool = False,
    json: bool = False,
    settings: Annotated[ConvertConfig | None, Parameter(name="*", negative_iterable="")] = None,
    options: Annotated[SourceOptions | None, Parameter(name="*", negative_iterable="")] = None,
) -> None:
    """Convert foreign files to a store; the same command again goes on where it was stopped.

    Parameters
    ----------
    paths
        Files, folders, globs or stores of one format, then the store to make (.zarr, .parquet).
    workers
        Processes that read and write parts.
    scheduler
        Address of a running Dask scheduler to use instead; its workers must see the same files.
    dry_run
        Say what was understood, and what would be made; write nothing.
    json
        Print one JSON object, for machines.
    """
    if len(paths) < 2:
        raise StreammimlError("convert needs a source and a store to make of it")
    *sources, store = paths
    settings, options = settings or ConvertConfig(), with_label_file(options or SourceOptions())
    if dry_run:
        found = find_sources(sources, options)
        plan = understood(found, store, settings, options, workers or 1)
        said = _dry_said(plan, found)
        print(json_format.dumps(said) if json else "\n".join(_dry_lines(said)))
        return
    with Show() as show:
        done = convert(
            sources,
            store,
            settings,
            options,
            workers=workers,
            scheduler=scheduler,
            watch=show,
            say=show.say,
        )
    print(json_format.dumps(done.said()) if json else "\n".join(_lines(done)))


def with_label_file(options: SourceOptions) -> SourceOptions:
    """Options whose one ``--labels`` is a file of names, with the names in it."""
    if options.labels is None:
        return options
    if len(options.labels) != 1:
        raise StreammimlError("--labels takes one file, with a name a line")
    path = Path(options.labels[0])
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise StreammimlError(f"--labels {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StreammimlError(f"--labels {path} is not UTF-8; convert it to UTF-8") from None
    names = [line.strip() for line in text.splitlines()]
    while names and not names[-1]:
        names.pop()
    if "" in names:
        raise StreammimlError(f"--labels {path}, line {names.index('') + 1} is empty")
    if not names:
        raise StreammimlError(f"--labels {path} is empty; it holds the name of a label a line")
    doubled = twice(names)
    if doubled is not None:
        raise StreammimlError(f"--labels {path} names {doubled!r} twice")
    return replace(options, labels=tuple(names))


def _dry_said(plan: Plan, found: Sources) -> dict[str, Any]:
    scan, spec = plan.scan, plan.spec
    return {
        "format": found.reader.name,
        "files": [str(path) for path in found.paths],
        "left_out": list(found.left_out),
        "notes": list(scan.notes),
        "n_bags": scan.n_bags,
        "n_rows": scan.n_rows,
        "n_features": scan.n_features,
        "n_labels": spec.labels_known,
        "label_names": None if scan.label_names is None else list(scan.label_names),
        "row_labels": scan.row_labels,
        "bag_ids": scan.bag_ids,
        "dtype": spec.dtype,
        "sparse": spec.sparse,
        "codec": spec.resolved_codec,
        "spans": len(scan.spans),
        "span_bytes": max(span.n_bytes for span in scan.spans),
        "source_bytes": sum(span.n_bytes for span in scan.spans),
        "held_bytes": HELD_SPANS * plan.options.span_bytes + scan.holds_bytes,
        "held_whole_bytes": scan.holds_bytes,
        "stores": [target.destination for target in plan.targets],
    }


def _dry_lines(said: dict[str, Any]) -> Iterator[str]:
    files = said["files"]
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    yield f"{'source':<14} {said['format']}: {', '.join(files[:3])}{more}"
    for note in said["notes"]:
        yield f"{'understood':<14} {note}"
    for path in said["left_out"][:10]:
        yield f"{'left out':<14} {path}: of no known format"
    for name in ("n_bags", "n_rows", "n_features", "n_labels"):
        value = said[name]
        shown = "counted while converting" if value is None else f"{value:,}"
        yield f"{name.replace('_', ' '):<14} {shown}"
    kind = "sparse" if said["sparse"] else "dense"
    yield f"{'rows':<14} {kind} {said['dtype']}, codec {said['codec']}"
    extra = [name for name in ("row_labels", "bag_ids") if said[name]]
    yield f"{'with':<14} {', '.join(extra).replace('_', ' ') or 'neither row labels nor bag ids'}"
    spans, largest = said["spans"], format_size(said["span_bytes"])
    yield f"{'read in':<14} {spans:,} spans of up to {largest}"
    whole = said["held_whole_bytes"]
    more = f", {format_size(whole)} of it because the format is read whole" if whole else ""
    yield f"{'memory':<14} up to {format_size(said['held_bytes'])} a process{more}"
    for store in said["stores"]:
        yield f"{'would make':<14} {store}"


def _lines(done: Converted) -> Iterator[str]:
    said = done.said()
    for store in said["stores"]:
        yield (
            f"{store['path']}: {store['n_bags']:,} bags, {store['n_rows']:,} rows of "
            f"{store['n_features']:,} features, {store['n_labels']:,} labels; "
            f"{store['labels_per_bag']:.3f} labels and {store['rows_per_bag']:.3f} rows per bag"
        )
        kind = f"sparse {store['dtype']}" if store["sparse"] else store["dtype"]
        yield f"  {kind}, {format_size(store['bytes'])}, fingerprint {store['fingerprint']}"
    why = {
        "empty_bags": "bags had no rows and were dropped",
        "without_label": "bags had none of the wanted labels",
        "beyond_limit": "bags or more came after the limit",
    }
    for name, words in why.items():
        if said["left_out"][name]:
            yield f"{said['left_out'][name]:,} {words}"
    yield f"{done.seconds:.1f} s"
