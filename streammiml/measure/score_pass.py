"""One pass over the bags of a store: read and score each task, and add up the results."""

from __future__ import annotations

from functools import reduce
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
"""A task reads at least this many bytes, unless ``block_bytes`` is less."""
TASKS_PER_THREAD = 8
"""Fewer tasks would leave threads idle while the last task of another thread runs."""

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
    share = int(store_bytes(store) / (TASKS_PER_THREAD * pool.n_threads))
    size = min(block_bytes, max(LEAST_BYTES, share))
    tasks = split_into_tasks(store, size, remote=pool.is_remote)
    scorer = pool.share(Scorer(model))
    results = pool.map(collect_task, tasks, scorer, collector, block_bytes, seen=counter)
    total: Collected = reduce(collector.add, results)
    return total


def collect_task(
    bags: BagRange, scorer: Scorer, collector: Collector[Collected], block_bytes: int
) -> Collected:
    """Read and score the bags of a task; scores take ``block_bytes`` at a time."""
    results = (
        collector.of_block(
            scored_block(
                scorer.rule, block, scores, bags.cut(first, first + len(block)).bag_numbers()
            ),
            scores,
            first,
        )
        for first, block, scores in scored_blocks(bags, scorer, block_bytes)
    )
    total: Collected = reduce(collector.add, results)
    return total
