"""Dry runs of ``evaluate`` and ``predict``: what they read, hold and take; nothing is written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from streammiml._base.platform import bytes_read, usable_cores
from streammiml.bags.views import SCAN_BAGS, Bags
from streammiml.blocks.budget import row_bytes
from streammiml.measure.evaluate import checked_for_evaluation, measure_task
from streammiml.measure.label_choice import Labels
from streammiml.measure.metric import Metric
from streammiml.measure.output_plan import GROUP_BYTES, part_tasks, scored_groups
from streammiml.measure.predict import checked_for_prediction
from streammiml.measure.prediction_folder import check_folder
from streammiml.measure.score_pass import scoring_tasks
from streammiml.measure.scoring import DEFAULTS, ModelLike, ScoreOptions, StoreLike
from streammiml.measure.tasks import BagRange, all_bags, range_bounds, store_bytes
from streammiml.model import Model
from streammiml.scorer import Scorer

SAMPLE_SECONDS = 1.0
"""Bags are read and scored for about this time."""
WARM_BAGS = 2
"""Bags of the first call, which compiles and is not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreDryRun:
    """Costs of scoring a store. Bytes and seconds are estimates from the first bags."""

    n_bags: int
    n_rows: int
    n_tasks: int
    tasks_at_once: int | None
    """Tasks that run at the same time; None for a cluster that is not started here."""
    memory: int
    """Bytes that these tasks hold together, or one task where their number is not known."""
    read_bytes: int
    """Bytes from disk or network."""
    sampled_bags: int
    """Bags that were read and scored to measure the seconds."""
    seconds: float | None
    """Seconds of reading and scoring; None for a cluster that is not started here."""
    seconds_on_one_core: float
    n_parts: int = 0
    """Parts that ``predict`` would write."""
    write_bytes: int = 0
    """Bytes of the predictions, without row scores, before compression."""


def dry_evaluate(
    model: ModelLike,
    store: StoreLike,
    *,
    metrics: Iterable[str | Metric[Any]] | None = None,
    options: ScoreOptions = DEFAULTS,
) -> ScoreDryRun:
    """Estimate the costs of ``evaluate``; what it refuses before the first bag is refused."""
    model, store, chosen_metrics = checked_for_evaluation(model, store, metrics)
    at_once, is_remote = _tasks_at_once(options)
    tasks = scoring_tasks(store, model.n_labels, at_once or 1, remote=is_remote)
    n_tasks = sum(1 for _ in tasks)

    def score(bags: BagRange, scorer: Scorer) -> None:
        measure_task(bags, scorer, chosen_metrics, options.block_size)

    return ScoreDryRun(n_tasks=n_tasks, **_costs(model, store, options, score))


def dry_predict(
    model: ModelLike,
    store: StoreLike,
    out: str | os.PathLike[str],
    *,
    format: str = "parquet",
    top_k: int | None = None,
    rows: str | None = None,
    labels: Labels | None = None,
    options: ScoreOptions = DEFAULTS,
) -> ScoreDryRun:
    """Estimate the costs of ``predict``; what it refuses before the first bag is refused.

    Parts that ``out`` has already count as if they were missing.
    """
    wanted = checked_for_prediction(
        model, store, format=format, top_k=top_k, rows=rows, labels=labels
    )
    check_folder(out, wanted.record, "predictions")
    plan = wanted.plan
    at_once, is_remote = _tasks_at_once(options)
    everything = all_bags(wanted.store, remote=is_remote)
    n_tasks = sum(1 for _ in part_tasks(plan, range(plan.n_parts), everything, at_once or 1))

    def score(bags: BagRange, scorer: Scorer) -> None:
        for _ in scored_groups(bags, scorer, plan, options.block_size):
            pass

    costs = _costs(wanted.model, wanted.store, options, score, more_bytes=GROUP_BYTES)
    return ScoreDryRun(n_tasks=n_tasks, n_parts=plan.n_parts, write_bytes=plan.n_bytes, **costs)


def _tasks_at_once(options: ScoreOptions) -> tuple[int | None, bool]:
    """How many tasks run at the same time, None if only the cluster knows; and whether remotely."""
    if options.scheduler is not None or options.client is not None:
        return None, True
    if options.workers is not None:
        return options.workers, True
    return options.threads or usable_cores(), False


def _costs(
    model: Model,
    store: Bags,
    options: ScoreOptions,
    score: Callable[[BagRange, Scorer], None],
    *,
    more_bytes: int = 0,
) -> dict[str, Any]:
    """Fields that both verbs have; ``more_bytes``: what a task holds beside the bags it reads."""
    at_once, _ = _tasks_at_once(options)
    n_bags, seconds, read_ratio = _sampled(model, store, options.block_size, score)
    block = max(min(options.block_size, store_bytes(store)), _largest_bag(store))
    arrays = (model.shared, model.labels, model.lift.frequencies)
    task_memory = 2 * block + more_bytes
    return {
        "n_bags": store.n_bags,
        "n_rows": store.n_rows,
        "tasks_at_once": at_once,
        "memory": round((at_once or 1) * task_memory) + sum(array.nbytes for array in arrays),
        "read_bytes": round(row_bytes(store) * store.n_rows * read_ratio),
        "sampled_bags": n_bags,
        "seconds": None if at_once is None else seconds / at_once,
        "seconds_on_one_core": seconds,
    }


def _largest_bag(store: Bags) -> float:
    """Bytes of the rows of the largest bag; only offsets are read."""
    firsts = range(0, store.n_bags, SCAN_BAGS)
    sizes = (store.bag_sizes(first, min(first + SCAN_BAGS, store.n_bags)) for first in firsts)
    return max((float(part.max()) for part in sizes), default=0.0) * row_bytes(store)


def _sampled(
    model: Model, store: Bags, block_bytes: int, score: Callable[[BagRange, Scorer], None]
) -> tuple[int, float, float]:
    """Score the first bags: their number, seconds for the store on a core, bytes read per byte."""
    everything, scorer = all_bags(store, remote=False), Scorer(model)
    if not store.n_bags:
        return 0, 0.0, 1.0
    score(everything.cut(0, min(WARM_BAGS, store.n_bags)), scorer)
    n_bags, n_rows, before, begun = 0, 0, bytes_read(), time.monotonic()
    for start, stop in range_bounds(store, block_bytes):
        score(everything.cut(start, stop), scorer)
        n_bags, n_rows = stop, n_rows + int(store.bag_sizes(start, stop).sum())
        if time.monotonic() - begun > SAMPLE_SECONDS:
            break
    seconds, read = time.monotonic() - begun, bytes_read() - before
    n_bytes = max(1.0, n_rows * row_bytes(store))
    # The system does not count reads over the network or from its cache.
    ratio = read / n_bytes if read > 0.01 * n_bytes else 1.0
    return n_bags, seconds * store.n_rows / max(1, n_rows), ratio
