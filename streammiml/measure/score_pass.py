"""One pass over the bags of a store: read and score each task, and add up the results."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from math import ceil
from typing import Protocol, TypeVar

from streammiml._base.pool_interface import Pool
from streammiml.bags.views import Bags
from streammiml.kernel.score import Scores
from streammiml.measure.metric import ScoredBlock
from streammiml.measure.scoring import BagCounter, HasBags, Watch, scored_block, scored_blocks
from streammiml.measure.tasks import BagRange, split_into_tasks, store_bytes
from streammiml.model import Model
from streammiml.scorer import Scorer

LEAST_BYTES = 256 << 10
"""A task reads at least this many bytes."""
LEAST_TASKS = 8
"""Tasks per thread. Fewer would leave threads idle while the last task of another thread runs."""
USUAL_TASKS = 20
"""Tasks per thread, if tasks then have from ``USUAL_BYTES`` to ``MOST_BYTES``."""
USUAL_BYTES, MOST_BYTES = 64 << 20, 2 << 30
"""Smaller tasks would cost the scheduler more than they take; of larger ones, much would have to be
done again if a worker is lost. Threads have no scheduler, and Ctrl-C waits for the task of each
thread, so their tasks have at most ``USUAL_BYTES``."""
MOST_SCORES = 1 << 20
"""A task of a thread gives at most this many scores, or those of one bag. Metrics that compare bags
keep every different score: 12 bytes of the task's result, and about 30 while it runs. Tasks of a
cluster have no such limit: metrics keep a bounded number of scores, however many bags there are,
and each worker has memory of its own."""

Collected = TypeVar("Collected", bound=HasBags)


class Collector(Protocol[Collected]):
    """Makes a result from each block of scored bags, and adds two results.

    The sum must not depend on where blocks begin, nor on the order in which they are added. A
    collector is sent to worker processes, so it must be picklable.
    """

    def of_block(self, block: ScoredBlock, scores: Scores, first: int) -> Collected:
        """Collect from a block; ``first`` is the number of its first bag in the store."""

    def add(self, one: Collected, other: Collected) -> Collected:
        """Result of the bags of both."""


def collect(
    pool: Pool,
    model: Model,
    store: Bags,
    collector: Collector[Collected],
    *,
    block_bytes: int,
    watch: Watch,
) -> Collected:
    """Score every bag of a store once, on a pool, and return the sum over all blocks."""
    counter = BagCounter(store.n_bags, pool.dashboard, watch)
    tasks = scoring_tasks(store, model.n_labels, pool.n_threads, remote=pool.is_remote)
    scorer = pool.share(Scorer(model))
    total: Collected = pool.map_reduce(
        collect_task,
        tasks,
        collector.add,
        scorer,
        collector,
        block_bytes,
        seen=lambda bags: counter.add(bags.stop - bags.start),
    )
    return total


def scoring_tasks(
    store: Bags, n_labels: int, n_threads: int, *, remote: bool
) -> Iterator[BagRange]:
    """Cut a store into the tasks of a pass, in order; ``remote`` tasks can be sent to workers."""
    size = task_bytes(store_bytes(store), n_threads, remote=remote)
    most_bags = None if remote else max(1, MOST_SCORES // n_labels)
    return split_into_tasks(store, size, remote=remote, most_bags=most_bags)


def task_bytes(n_bytes: float, n_threads: int, *, remote: bool) -> int:
    """Size of the tasks into which a store of ``n_bytes`` is cut for so many threads."""
    size = min(MOST_BYTES, max(USUAL_BYTES, n_bytes / (USUAL_TASKS * n_threads)))
    if not remote:
        size = USUAL_BYTES
    return ceil(min(size, max(LEAST_BYTES, n_bytes / (LEAST_TASKS * n_threads))))


def collect_task(
    bags: BagRange, scorer: Scorer, collector: Collector[Collected], block_bytes: int
) -> Collected:
    """Read and score the bags of a task, ``block_bytes`` at a time."""
    results = (
        _collect_range(block_range, scorer, collector, block_bytes)
        for block_range in bags.cuts(block_bytes)
    )
    total: Collected = reduce(collector.add, results)
    return total


def _collect_range(
    bags: BagRange, scorer: Scorer, collector: Collector[Collected], block_bytes: int
) -> Collected:
    """Read bags at once and score them; their rows are freed when this returns."""
    results = (
        collector.of_block(
            scored_block(
                scorer.rule,
                block,
                scores,
                bags.cut(first, first + len(block)).bag_numbers(),
                scorer.calibration,
            ),
            scores,
            first,
        )
        for first, block, scores in scored_blocks(bags, scorer, block_bytes)
    )
    total: Collected = reduce(collector.add, results)
    return total
