"""Methods that are compared: MIMLfast in two modes, and every rival, behind one interface.

A contestant chooses settings by cross validation on the training bags, trains on them, and measures
the result on other bags. All contestants see the same folds, and all figures come from the metrics
of ``measure/``.
"""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.offsets import from_sizes
from streammiml.bags.views import Bags
from streammiml.config import TrainConfig, format_size, parse_size
from streammiml.errors import StreammimlError, unknown
from streammiml.learn.halving import NO_LOOKS, Trial, rungs, survivors
from streammiml.learn.train import train_trial
from streammiml.measure.evaluate import evaluate, finished, measured
from streammiml.measure.metric import Metric, ScoredBlock
from streammiml.measure.registry import METRICS, chosen
from streammiml.measure.tasks import range_bounds
from streammiml.rivals.registry import METHODS, Method
from streammiml.search.folds import Folds
from streammiml.search.grid import Setting
from streammiml.search.search_plan import FREE_IN_TRIALS as FREE
from streammiml.search.tune import tune

if TYPE_CHECKING:  # It loads scikit-learn, which is optional.
    from streammiml.rivals.rival import RivalScores

CRITERIA = tuple(
    name
    for name, metric in METRICS.items()
    if metric.better != "neither" and not metric.needs_probabilities
)
"""Figures that are compared."""
BLOCK_BYTES = 64 << 20
WARM_UP_BAGS = 16


class Contestant(ABC):
    """One method of a comparison; instances can be pickled."""

    name: str
    """As users type it."""
    title: str
    """As tables show it."""
    has_fixed_settings = True
    """Whether the method can be trained without a search, with its default settings."""

    @property
    @abstractmethod
    def candidates(self) -> object:
        """Settings that the method chooses from, as JSON; cells with others are measured again."""

    @abstractmethod
    def choose(self, learn: Bags, folds: int) -> Setting:
        """Choose settings by cross validation on the training bags."""

    @abstractmethod
    def fit(self, learn: Bags, setting: Setting) -> Any:
        """Train on all training bags."""

    @abstractmethod
    def figures(self, fitted: Any, test: Bags) -> dict[str, float | None]:
        """Measure what :meth:`fit` returned on other bags: values of ``CRITERIA``."""

    @abstractmethod
    def warm_up(self, learn: Bags) -> None:
        """Train on a few bags, so that no time is measured in which code compiles or loads."""


class OurMode(Contestant):
    """MIMLfast with fixed settings, or with those that ``tune`` finds in a grid."""

    def __init__(
        self, name: str, title: str, grid: str | None, config: TrainConfig, memory: str
    ) -> None:
        self.name, self.title, self._grid = name, title, grid
        self._config = replace(config, threads=1, memory=memory)
        self.has_fixed_settings = grid is None

    @property
    def candidates(self) -> object:
        """See :attr:`Contestant.candidates`."""
        base = self._config.recorded()
        return {"grid": self._grid, **{name: base[name] for name in base if name not in FREE}}

    def choose(self, learn: Bags, folds: int) -> Setting:
        """See :meth:`Contestant.choose`."""
        if self._grid is None:
            return {}
        with tempfile.TemporaryDirectory(prefix="streammiml-compare-") as folder:
            run = Path(folder) / "search"
            search = tune(learn, run, self._config, grid=self._grid, folds=folds, threads=1)
        return dict(search["winner"])

    def fit(self, learn: Bags, setting: Setting) -> Any:
        """See :meth:`Contestant.fit`."""
        return train_trial(learn, replace(self._config, **setting))

    def figures(self, fitted: Any, test: Bags) -> dict[str, float | None]:
        """See :meth:`Contestant.figures`."""
        names = [metric.name for metric in criteria(test, keys=True)]
        figures = evaluate(fitted, test, metrics=names, threads=1)
        return {name: figures[name] for name in names}

    def warm_up(self, learn: Bags) -> None:
        """See :meth:`Contestant.warm_up`."""
        bags = learn.view(slice(WARM_UP_BAGS))
        brief = replace(self._config, max_steps=WARM_UP_BAGS, validation=0.0, epochs=None)
        with suppress(StreammimlError):  # So few bags may lack labels.
            self.figures(train_trial(bags, brief), bags)


