"""PooledForest: a random forest on one vector for each bag."""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import RandomForestClassifier

from streammiml.bags.views import Bags
from streammiml.rivals import costs
from streammiml.rivals.pooling import pooled
from streammiml.rivals.rival import DEFAULT_MEMORY, F64, Bools, Rival

KINDS = ("min", "max")


class PooledForest(Rival):
    """A random forest on the minimum and the maximum of each feature over the rows of a bag.

    The forest learns all labels together. Scores are shares of trees minus 0.5, so labels with a
    share above one half are predicted; if all training bags have a label, at least one is.

    Parameters
    ----------
    trees
        Number of trees.
    max_features
        Features that a split chooses from: ``sqrt``, or a share of all.
    min_samples_leaf
        Least number of training bags in a leaf.
    memory
        Upper limit for the memory that ``fit`` takes beside the bags.
    threads
        Threads that grow trees; results do not depend on them.
    seed
        Seed of the forest.
    """

    whole_settings = ("trees", "min_samples_leaf")

    def __init__(
        self,
        *,
        trees: int = 500,
        max_features: str | float = "sqrt",
        min_samples_leaf: int = 1,
        memory: str = DEFAULT_MEMORY,
        threads: int = 1,
        seed: int = 0,
    ) -> None:
        self.trees = trees
        self.max_features = max_features
        self.min_samples_leaf = min_samples_leaf
        self.memory = memory
        self.threads = threads
        self.seed = seed

    def _bytes_needed(self, n_bags: int, n_rows: int, n_features: int, n_labels: int) -> int:
        sizes = (n_bags, n_rows, n_features, n_labels)
        return costs.forest(*sizes, trees=self.trees, leaf=self.min_samples_leaf)

    def _learn(self, store: Bags, truth: Bools) -> None:
        self.cutoff_, self.always_one = 0.5, bool(truth.any(axis=1).all())
        self._forest = RandomForestClassifier(
            self.trees,
            max_features=self.max_features,
            min_samples_leaf=self.min_samples_leaf,
            random_state=self.seed,
            n_jobs=self.threads,
        ).fit(pooled(store, KINDS, self.threads), truth[:, 0] if truth.shape[1] == 1 else truth)

    def _score(self, store: Bags) -> tuple[F64, None]:
        shares = self._forest.predict_proba(pooled(store, KINDS, self.threads))
        classes = self._forest.classes_
        if self._forest.n_outputs_ == 1:
            shares, classes = [shares], [classes]
        # A label that all training bags or none carry has one column only.
        columns = [
            own[:, list(known).index(True)] if True in known else np.zeros(len(own))
            for own, known in zip(shares, classes, strict=True)
        ]
        return np.column_stack(columns), None
