"""How many bytes each method holds while it is fitted, so that too much is refused beforehand.

Each function takes the numbers of bags, rows, features and labels of the training bags, and by name
the settings that matter. Bags given as arrays are not counted: the caller holds them already.
"""

from __future__ import annotations

BLOCK_BYTES = 16 << 20
"""Bytes of the rows, as float64, that methods which pass over a store hold at a time."""
COPIES = 6
"""Copies of a block that are held while it is read, scaled and multiplied."""
THREAD_BYTES = 2 * COPIES * BLOCK_BYTES
"""Bytes that each further thread takes: its block, and results that wait for earlier ones."""
KERNEL_CACHE = 200 << 20
"""Bytes in which a kernel support vector machine of scikit-learn keeps columns of the kernel."""
MOST_PROTOTYPES = 1000
"""Default upper limit for the prototypes of KISAR."""
PLAIN_BYTES = 8
"""Bytes of a float64."""


def blocks(n_bags: int, n_rows: int, n_features: int, n_labels: int) -> int:
    """RankLossSIM and DBA: some blocks, a few arrays (labels, features), the labels of all bags."""
    weights = 4 * PLAIN_BYTES * n_labels * (n_features + 1)
    longest_rows = max(1, n_rows // max(n_bags, 1)) * n_features * PLAIN_BYTES
    return COPIES * max(BLOCK_BYTES, longest_rows) + weights + (1 + PLAIN_BYTES) * n_bags * n_labels


def nearest(
    n_bags: int, n_rows: int, n_features: int, n_labels: int, *, n_nearest: int = 20
) -> int:
    """MIMLkNN: the nearest bags of each bag, and counts of labels among them."""
    lists = 4 * 2 * PLAIN_BYTES * n_bags * n_nearest
    counts = 3 * PLAIN_BYTES * n_bags * n_labels
    return blocks(n_bags, n_rows, n_features, n_labels) + lists + counts


def prototypes(
    n_bags: int,
    n_rows: int,
    n_features: int,
    n_labels: int,
    *,
    max_prototypes: int = MOST_PROTOTYPES,
    sampled_rows: int = 100_000,
) -> int:
    """KISAR: similarities to the prototypes, twice, and LIBLINEAR's copy with 16 bytes a value."""
    n_prototypes = min(max(1, n_bags // 2), max_prototypes)
    sample = 3 * PLAIN_BYTES * min(n_rows, sampled_rows) * n_features
    similarities = (2 * PLAIN_BYTES + 16) * n_bags * n_prototypes
    relation = 2 * PLAIN_BYTES * n_labels * n_labels * n_prototypes
    return blocks(n_bags, n_rows, n_features, n_labels) + sample + similarities + relation


def all_pairs(
    n_bags: int, n_rows: int, n_features: int, n_labels: int, *, ratio: float = 0.2
) -> int:
    """MIMLSVM: distances of all pairs of bags, and three copies of those to the medoids."""
    distances = PLAIN_BYTES * n_bags * n_bags
    features = 3 * PLAIN_BYTES * n_bags * max(1, int(ratio * n_bags))
    return blocks(n_bags, n_rows, n_features, n_labels) + distances + features + KERNEL_CACHE


def row_label_pairs(n_bags: int, n_rows: int, n_features: int, n_labels: int) -> int:
    """MIMLBoost: every row with every label, drawn, checked and as scikit-learn copies it."""
    values = n_rows * n_labels * (n_features + 1)
    return 3 * PLAIN_BYTES * values + KERNEL_CACHE + PLAIN_BYTES * n_bags * n_labels


def forest(
    n_bags: int, n_rows: int, n_features: int, n_labels: int, *, trees: int = 500, leaf: int = 1
) -> int:
    """Pooled forest: two values a feature and bag, and two shares a label and node of each tree."""
    nodes = trees * 1.3 * n_bags / leaf * (2 * PLAIN_BYTES * n_labels + 64)
    features = 3 * PLAIN_BYTES * n_bags * 2 * n_features
    return blocks(n_bags, n_rows, n_features, n_labels) + features + int(nodes)


def pooled(n_bags: int, n_rows: int, n_features: int, n_labels: int) -> int:
    """Pooled linear models: three values a feature and bag, scaled and with LIBLINEAR's copy."""
    features = (2 * PLAIN_BYTES + 16) * n_bags * 3 * n_features
    return blocks(n_bags, n_rows, n_features, n_labels) + features