class RivalMethod(Contestant):
    """A method of the registry of rivals."""

    def __init__(self, method: Method, memory: str) -> None:
        self.name, self.title, self._method = method.name, method.title, method
        self._memory = memory

    @property
    def candidates(self) -> object:
        """See :attr:`Contestant.candidates`."""
        return list(self._method.grid)

    def choose(self, learn: Bags, folds: int) -> Setting:
        """Try all settings on the first fold, and the better third also on the other folds."""
        self._check_memory(learn)
        grid = self._method.grid
        if len(grid) == 1:
            return dict(grid[0])
        fold_plan = Folds(learn.n_bags, folds)
        losses: dict[Trial, float] = {}
        surviving = list(range(len(grid)))
        plan = rungs(len(grid), folds, 1, NO_LOOKS, halving=True)
        for number, rung in enumerate(plan):
            for trial in rung.trials(surviving):
                inner, test = fold_plan.cut(learn, trial.fold)
                losses[trial] = self._loss(inner, test, dict(grid[trial.setting]))
            if number + 1 < len(plan):
                first = [losses[Trial(setting, 0, 1)] for setting in surviving]
                surviving = survivors(surviving, first, NO_LOOKS)

        def mean_loss(setting: int) -> float:
            return math.fsum(losses[Trial(setting, fold, 1)] for fold in range(folds)) / folds

        return dict(grid[min(surviving, key=mean_loss)])

    def _check_memory(self, learn: Bags) -> None:
        """Refuse bags for which ``fit`` would need too much, before a search on fewer bags."""
        needed = self._method.cost(learn.n_bags, learn.n_rows, learn.n_features, learn.n_labels)
        if needed > parse_size(self._memory):
            raise StreammimlError(
                f"{self.title} would need about {format_size(needed)} for {learn.n_bags:,} bags, "
                f"more than --memory {self._memory}"
            )

    def _loss(self, learn: Bags, test: Bags, setting: Setting) -> float:
        """Ranking loss on ``test`` after training on ``learn``."""
        metrics = chosen(["ranking_loss"], row_labels=False)
        value = figures_of_rival(self.fit(learn, setting).scored(test), test, metrics)
        return math.inf if value["ranking_loss"] is None else value["ranking_loss"]

    def fit(self, learn: Bags, setting: Setting) -> Any:
        """See :meth:`Contestant.fit`."""
        return self._method.make(**setting, memory=self._memory, threads=1).fit(learn)

    def figures(self, fitted: Any, test: Bags) -> dict[str, float | None]:
        """See :meth:`Contestant.figures`."""
        metrics = criteria(test, keys=self._method.has_key_instances)
        return figures_of_rival(fitted.scored(test), test, metrics)

    def warm_up(self, learn: Bags) -> None:
        """See :meth:`Contestant.warm_up`."""
        bags = learn.view(slice(WARM_UP_BAGS))
        with suppress(Exception):  # So few bags may lack what the method needs.
            self.fit(bags, dict(self._method.grid[0])).scored(bags)


def figures_of_rival(
    scored: RivalScores, test: Bags, metrics: Sequence[Metric[Any]]
) -> dict[str, float | None]:
    """Measure what a rival says of the bags of a store."""
    if not np.isfinite(scored.value).all():
        raise StreammimlError("it gave scores that are not finite numbers")
    with_keys = any(metric.needs_row_labels for metric in metrics)
    label_offsets, labels = test.labels(0, test.n_bags)
    block = ScoredBlock(
        scores=in_order(scored.value),
        # A rival has no dummy label: it says itself which labels it predicts.
        dummy=np.zeros(test.n_bags, np.float32),
        predicted=scored.predicted,
        label_offsets=label_offsets,
        labels=labels,
        key_rows=scored.key_rows if with_keys else None,
        bag_offsets=from_sizes(test.bag_sizes(0, test.n_bags)),
        row_labels=_row_labels(test) if with_keys else None,
    )
    figures = finished(metrics, measured(block, metrics), None)
    return {metric.name: figures[metric.name] for metric in metrics}


def in_order(scores: NDArray[np.float64]) -> NDArray[np.float32]:
    """Replace each score by the number of different lower scores, exact up to 2²⁴ of them.

    Metrics look at the order alone, and rounding scores to float32 would make some of them equal.
    """
    ranks = np.unique(scores, return_inverse=True)[1]
    return np.ascontiguousarray(ranks.reshape(scores.shape), np.float32)


def _row_labels(store: Bags) -> NDArray[np.int32]:
    blocks = (
        store.read(start, stop, kept=False) for start, stop in range_bounds(store, BLOCK_BYTES)
    )
    labels = [block.row_labels for block in blocks if block.row_labels is not None]
    return np.concatenate(labels)


def criteria(store: Bags, *, keys: bool) -> list[Metric[Any]]:
    """Metrics that can be compared on a store; ``keys``: whether the method has key instances."""
    with_keys = store.has_row_labels and keys
    return [METRICS[name] for name in CRITERIA if with_keys or not METRICS[name].needs_row_labels]


OURS: Mapping[str, tuple[str, str | None]] = {
    "mimlfast": ("MIMLfast, default", None),
    "mimlfast-best": ("MIMLfast, best", "best"),
}
"""Title of each mode of MIMLfast, and the grid that ``tune`` searches for it."""


def contestants(
    methods: str | Sequence[str | Method], config: TrainConfig, memory: str
) -> list[Contestant]:
    """Contestants by their names: a list, names joined by commas, or ``all``."""
    if isinstance(methods, str):
        methods = [*OURS, *METHODS] if methods == "all" else methods.split(",")
    if not methods:
        raise StreammimlError(f"no method is given; known: {', '.join([*OURS, *METHODS])}")
    named = [_contestant(method, config, memory) for method in methods]
    return list({contestant.name: contestant for contestant in named}.values())


def _contestant(method: str | Method, config: TrainConfig, memory: str) -> Contestant:
    if not isinstance(method, str):
        return RivalMethod(method, memory)
    name = method.strip()
    if name in OURS:
        return OurMode(name, *OURS[name], config, memory)
    if name not in METHODS:
        raise unknown("method", name, [*OURS, *METHODS, "all"])
    return RivalMethod(METHODS[name], memory)
