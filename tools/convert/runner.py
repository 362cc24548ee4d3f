"""Runs the stages of a conversion, in this process or on a pool, and finishes the stores."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streammiml._base.pool_interface import Pool
from streammiml.bags.ids import id_hashes, refuse_twice, split_names
from streammiml.bags.spool import load_arrays
from streammiml.bags.store import BagStore, open_one
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter
from streammiml.blocks.prefetch import run_ahead
from streammiml.errors import RepeatedIdError, StoreError
from streammiml_tools.convert.plan import ConversionFolder, ConversionPlan, Target
from streammiml_tools.convert.progress import ConvertProgress, Watch
from streammiml_tools.convert.sources import with_advice
from streammiml_tools.convert.split_and_filter import strata_of
from streammiml_tools.convert.tasks import (
    RUN,
    BucketTask,
    Facts,
    PartWrite,
    SpanTask,
    Stage,
    TaskDone,
    bucket_tasks,
    highest_key,
    no_facts,
    run_path,
    survey,
    surveyed_labels,
)
from streammiml_tools.readers.base import SourceError

TOGETHER_BYTES = 256 << 20
"""Approximate upper limit of the spans that a worker reads, one after the other, in one call."""
TASKS_PER_THREAD = 20
"""Calls for each thread of a pool, where there are more spans than that."""
MakeTask = Callable[[int, Facts], SpanTask | BucketTask]
"""Makes the task with a given number from the sums of the facts of all earlier tasks."""


def may_pass(error: SourceError) -> bool:
    """Return whether trying again may help: the disk failed, and not the content of a file."""
    return error.may_pass or isinstance(error.__cause__, OSError)


class StageRunner:
    """Runs the stages and tasks of a plan that are not done yet."""

    def __init__(
        self, plan: ConversionPlan, folder: ConversionFolder, pool: Pool | None, watch: Watch | None
    ) -> None:
        self.plan, self.folder = plan, folder.folder
        self._conversion, self._pool, self._watch = folder, pool, watch
        self._top_label = -1
        self._stage: Stage | None = None
        self._writers: dict[str, BagWriter] = {}

    def run(self) -> Facts:
        """Write all parts of all stores, and return the counts of the conversion."""
        plan, settings = self.plan, self.plan.settings
        if not plan.spills:
            stage = Stage("store", plan, plan.targets, plan.spec, plan.n_parts)
            facts = self._run_spans(stage)
            self._refuse_empty(facts)
            self._refuse_repeated_ids(facts)
            return facts
        facts = self._spill("spill", None)
        last = "spill"
        if plan.options.group:
            group_facts = self._spill("group", "spill")
            facts = {**group_facts, "rows": facts["rows"], "empty": facts["empty"]}
            last = "group"
        stage = self._stage_after("store", last, plan.targets, plan.spec)
        if settings.limit is not None:
            stage = replace(stage, cut=highest_key(stage, last, settings.limit))
        store_facts = self._run_buckets(stage, last)
        self._refuse_empty(store_facts)
        facts |= {name: store_facts[name] for name in ("kept", "kept_rows", "labels", "over")}
        return facts

    # Stages.

    def _spill(self, name: str, previous: str | None) -> Facts:
        """Write bags to a temporary store whose parts are sorted by key.

        Bags come from the source, or from the temporary store of the ``previous`` stage.
        """
        target = Target("", str(self.folder / f"{name}.zarr"), str(self.folder / f"{name}-parts"))
        # Unknown labels of fragments are dropped after the fragments are joined.
        own = self.plan.options.group and previous is None
        spec = self.plan.source_spec if own else self.plan.spec
        spec = replace(spec, codec="none", empty_bags="refuse")
        if previous is None:
            facts = self._run_spans(Stage(name, self.plan, (target,), spec, self.plan.n_parts))
        else:
            facts = self._run_buckets(self._stage_after(name, previous, (target,), spec), previous)
        if not target.is_done:
            if not facts["kept"]:
                raise self._no_bags(facts)
            assert self._stage is not None
            with self._writers.pop(target.destination) as writer:
                writer.finish(self._stage.n_parts)
        return facts

    def _stage_after(
        self, name: str, previous: str, targets: tuple[Target, ...], spec: StoreSpec
    ) -> Stage:
        """Return a stage that reads the temporary store of the ``previous`` stage."""
        source = str(self.folder / f"{previous}.zarr")
        runs, first_bag = [], 0
        for path in sorted((run_path(self.folder, previous, 0).parent).iterdir()):
            runs.append((int(path.name), first_bag))
            first_bag += path.stat().st_size // RUN.itemsize
        return Stage(name, self.plan, targets, spec, 0, source=source, runs=tuple(runs))

    def _run_spans(self, stage: Stage) -> Facts:
        """Run a stage that reads the source: one task for each span."""
        label_counts, tasks = self._count_ahead(stage)
        stage = replace(stage, counts=label_counts)
        n_tasks = len(self.plan.scan.spans)
        with self.plan.writing():
            run_path(self.folder, stage.name, 0).parent.mkdir(exist_ok=True)
            (self.folder / "names").mkdir(exist_ok=True)
        total_bytes = sum(span.n_bytes for span in self.plan.scan.spans)

        def make_task(number: int, before: Facts) -> SpanTask:
            if tasks is not None:
                return tasks[number]
            return SpanTask(number, before["bags"], before["kept"])

        return self._run_tasks(stage, n_tasks, make_task, total_bytes)

    def _run_buckets(self, stage: Stage, previous: str) -> Facts:
        """Run a stage that reads a temporary store: one task for each range of keys."""
        tasks = bucket_tasks(stage, previous, self.plan.options.span_bytes)
        self._stage = stage = replace(stage, n_parts=len(tasks))
        with self.plan.writing():
            run_path(self.folder, stage.name, 0).parent.mkdir(exist_ok=True)
        return self._run_tasks(stage, len(tasks), lambda number, _: tasks[number], 0)

    def _count_ahead(self, stage: Stage) -> tuple[NDArray[np.int64] | None, list[SpanTask] | None]:
        """Count the bags before each span, if tasks need these counts before spans are read.

        Returns the counts of all labels, for a stratified split only, and the tasks. Returns no
        tasks if each task can take its count from the facts of the tasks before it.
        """
        plan, settings = self.plan, self.plan.settings
        spans = plan.scan.spans
        n_bags = [span.n_bags for span in spans]
        counts_limit = settings.limit is not None and not plan.spills
        needs_numbers = settings.split is not None or plan.spills or counts_limit
        scan_counted = None not in n_bags and not (
            counts_limit and (settings.where_label or settings.empty_bags == "drop")
        )
        if not settings.stratify and (self._pool is None or not needs_numbers):
            return None, None
        if scan_counted and not settings.stratify:
            firsts = np.cumsum([0, *(count or 0 for count in n_bags)]).tolist()
            return None, [SpanTask(i, firsts[i], firsts[i]) for i in range(len(spans))]
        surveys = self._survey(stage)
        firsts = np.cumsum([0, *(facts["bags"] for facts in surveys)]).tolist()
        kept = np.cumsum([0, *(facts["kept"] for facts in surveys)]).tolist()
        if not settings.stratify:
            return None, [SpanTask(i, firsts[i], kept[i]) for i in range(len(spans))]
        top_label = max(facts["top_label"] for facts in surveys)
        counts = np.zeros(max(plan.spec.labels_known or 0, top_label + 1), np.int64)
        for number in range(len(spans)):
            counts += np.bincount(surveyed_labels(plan, number)[1], minlength=len(counts))
        starts, tasks = np.zeros(len(counts) + 1, np.int64), []
        for number in range(len(spans)):
            tasks.append(SpanTask(number, firsts[number], kept[number], starts.copy()))
            strata = strata_of(*surveyed_labels(plan, number), counts)
            starts += np.bincount(strata, minlength=len(starts))
        return counts, tasks

    def _survey(self, stage: Stage) -> list[Facts]:
        """Count the bags of every span, and save the counts of each span in the folder."""
        with self.plan.writing():
            (self.folder / "survey").mkdir(exist_ok=True)
        numbers = range(len(self.plan.scan.spans))
        total_bytes = sum(span.n_bytes for span in self.plan.scan.spans)
        results: Iterable[Facts]
        if self._pool is None:
            results = (survey(number, stage) for number in numbers)
        else:
            results = self._on_pool(self._pool, _survey_in_worker, numbers, lambda n: n, stage)
        surveys, started, n_bytes, bags = [], time.monotonic(), 0, 0
        for number, facts in enumerate(results):
            surveys.append(facts)
            n_bytes += self.plan.scan.spans[number].n_bytes
            bags += facts["bags"]
            seconds = time.monotonic() - started
            self._report(ConvertProgress("count", bags, n_bytes, total_bytes, seconds, 0))
        return surveys

    # Tasks of a stage.

    def _run_tasks(
        self, stage: Stage, n_tasks: int, make_task: MakeTask, total_bytes: int
    ) -> Facts:
        """Run the tasks that are not done, and return the sums of the facts of all tasks.

        Progress counts bytes of the source, or tasks where ``total_bytes`` is 0.
        """
        with self.plan.writing():
            stage.folder.mkdir(exist_ok=True)
        self._stage = stage
        is_open = all(not target.is_done for target in stage.targets)
        writers = [self._writer(target, stage) for target in stage.targets] if is_open else []
        done: dict[int, Facts] = {}
        for number in range(n_tasks):
            facts = stage.load_facts(number)
            parts = stage.parts_of(number)
            if facts is not None and all(w.has_part(part) for w in writers for part in parts):
                done[number] = facts
        if not is_open and len(done) < n_tasks:
            raise StoreError(
                f"{self.plan.destination} cannot be resumed: {self.folder} was changed; "
                f"remove it and {stage.targets[0].destination} to start again"
            )
        bytes_before = sum(facts["n_bytes"] for facts in done.values()) if total_bytes else 0
        sums, bags, started = no_facts(), 0, time.monotonic()
        for item in self._results(stage, n_tasks, make_task, done, writers):
            bags += item.facts["bags"] if item.task not in done else 0
            for name, value in item.facts.items():
                sums[name] = (
                    max(sums[name], value) if name == "top_label" else value + sums.get(name, 0)
                )
            self._report(
                ConvertProgress(
                    stage.name,
                    bags,
                    sums["n_bytes"] if total_bytes else item.task + 1,
                    total_bytes or n_tasks,
                    time.monotonic() - started,
                    bytes_before,
                )
            )
        self._top_label = max(self._top_label, sums["top_label"])
        return sums

    def _results(
        self,
        stage: Stage,
        n_tasks: int,
        make_task: MakeTask,
        done: dict[int, Facts],
        writers: list[BagWriter],
    ) -> Iterator[TaskDone]:
        """Yield the result of every task in order, running the tasks that are not done."""
        if self._pool is not None:
            missing = [number for number in range(n_tasks) if number not in done]
            results = self._on_pool(
                self._pool, _run_in_worker, missing, lambda n: make_task(n, no_facts()), stage
            )
            for number in range(n_tasks):
                if number in done:
                    yield TaskDone(number, done[number])
                    continue
                yield next(results)
                for writer in writers:
                    writer.absorb()
            return
        with run_ahead(_items(stage, n_tasks, make_task, done), depth=2) as ahead:
            for item in ahead:
                if isinstance(item, PartWrite):
                    stage.write(item, writers)
                    continue
                if item.task not in done:
                    stage.save_facts(item)
                yield item

    def _on_pool(
        self,
        pool: Pool,
        function: Callable[[Any, Stage], Any],
        numbers: Sequence[int],
        make_task: Callable[[int], Any],
        stage: Stage,
    ) -> Iterator[Any]:
        """Yield the result of ``function`` for each of the numbered tasks, in order.

        Where there are many tasks, the pool gets several of them at once: with many processes,
        spans are short, and the scheduler would take longer than the work.
        """
        most = TOGETHER_BYTES // self.plan.options.span_bytes
        step = max(1, min(most, len(numbers) // (TASKS_PER_THREAD * pool.n_threads)))
        groups = (
            [make_task(number) for number in numbers[first : first + step]]
            for first in range(0, len(numbers), step)
        )
        for results in pool.map(_run_together, groups, function, pool.share(stage)):
            yield from results

    def _writer(self, target: Target, stage: Stage) -> BagWriter:
        if target.destination not in self._writers:
            self._writers[target.destination] = BagWriter.begin(
                target.destination,
                stage.spec,
                source=self.plan.fingerprint(),
                staging=Path(target.staging),
                needed=self.plan.needed_bytes,
            )
        return self._writers[target.destination]

    def _report(self, progress: ConvertProgress) -> None:
        if self._watch is not None:
            self._watch(progress)

    # Checks and completion.

    def _refuse_empty(self, facts: Facts) -> None:
        """Refuse stores without bags before the first store of a split becomes visible."""
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

    def _refuse_repeated_ids(self, facts: Facts) -> None:
        """Refuse bags of different stores with the same id; a store checks only its own bags."""
        if len(self.plan.targets) == 1 or not self.plan.spec.bag_ids or not facts["kept"]:
            return
        hashes, starts = [], [0]
        for span in range(len(self.plan.scan.spans)):
            ids = self._ids_of(span)
            hashes.append(id_hashes(ids) if ids else np.empty(0, np.uint64))
            starts.append(starts[-1] + len(ids))

        def id_of(bag: int) -> str:
            span = bisect_right(starts, bag) - 1
            return self._ids_of(span)[bag - starts[span]]

        try:
            refuse_twice(np.concatenate(hashes), id_of, self.plan.destination)
        except RepeatedIdError as error:
            raise self._with_advice(error) from None

    def _ids_of(self, span: int) -> list[str]:
        """Return the ids of the kept bags of a span."""
        loaded = load_arrays(self.folder / "names" / f"{span:08d}")
        return [] if loaded is None else split_names(loaded[0]["offsets"], loaded[0]["bytes"])

    def _with_advice(self, error: RepeatedIdError) -> SourceError:
        """Remove the folder, which ``--group`` cannot use, and return the error with advice."""
        records = self._conversion.saved_records()
        self._conversion.remove()
        return with_advice(error, self.plan.reader, records)

    def finish(self) -> tuple[BagStore, ...]:
        """Complete the stores that are not complete yet, and return all stores."""
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
            except RepeatedIdError as error:
                raise self._with_advice(error) from None
        return tuple(stores)

    def close(self) -> None:
        """Close all writers; finished parts stay."""
        for writer in self._writers.values():
            writer.close()


def _items(
    stage: Stage, n_tasks: int, make_task: MakeTask, done: dict[int, Facts]
) -> Iterator[PartWrite | TaskDone]:
    """Yield the parts of one task after the other, each task followed by its facts.

    Each task is made with the sums of the facts of the tasks before it.
    """
    before = no_facts()
    for number in range(n_tasks):
        items: Iterable[PartWrite | TaskDone]
        if number in done:
            items = [TaskDone(number, done[number])]
        else:
            items = stage.items(make_task(number, before))
        for item in items:
            if isinstance(item, TaskDone):
                before["bags"] += item.facts["bags"]
                before["kept"] += item.facts["kept"]
            yield item


def _run_together(
    tasks: list[Any], function: Callable[[Any, Stage], Any], stage: Stage
) -> list[Any]:
    """Run tasks one after the other in a worker process."""
    return [function(task, stage) for task in tasks]


def _run_in_worker(task: SpanTask | BucketTask, stage: Stage) -> TaskDone:
    """Run one task in a worker process, and return when all of its parts are written."""
    # Workers share the cores, so a parser must not start a thread for each core.
    pa.set_cpu_count(1)
    writers = stage.join_writers()
    try:
        for item in stage.items(task):
            if isinstance(item, PartWrite):
                stage.write(item, writers)
            else:
                stage.save_facts(item)
                return item
    except SourceError as error:
        # The cause of an error is lost on its way from a worker; the attribute is not.
        error.may_pass = may_pass(error)
        raise
    raise AssertionError("the last item of a task is its TaskDone")


def _survey_in_worker(number: int, stage: Stage) -> Facts:
    """Count the bags of one span in a worker process."""
    try:
        return survey(number, stage)
    except SourceError as error:
        error.may_pass = may_pass(error)
        raise
