"""A probe of a machine's arithmetic: a fixed training whose bits are compared between machines.

Kernels fuse multiplications and additions where the processor can, so another kind of processor may
give other bits. Workers of one run must give the same, or a turn that runs again on another worker
would change the result.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from streammiml._base.hashing import mixed
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.kernel.average import STRIDE, make_averages
from streammiml.kernel.lift import Lift
from streammiml.kernel.score import Weights
from streammiml.kernel.step import Settings
from streammiml.kernel.sweep import Learner, make_tally
from streammiml.kernel.tile import aligned_zeros
from streammiml.learn.kernel_threads import Sweeper

N_STEPS, N_BAGS, N_ROWS, N_FEATURES, N_LABELS, N_SUBCONCEPTS, WIDTH = 256, 64, 4, 24, 12, 3, 16


@lru_cache
def arithmetic(*, sparse: bool) -> str:
    """Checksum of the weights and means after a fixed number of steps on fixed bags."""
    features = _numbers(1, N_BAGS * N_ROWS, N_FEATURES)
    labels = (mixed(np.arange(N_BAGS), 2) % np.uint64(N_LABELS)).astype(np.int32)
    rows: np.ndarray | SparseRows = features
    if sparse:
        offsets = np.arange(0, features.size + 1, N_FEATURES)
        columns = np.tile(np.arange(N_FEATURES, dtype=np.uint32), len(features))
        rows = SparseRows(offsets, columns, features.reshape(-1), N_FEATURES)
    bags = BagBlock(np.arange(0, len(features) + 1, N_ROWS), rows, np.arange(N_BAGS + 1), labels)
    weights = Weights(
        aligned_zeros((N_FEATURES + 1, WIDTH)),
        aligned_zeros((N_LABELS + 1, N_SUBCONCEPTS, WIDTH)),
    )
    for key, table in enumerate(weights, 3):
        table[...] = _numbers(key, *table.shape)
    averages = make_averages(*weights, STRIDE)
    learner = Learner(weights, averages, Settings(7, 0.05, 1e-5, 10.0), _plain_lift())
    with Sweeper(learner, 1) as sweeper:
        sweeper.sweep(bags, np.arange(N_STEPS) % N_BAGS, 0, make_tally())
    digest = hashlib.sha256()
    for array in (*weights, averages.shared, averages.labels):
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]


def _numbers(key: int, *shape: int) -> np.ndarray:
    """Numbers from -1/4 to 1/4 that are the same on every machine."""
    words = mixed(np.arange(int(np.prod(shape))), key) >> np.uint64(44)
    return (words.astype(np.float32) * np.float32(2.0**-21) - np.float32(0.25)).reshape(shape)


def _plain_lift() -> Lift:
    return Lift(
        np.zeros(N_FEATURES, np.float32),
        np.ones(N_FEATURES, np.float32),
        0,
        0,
        np.zeros((N_FEATURES, 0), np.float32),
        np.zeros(0, np.float32),
        0,
    )
