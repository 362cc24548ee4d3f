"""PooledLogistic: a logistic regression for each label on one vector for each bag."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression

from streammiml.bags.views import Bags
from streammiml.rivals import costs
from streammiml.rivals.pooling import VectorScale, pooled
from streammiml.rivals.rival import DEFAULT_MEMORY, F64, Bools, Rival, constant_labels

KINDS = ("mean", "max", "min")


class PooledLogistic(Rival):
    """Logistic regressions on the mean, maximum and minimum of each feature over the rows of a bag.

    Scores are probabilities minus 0.5, so labels with a probability above one half are predicted;
    if all training bags have a label, at least one is.

    Parameters
    ----------
    scale
        How vectors are scaled: ``standard``, ``unit``, or ``sqrt+unit`` for counts and histograms.
    cost
        Cost of errors on training bags, often called C.
    memory
        Upper limit for the memory that ``fit`` takes beside the bags.
    threads
        Threads on which vectors are computed; results do not depend on them.
    """

    positive_settings = ("cost",)

    def __init__(
        self,
        *,
        scale: str = "standard",
        cost: float = 1.0,
        memory: str = DEFAULT_MEMORY,
        threads: int = 1,
    ) -> None:
        self.scale = scale
        self.cost = cost
        self.memory = memory
        self.threads = threads

    def _bytes_needed(self, n_bags: int, n_rows: int, n_features: int, n_labels: int) -> int:
        return costs.pooled(n_bags, n_rows, n_features, n_labels)

    def _learn(self, store: Bags, truth: Bools) -> None:
        self.cutoff_, self.always_one = 0.5, bool(truth.any(axis=1).all())
        vectors = pooled(store, KINDS, self.threads)
        self._scale = VectorScale(self.scale, vectors)
        scaled = self._scale.apply(vectors)
        self._constant = constant_labels(truth)
        self._models = [
            None
            if self._constant[label]
            else LogisticRegression(
                C=self.cost, max_iter=300, solver="liblinear", random_state=0
            ).fit(scaled, truth[:, label])
            for label in range(truth.shape[1])
        ]

    def _score(self, store: Bags) -> tuple[F64, None]:
        vectors = self._scale.apply(pooled(store, KINDS, self.threads))
        out = np.tile(np.maximum(self._constant, 0.0), (store.n_bags, 1))
        for label, model in enumerate(self._models):
            if model is not None:
                out[:, label] = model.predict_proba(vectors)[:, 1]
        return out, None
