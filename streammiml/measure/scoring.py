"""Reading and scoring the bags of a task, a few at a time, for evaluate, predict and explain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streammiml._base.calibration import Calibration
from streammiml._base.pool_interface import PoolOptions
from streammiml.bags.block import BagBlock
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.config import parse_size
from streammiml.errors import StreammimlError
from streammiml.kernel.score import Scores
from streammiml.measure.metric import ScoredBlock
from streammiml.measure.rules import predicted
from streammiml.measure.tasks import BagRange
from streammiml.model import LabelRule, Model, load_model
from streammiml.scorer import Scorer

ModelLike = Model | str | PathLike[str]
StoreLike = Bags | str | PathLike[str] | Sequence[str | PathLike[str]]

BLOCK_BYTES = "8MiB"
"""Default of the option ``block_bytes``: upper limit for the bags that a task reads at a time."""
LABEL_BYTES = 32
"""Estimate per bag and label: score, key row, sub-concept, prediction and temporary copies."""


@dataclass(frozen=True, slots=True)
class ScoreProgress:
    """Number of bags scored so far, for progress bars."""

    bags_done: int
    n_bags: int
    dashboard: str | None
    """Address of the Dask dashboard, if there is one."""


Watch = Callable[[ScoreProgress], None]


class HasBags(Protocol):
    """Result of a task, with the number of bags that the task scored."""

    @property
    def n_bags(self) -> int:
        """Number of bags that the task scored."""


class BagCounter:
    """Counts bags as tasks end, and calls ``watch`` with the new count."""

    def __init__(self, n_bags: int, dashboard: str | None, watch: Watch, done: int = 0) -> None:
        self._n_bags, self._dashboard, self._watch, self._done = n_bags, dashboard, watch, done
        watch(ScoreProgress(done, n_bags, dashboard))

    def __call__(self, result: HasBags) -> None:
        """Add the bags of a task that has ended."""
        self.add(result.n_bags)

    def add(self, n_bags: int) -> None:
        """Add some bags whose task has ended."""
        self._done += n_bags
        self._watch(ScoreProgress(self._done, self._n_bags, self._dashboard))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOptions(PoolOptions):
    """Options of everything that scores a store: where tasks run, and how much a task reads."""

    block_bytes: str | int = BLOCK_BYTES
    """Upper limit for what a task reads at a time; the task holds about twice as much."""

    def __post_init__(self) -> None:
        # With slots, the decorator makes a new class, so super() without arguments would fail.
        PoolOptions.__post_init__(self)
        parse_size(self.block_bytes, option="block_bytes", least=1)

    @property
    def block_size(self) -> int:
        """``block_bytes`` as a number."""
        return parse_size(self.block_bytes)


DEFAULTS = ScoreOptions()


def is_store(store: object) -> bool:
    """Whether this is a store or paths of stores; an empty list means zero bags in memory."""
    if isinstance(store, list | tuple) and store:
        return all(isinstance(path, str | PathLike) for path in store)
    return isinstance(store, str | PathLike | Bags)


def open_model_and_store(model: ModelLike, store: StoreLike) -> tuple[Model, Bags]:
    """Load the model and open the store if paths were given.

    If both have the same label names, the model comes with its labels in the order of the store.
    """
    model = model if isinstance(model, Model) else load_model(model)
    store = store if isinstance(store, Bags) else open_store(store)
    return model.for_labels(store.label_names), store


def check_fits(model: Model, store: Bags) -> None:
    """Refuse a store that the model cannot score, before any row is read.

    A store without any label fits: it can be scored, though not evaluated.
    """
    model.check_store(
        store.n_features,
        store.n_labels or model.n_labels,
        store.label_names,
        sparse=store.sparse,
        store=store.name,
    )


def check_given(model: Model, block: BagBlock) -> None:
    """Refuse bags in memory that the model cannot score."""
    if len(block):
        sparse = not isinstance(block.rows, np.ndarray)
        model.check_store(block.n_features, model.n_labels, sparse=sparse, store="a bag")


def scored_blocks(
    bags: BagRange, scorer: Scorer, block_bytes: int, *, kept: bool = False
) -> Iterator[tuple[int, BagBlock, Scores]]:
    """Read a range at once; score it in blocks whose scores take about ``block_bytes``.

    Yields the number of the first bag, the bags, and their scores, which are all finite. Values of
    kept columns are read only if ``kept`` is True.
    """
    range_bags = bags.read(kept=kept)
    step = max(1, block_bytes // (LABEL_BYTES * (scorer.n_labels + 1)))
    for start in range(0, len(range_bags), step):
        block = range_bags.slice(start, min(start + step, len(range_bags)))
        scores = scorer.scores(block)
        check_finite(scores, bags.start + start, bags.source.name)
        yield bags.start + start, block, scores


def check_finite(scores: Scores, first: int, name: str) -> None:
    """Refuse scores that are not finite, and name the bag; ``first``: number of the first bag."""
    finite = np.isfinite(scores.value)
    if not finite.all():
        bag = first + int(finite.all(axis=1).argmin())
        raise StreammimlError(
            f"{name}: bag {bag} has a score that is not a finite number: its "
            "values are not finite, or too large for the model; check them, or scale them "
            "differently"
        )


def scored_block(
    rule: LabelRule,
    block: BagBlock,
    scores: Scores,
    numbers: NDArray[np.int64] | None = None,
    calibration: Calibration | None = None,
) -> ScoredBlock:
    """Join a block with its scores and predictions; ``numbers`` (n,) identify the bags."""
    label_scores = np.ascontiguousarray(scores.value[:, :-1])
    dummy = scores.value[:, -1]
    return ScoredBlock(
        scores=label_scores,
        dummy=dummy,
        predicted=predicted(rule, label_scores, dummy),
        label_offsets=block.label_offsets,
        labels=block.label_indices,
        key_rows=scores.row,
        bag_offsets=block.bag_offsets,
        row_labels=block.row_labels,
        numbers=numbers,
        probabilities=None if calibration is None else calibration.of_scores(label_scores, dummy),
    )
