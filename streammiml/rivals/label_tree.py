"""LabelTree: napkinXC's probabilistic label tree on one vector for each bag."""

from __future__ import annotations

import tempfile

import numpy as np
from scipy import sparse

from streammiml.bags.views import Bags
from streammiml.errors import StreammimlError
from streammiml.rivals import costs
from streammiml.rivals.pooling import VectorScale, pooled
from streammiml.rivals.rival import DEFAULT_MEMORY, F64, Bools, Rival

try:
    from napkinxc.models import PLT
except ModuleNotFoundError as error:
    raise StreammimlError(
        f"LabelTree needs napkinXC ({error}): pip install 'streammiml[peers]'"
    ) from None

KINDS = ("mean", "max", "min")


class LabelTree(Rival):
    """A probabilistic label tree on the mean, maximum and minimum of each feature of a bag.

    Made for very many labels. Scores are probabilities minus 0.5, so labels with a probability
    above one half are predicted; if all training bags have a label, at least one is. The model is
    kept in a temporary folder that is removed with the estimator.

    Parameters
    ----------
    scale
        How vectors are scaled: ``standard``, ``unit``, or ``sqrt+unit`` for counts and histograms.
    cost
        Cost of errors on training bags, often called C.
    max_leaves
        Most labels below a node whose children are labels.
    memory
        Upper limit for the memory that ``fit`` takes beside the bags.
    threads
        Threads that train; results do not depend on them.
    seed
        Seed of the tree.
    """

    whole_settings = ("max_leaves",)
    positive_settings = ("cost",)

    def __init__(
        self,
        *,
        scale: str = "standard",
        cost: float = 1.0,
        max_leaves: int = 100,
        memory: str = DEFAULT_MEMORY,
        threads: int = 1,
        seed: int = 0,
    ) -> None:
        self.scale = scale
        self.cost = cost
        self.max_leaves = max_leaves
        self.memory = memory
        self.threads = threads
        self.seed = seed

    def _bytes_needed(self, n_bags: int, n_rows: int, n_features: int, n_labels: int) -> int:
        return costs.pooled(n_bags, n_rows, n_features, n_labels)

    def _learn(self, store: Bags, truth: Bools) -> None:
        self.cutoff_, self.always_one = 0.5, bool(truth.any(axis=1).all())
        vectors = pooled(store, KINDS, self.threads)
        self._scale, self._n_labels = VectorScale(self.scale, vectors), truth.shape[1]
        self._folder = tempfile.TemporaryDirectory()
        self._tree = PLT(
            self._folder.name,
            max_leaves=self.max_leaves,
            liblinear_c=self.cost,
            weights_threshold=0,
            threads=self.threads,
            seed=self.seed,
        )
        labels = [np.flatnonzero(own).tolist() for own in truth]
        self._tree.fit(sparse.csr_matrix(self._scale.apply(vectors)), labels)

    def _score(self, store: Bags) -> tuple[F64, None]:
        vectors = self._scale.apply(pooled(store, KINDS, self.threads))
        predictions = self._tree.predict_proba(sparse.csr_matrix(vectors), top_k=self._n_labels)
        out = np.zeros((store.n_bags, self._n_labels))
        for scores, pairs in zip(out, predictions, strict=True):
            for label, value in pairs:
                scores[label] = value
        return out, None
