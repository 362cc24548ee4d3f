"""Figures, margins and sub-concepts of a store for reports, computed in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml._base.pool import open_pool
from streammiml.bags.views import Bags
from streammiml.kernel.score import Scores
from streammiml.measure.evaluate import Partials, check_labelled, combined, finished, measured
from streammiml.measure.metric import Metric, ScoredBlock
from streammiml.measure.probability import Reliability
from streammiml.measure.registry import chosen
from streammiml.measure.score_pass import collect
from streammiml.measure.scoring import DEFAULTS, ScoreOptions, Watch
from streammiml.measure.subconcepts import SubconceptSummary, summarize_subconcepts
from streammiml.model import Model

I64 = NDArray[np.int64]

PER_UNIT = 32
"""Histogram bins per unit of margin."""
FARTHEST = 64
"""Margins beyond ±64 are counted in the outermost bins."""
BINS = 2 * FARTHEST * PER_UNIT


class Margins(NamedTuple):
    """Histograms (BINS,) of score − dummy score over (bag, label) pairs; 0 is in the middle."""

    carried: I64
    """Pairs whose bag carries the label."""
    others: I64
    """Pairs whose bag does not carry the label."""

    def add(self, other: Margins) -> Margins:
        """Counts over the bags of both."""
        return Margins(self.carried + other.carried, self.others + other.others)


class FullPartials(NamedTuple):
    """Partial results of some bags, which can be combined with those of other bags."""

    partials: Partials
    margins: Margins
    subconcepts: SubconceptSummary
    reliability: Reliability | None

    @property
    def n_bags(self) -> int:
        """Number of bags."""
        return self.partials.n_bags


@dataclass(frozen=True, slots=True)
class FullEvaluation:
    """Figures, margins and sub-concepts of a model on a store."""

    figures: dict[str, Any]
    """As :func:`~streammiml.evaluate` returns them."""
    margins: Margins
    subconcepts: SubconceptSummary
    reliability: Reliability | None
    """None if the model is not calibrated."""


def evaluate_fully(
    model: Model,
    store: Bags,
    *,
    typical: int,
    options: ScoreOptions = DEFAULTS,
    watch: Watch = lambda _: None,
) -> FullEvaluation:
    """Score every bag once; keep ``typical`` bags of each sub-concept."""
    check_labelled(model, store)
    is_calibrated = model.calibration is not None
    metrics = chosen(None, row_labels=store.has_row_labels, probabilities=is_calibrated)
    with open_pool(options) as pool:
        collector = FullCollector(metrics, (model.n_labels, model.subconcepts), typical)
        total = collect(pool, model, store, collector, block_bytes=options.block_size, watch=watch)
    figures = finished(metrics, total.partials, store.label_names or model.label_names)
    return FullEvaluation(figures, total.margins, total.subconcepts, total.reliability)


@dataclass(frozen=True, slots=True)
class FullCollector:
    """Collects everything that a report shows in a pass over scored bags."""

    metrics: Sequence[Metric[Any]]
    shape: tuple[int, int]
    """Number of labels, and number of sub-concepts of each label."""
    typical: int
    """Number of typical bags to keep for each sub-concept."""

    def of_block(self, block: ScoredBlock, scores: Scores, first: int) -> FullPartials:
        """Partial results of a block."""
        bags, labels = np.nonzero(block.predicted)
        subconcepts = summarize_subconcepts(
            bags + first,
            labels,
            scores.subconcept[bags, labels].astype(np.int64),
            scores.row[bags, labels].astype(np.int32),
            block.scores[bags, labels],
            np.isin(bags * block.n_labels + labels, block.bag_of * block.n_labels + block.labels),
            n_bags=block.n_bags,
            shape=self.shape,
            count=self.typical,
        )
        return FullPartials(
            measured(block, self.metrics),
            margins_of(block),
            subconcepts,
            None if block.probabilities is None else Reliability.of(block),
        )

    def add(self, one: FullPartials, other: FullPartials) -> FullPartials:
        """Partial results of the bags of both."""
        return FullPartials(
            combined(self.metrics, one.partials, other.partials),
            one.margins.add(other.margins),
            one.subconcepts.add(other.subconcepts, self.typical),
            one.reliability and other.reliability and one.reliability.add(other.reliability),
        )


def margins_of(block: ScoredBlock) -> Margins:
    """Count the margins of a block; a margin of 0 is on the side of labels not predicted."""
    margins = block.scores.astype(np.float64) - block.dummy[:, None].astype(np.float64)
    # Bins are (a, b]: a label that scores as high as the dummy is not predicted.
    np.clip(margins, -FARTHEST, FARTHEST, out=margins)
    bins = np.maximum(np.ceil(margins * PER_UNIT).astype(np.int64) - 1 + BINS // 2, 0)
    all_pairs = np.bincount(bins.ravel(), minlength=BINS)
    carried = np.bincount(bins[block.bag_of, block.labels], minlength=BINS)
    return Margins(carried, all_pairs - carried)
