"""``Rival``: what all methods share, above all the forms of bags and labels that they accept."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.from_arrays import MATRIX, ONE_EACH, block_of, in_form, in_memory, labels_of
from streammiml.bags.memory import MemoryBags
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.config import check_number, check_whole, format_size, parse_size
from streammiml.errors import StreammimlError
from streammiml.measure.rules import highest
from streammiml.rivals.costs import THREAD_BYTES
from streammiml.rivals.row_blocks import RowBlocks, Scaling

try:
    from sklearn.base import BaseEstimator
    from sklearn.metrics import label_ranking_average_precision_score
    from sklearn.utils.validation import check_is_fitted
except ModuleNotFoundError as error:
    raise StreammimlError(
        f"streammiml.rivals needs scikit-learn ({error}): pip install 'streammiml[sklearn]'"
    ) from None

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
DEFAULT_MEMORY = "4GiB"


class RivalScores(NamedTuple):
    """What a method says of some bags."""

    value: F64
    """(n, L) Scores minus the cutoff: labels above 0 are predicted."""
    predicted: Bools
    """(n, L) Whether a label is predicted."""
    key_rows: I64 | None
    """(n, L) Row within the bag that stands for each label; None if the method has none."""


class Rival(BaseEstimator):  # type: ignore[misc]
    """Base of all methods; a method has ``_learn``, ``_score`` and ``_bytes_needed``.

    Every method has the parameters ``memory``, an upper limit for what ``fit`` holds beside bags
    that were given as arrays, and ``threads``. Results do not depend on them.
    """

    memory: str
    threads: int
    whole_settings: tuple[str, ...] = ()
    """Parameters that are whole numbers of at least 1."""
    positive_settings: tuple[str, ...] = ()
    """Parameters that are numbers above 0."""
    always_one = False
    """Whether the label with the highest score is predicted if no label is above the cutoff."""
    cutoff_is_positive = False
    """Whether a score equal to the cutoff predicts its label."""

    def fit(self, bags: Any, y: Any = None) -> Self:
        """Train on bags and labels as ``MIMLfast`` takes them, or on a store or its path.

        A store has labels of its own, so ``y`` is for bags that are given as arrays.
        """
        if _is_store(bags):
            if y is not None:
                raise StreammimlError("a store has labels of its own; call fit(store) without y")
            store = _opened(bags)
            names = store.label_names
            classes = np.arange(store.n_labels) if names is None else np.array(names)
            form = MATRIX
        else:
            block = block_of(bags)
            labels = labels_of(y, None, estimator=type(self).__name__)
            store, classes, form = in_memory(block, labels), labels.classes, labels.form
        if not store.n_labels:
            raise StreammimlError(f"{store.name} has no labels to learn")
        self._check_settings()
        self._spare_bytes = self._check_memory(store)
        truth = truth_of(store)
        self.cutoff_ = 0.0
        self.n_features_in_ = store.n_features
        self._learn(store, truth)
        self.classes_, self._form = classes, form
        return self

    def scored(self, bags: Any) -> RivalScores:
        """Scores, predicted labels and key instances in one pass; ``bags`` as for ``predict``."""
        check_is_fitted(self, "classes_")
        raw, key_rows = self._score(self._scorable(bags))
        value = raw - self.cutoff_
        chosen = value >= 0 if self.cutoff_is_positive else value > 0
        if self.always_one:
            chosen |= highest(value, 1)
        return RivalScores(value, chosen, key_rows)

    def predict(self, bags: Any) -> Any:
        """Labels of each bag, in the form of the labels that were passed to ``fit``.

        If ``fit`` had a store, the result is an indicator matrix. ``bags`` are arrays as for
        ``MIMLfast``, a store, or its path.
        """
        scores = self.scored(bags)
        if self._form == ONE_EACH:
            return self.classes_[scores.value.argmax(axis=1)]
        return in_form(self._form, self.classes_, scores.predicted)

    def decision_function(self, bags: Any) -> F64:
        """(n, L) Scores minus the cutoff."""
        return self.scored(bags).value

    def score(self, bags: Any, y: Any = None) -> float:
        """Label ranking average precision; bags with no label or all labels count as 1."""
        check_is_fitted(self, "classes_")
        if _is_store(bags):
            store = _opened(bags)
        else:
            store = in_memory(block_of(bags), labels_of(y, self.classes_))
        scores = self.decision_function(store)
        return float(label_ranking_average_precision_score(truth_of(store), scores))

    @abstractmethod
    def _learn(self, store: Bags, truth: Bools) -> None:
        """Train on a store; ``truth`` (n, L) says which labels each bag carries."""

    @abstractmethod
    def _score(self, store: Bags) -> tuple[F64, I64 | None]:
        """(n, L) Scores of the bags of a store, and key instances if the method has them."""

    @abstractmethod
    def _bytes_needed(self, n_bags: int, n_rows: int, n_features: int, n_labels: int) -> int:
        """Bytes that ``_learn`` will hold; see :mod:`streammiml.rivals.costs`."""

    def _check_settings(self) -> None:
        """Refuse settings that mean nothing."""
        given = self.get_params(deep=False)
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
        for name in ("threads", *self.whole_settings):
            check_whole(name, plain[name], 1)
        for name in self.positive_settings:
            check_number(name, plain[name])
        check_whole("seed", plain.get("seed", 0), 0)

    def _check_memory(self, store: Bags) -> int:
        """Refuse a store that needs more than ``memory``; return the bytes that are left."""
        limit = parse_size(self.memory, least=1)
        sizes = (store.n_bags, store.n_rows, store.n_features, store.n_labels)
        needed = self._bytes_needed(*sizes) + (self.threads - 1) * THREAD_BYTES
        if needed > limit:
            raise StreammimlError(
                f"{type(self).__name__} would need about {format_size(needed)} for "
                f"{store.n_bags:,} bags with {store.n_rows:,} rows of {store.n_features} features "
                f"and {store.n_labels} labels, and memory is {format_size(limit)}; train on fewer "
                "bags, or give more memory"
            )
        return limit - needed

    def _scorable(self, bags: Any) -> Bags:
        """Convert bags to a store, and refuse bags with other features than those of ``fit``."""
        check_is_fitted(self, "classes_")
        store = _opened(bags) if _is_store(bags) else MemoryBags(block_of(bags))
        if store.n_features != self.n_features_in_:
            raise StreammimlError(
                f"{store.name} has {store.n_features} features, but {type(self).__name__} is "
                f"expecting {self.n_features_in_} features as input"
            )
        return store

    def _blocks(self, store: Bags, scaling: Scaling | None = None, **options: int) -> RowBlocks:
        """Blocks of the store on the threads of this estimator."""
        return RowBlocks(store, scaling=scaling, threads=self.threads, **options)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.one_d_labels = tags.target_tags.two_d_labels = True
        tags.input_tags.sparse = tags.input_tags.three_d_array = True
        return tags


class KeyInstanceRival(Rival):
    """Base of methods that say which row of a bag stands for each label."""

    def key_instances(self, bags: Any) -> I64:
        """(n, L) Key instances: the row of each bag that stands for each label."""
        key_rows = self.scored(bags).key_rows
        assert key_rows is not None, "methods with this base have key instances"
        return key_rows


def truth_of(store: Bags) -> Bools:
    """(n, L) Whether each bag carries each label."""
    offsets, labels = store.labels(0, store.n_bags)
    truth = np.zeros((store.n_bags, store.n_labels), np.bool_)
    truth[np.repeat(np.arange(store.n_bags), np.diff(offsets)), labels] = True
    return truth


def constant_labels(truth: Bools) -> F64:
    """(L,) 1 for labels that all bags carry, −1 for labels that none carries, 0 for the others."""
    return np.where(truth.all(axis=0), 1.0, np.where(truth.any(axis=0), 0.0, -1.0))


def least_hamming_cutoff(truth: Bools, scores: F64) -> float:
    """The cutoff on all scores (n, L) above which predicting labels gives the least Hamming loss.

    It lies in the middle between two neighbouring scores; of equally good cutoffs, the highest.
    """
    order = np.argsort(-scores, axis=None, kind="stable")
    values = scores.ravel()[order]
    gains = np.cumsum(np.where(truth.ravel()[order], 1, -1))
    # A cutoff can only lie behind the last of several equal scores.
    ends = np.flatnonzero(np.append(values[1:] < values[:-1], True))
    best = int(gains[ends].argmax())
    if gains[ends[best]] <= 0:
        return float(values[0])
    end = int(ends[best])
    if end + 1 == len(values):
        return float(np.nextafter(values[-1], -np.inf))
    return float((values[end] + values[end + 1]) / 2)


def _is_store(bags: Any) -> bool:
    return isinstance(bags, Bags | str | os.PathLike)


def _opened(store: Any) -> Bags:
    return store if isinstance(store, Bags) else open_store(store)
