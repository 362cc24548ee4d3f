"""``survey``: in one pass over a store, its figures, its margins and its sub-concepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.views import Bags
from streammiml.cluster import open_pool
from streammiml.kernel.score import Scores
from streammiml.measure.concepts import Concepts, concepts_of
from streammiml.measure.evaluate import Partials, check_labelled, combined, finished, measured
from streammiml.measure.metric import Metric, ScoredBlock
from streammiml.measure.pieces import Piece, pieces
from streammiml.measure.registry import chosen
from streammiml.measure.scored import BLOCK_BYTES, Count, Watch, block_size, scored, scored_blocks
from streammiml.model import Model
from streammiml.scoring import Scorer

I64 = NDArray[np.int64]

PER_UNIT = 32
"""Bins in a margin of 1."""
FARTHEST = 64
"""Margins beyond are counted in the last bin of their side."""
BINS = 2 * FARTHEST * PER_UNIT


class Margins(NamedTuple):
    """(BINS,) counts of (bag, label) pairs by score less the dummy's, 0 being in the middle."""

    carried: I64
    """Of labels that the bag carries."""
    others: I64

    def add(self, other: Margins) -> Margins:
        """Counts of two sets of bags."""
        return Margins(self.carried + other.carried, self.others + other.others)


class Part(NamedTuple):
    """What is known of some bags."""

    partials: Partials
    margins: Margins
    concepts: Concepts

    @property
    def n_bags(self) -> int:
        """Bags looked at."""
        return self.partials.n_bags


@dataclass(frozen=True, slots=True)
class Survey:
    """What a model makes of a store."""

    figures: dict[str, Any]
    """As :func:`~streammiml.evaluate` returns them."""
    margins: Margins
    concepts: Concepts


def survey(
    model: Model,
    store: Bags,
    *,
    typical: int,
    threads: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    worker_memory: str | int | None = None,
    block_bytes: str | int = BLOCK_BYTES,
    watch: Watch = lambda _: None,
) -> Survey:
    """Look at every bag once; ``typical`` bags of each sub-concept are remembered."""
    check_labelled(model, store)
    measures = chosen(None, row_labels=store.has_row_labels)
    most = block_size(block_bytes)
    total: Part | None = None
    with open_pool(
        threads=threads, workers=workers, scheduler=scheduler, worker_memory=worker_memory
    ) as pool:
        count = Count(store.n_bags, pool.dashboard, watch)
        work = pieces(store, most, remote=pool.is_remote)
        scorer = pool.share(Scorer(model))
        shape = model.n_labels, model.subconcepts
        results = pool.map(survey_piece, work, scorer, measures, shape, typical, most, seen=count)
        for part in results:
            total = part if total is None else joined(measures, total, part, typical)
    assert total is not None, "a store with labels has bags"
    figures = finished(measures, total.partials, store.label_names or model.label_names)
    return Survey(figures, total.margins, total.concepts)


def survey_piece(
    piece: Piece,
    scorer: Scorer,
    metrics: Sequence[Metric[Any]],
    shape: tuple[int, int],
    typical: int,
    block_bytes: int,
) -> Part:
    """One task: read, score and look, with scores of ``block_bytes`` at a time."""
    parts = (
        _looked_at(
            scored(scorer.rule, block, found, piece.cut(first, first + len(block)).bag_numbers()),
            found,
            first,
            metrics,
            shape,
            typical,
        )
        for first, block, found in scored_blocks(piece, scorer, block_bytes)
    )
    return reduce(lambda one, other: joined(metrics, one, other, typical), parts)


def joined(metrics: Sequence[Metric[Any]], one: Part, other: Part, typical: int) -> Part:
    """What is known of the bags of both."""
    return Part(
        combined(metrics, one.partials, other.partials),
        one.margins.add(other.margins),
        one.concepts.add(other.concepts, typical),
    )


def _looked_at(
    block: ScoredBlock,
    found: Scores,
    first: int,
    metrics: Sequence[Metric[Any]],
    shape: tuple[int, int],
    typical: int,
) -> Part:
    bags, labels = np.nonzero(block.predicted)
    concepts = concepts_of(
        bags + first,
        labels,
        found.subconcept[bags, labels].astype(np.int64),
        found.row[bags, labels].astype(np.int32),
        block.scores[bags, labels],
        np.isin(bags * block.n_labels + labels, block.bag_of * block.n_labels + block.labels),
        n_bags=block.n_bags,
        shape=shape,
        count=typical,
    )
    return Part(measured(block, metrics), margins_of(block), concepts)


def margins_of(block: ScoredBlock) -> Margins:
    """Counts of a block; a label level with the dummy is on the side of those not predicted."""
    over = block.scores.astype(np.float64) - block.dummy[:, None].astype(np.float64)
    # Bins are (a, b], so that 0 is the last of its side, as predictions have it.
    np.clip(over, -FARTHEST, FARTHEST, out=over)
    bins = np.maximum(np.ceil(over * PER_UNIT).astype(np.int64) - 1 + BINS // 2, 0)
    every = np.bincount(bins.ravel(), minlength=BINS)
    carried = np.bincount(bins[block.bag_of, block.labels], minlength=BINS)
    return Margins(carried, every - carried)
