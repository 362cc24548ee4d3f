"""A start from the bags: the first weights, computed from training bags instead of drawn at random.

At random weights the key row of a bag is any of its rows, so the first steps teach a label little.
Most sub-concepts never win a maximum, and what never wins never learns. A start from the bags gives
every label directions that its bags have in common, in four passes over a sample of the bags:

1. *Shared space*: an orthonormal basis. Its first dimension is the constant feature. The next ones
   span the mean rows of the labels' bags, less the mean of all bags (random mixtures of them, if
   there are more labels than dimensions). The others are what one power iteration on the rows
   finds of their principal directions. Dimensions that the rows do not fill stay random and short.
2. *Means*: each label's mean in this space, as a direction.
3. *Clusters*, unless the start is ``means``: the key rows of each label's bags under that
   direction, in K clusters; each centre, turned towards that direction, is a sub-concept.
4. *Levels*: one factor for all labels; for each label an offset, which puts the middle between bags
   that carry the label and other bags at 0; and for the dummy label the score that as many
   labels exceed as the bags carry.

The factor makes bags that carry a label score 2 R² above others, where R² is the share of the
variance of scores that carrying the label explains. Where labels hardly differ at the beginning,
long vectors commit training to directions that are mostly noise: with differences of 1 everywhere,
Scene (R² = .03) lost .017 of ranking loss, and used 1.7 of 5 sub-concepts.

Measured (``benchmarks/bench_starts.py``; default training, means of four splits, ranking loss in
thousandths / average precision; on a planted corpus, mean steps to ranking loss .005 of three
seeds; digits in two groups of five, ranges over three seeds and both groups):

    ==============================  ============  ============  ============
    set                             random        means         clusters
    ==============================  ============  ============  ============
    Letter Frost                    124 / .719    112 / .734    117 / .735
    MSRC v2                          66 / .791     64 / .798     58 / .804
    Scene                           160 / .797    159 / .800    163 / .794
    Reuters                          14 / .972     14 / .970     13 / .972
    birds (ARFF)                    167 / .641    145 / .666    146 / .661
    planted, steps                  74 000        7300          1000
    digits, sub-concepts used of 5  1             –             4 to 5
    digits, adjusted Rand index     .00 to .01    –             .44 to .54
    ==============================  ============  ============  ============

On Scene, clusters beat random weights on three of the four splits and lose on the fourth. The
constants below were chosen on these sets, not on each with the others left out.

A second choice of key rows, by the clusters of the first, was tried and left out: it helped MSRC v2
and bird song, and hurt Letter Frost and digits.

A bag that is much longer than all others would take much memory and decide the start alone: plans
that count memory by size (``blocks/budget.py``) leave out bags of ``SAMPLE_BYTES`` or more.

The result is a function of store, settings and seed: sums are float64, in the order of the bags,
without BLAS, whose last bits depend on its threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml._base.hashing import mixed, shuffled
from streammiml.bags.block import BagBlock
from streammiml.bags.views import Bags
from streammiml.blocks.budget import largest_block
from streammiml.config import LiftSpec, TrainConfig, format_size
from streammiml.errors import StreammimlError
from streammiml.kernel.lift import Lift, lift_width
from streammiml.kernel.score import Weights, score_block
from streammiml.kernel.start import add_products, best_rows, orthonormalise, place_bags
from streammiml.kernel.tile import padded
from streammiml.learn.checkpoint import TrainState, aligned, new_state, state_of
from streammiml.learn.holdout import Holdout
from streammiml.learn.run_plan import RunPlan, lifted_room
from streammiml.learn.stretches import STRETCH_BYTES, read_stretches
from streammiml.learn.validation import largest_lifted
from streammiml.scorer import kernel_block

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

SAMPLE_BYTES = 64 << 20
"""Upper limit for the sampled bags, counted as float32; a pass reads them again. If the plan counts
memory by size, bags of this many bytes or more take no part."""
SLICE_BYTES = 4 << 20
"""Approximate limit for the projected rows of bags that are added at a time."""
KEY_ROWS, KEY_ROW_BYTES = 256, 16 << 20
"""Upper limits for the key rows of a label that are clustered, and for those of all labels."""
LEVEL_BAGS, LEVEL_SCORES = 2000, 1 << 20
"""Upper limits for the bags whose scores give the levels, and for their scores."""
GAIN = 2.0
"""Difference of scores that the factor aims at, if carrying a label explained all variance."""
NOISE = 0.1
"""Norm of the random part of a label vector, as a share of the rest."""
FILL = 0.3
"""Size of weights in dimensions that the rows do not fill, as a share of a random start's."""
RUNS, ITERATIONS = 3, 20
"""Runs of k-means, of which the best is taken, and iterations of each."""
_KEY = 0xBA65


class Levels(NamedTuple):
    """Factor and offsets of a start; see the top of the module."""

    factor: float
    offsets: F64
    """(L,) Offset of each label, before the factor."""
    dummy: float
    """Score of the dummy label, after the factor."""


@dataclass(frozen=True, slots=True)
class SampledBags:
    """The training bags of a start: all of them, or a seeded sample of stretches."""

    store: Bags
    holdout: Holdout
    lift: Lift
    seed: int
    width: int
    """Dimensions to which rows are projected."""
    deadline: float
    below: int | None = None
    """Bags whose rows have this many bytes or more are left out; None if all bags are taken."""

    def __iter__(self) -> Iterator[tuple[BagBlock, Any]]:
        """Yield bags in the order of the store, also as a block for kernels, some at a time."""
        n_bags = stretch_bags(self.store)
        n_stretches = -(-self.store.n_bags // n_bags)
        n_sampled = max(1, int(SAMPLE_BYTES / (_bag_bytes(self.store) * n_bags)))
        numbers: Iterable[int] = range(n_stretches)
        if n_stretches > n_sampled:
            order = shuffled(n_stretches, self.seed, _KEY)
            numbers = sorted(next(order) for _ in range(n_sampled))
        most_rows = SLICE_BYTES // (12 * self.width)
        blocks = read_stretches(
            self.store, self.holdout, numbers, n_bags, self.deadline, self.below
        )
        with closing(blocks):
            for block in blocks:
                start = 0
                while start < len(block):
                    last_row = block.bag_offsets[start] + most_rows
                    stop = int(np.searchsorted(block.bag_offsets, last_row, "right")) - 1
                    # Sums over labels hold as many vectors as bags have labels.
                    last_label = block.label_offsets[start] + most_rows
                    stop = min(
                        stop, int(np.searchsorted(block.label_offsets, last_label, "right")) - 1
                    )
                    stop = max(start + 1, stop)
                    bags = block.slice(start, stop)
                    yield bags, kernel_block(bags)
                    start = stop


def stretch_bags(store: Bags) -> int:
    """Number of bags that a start reads at a time; a function of the content of the store."""
    return max(1, int(STRETCH_BYTES / _bag_bytes(store)))


def _bag_bytes(store: Bags) -> float:
    """Mean bytes of a bag's values as float32."""
    n_values = store.n_values if store.sparse else store.n_rows * store.n_features
    return 4 * max(1, n_values) / store.n_bags


def start_width(config: TrainConfig, n_lifted: int) -> int:
    """Dimensions of the space in which a start is computed."""
    return config.shared_dim if config.shared_space else max(2, min(config.shared_dim, n_lifted))


def longest_sampled(plan: RunPlan) -> int | None:
    """Bytes of rows from which on bags are left out of a start; None if all bags are taken."""
    return SAMPLE_BYTES if plan.budget.by_size else None


def start_bytes(
    config: TrainConfig, store: Bags, n_lifted: int, lifted_bag: int, below: int | None = None
) -> int:
    """Upper estimate of what a start holds; ``lifted_bag`` are the bytes of the largest bag.

    Bags of ``below`` bytes or more are left out.
    """
    if below is not None:
        lifted_bag = lifted_room(config, n_lifted, largest_lifted(store, n_lifted, below))
    width = start_width(config, n_lifted)
    vectors = (store.n_labels + 1) * config.subconcepts
    n_bytes = n_lifted * width * 24 + vectors * width * 40
    if not config.shared_space:
        n_bytes += vectors * n_lifted * 12
    n_bytes += store.n_labels * width * (4 * _key_rows_of_label(config, store, width) + 48)
    n_bytes += 24 * min(LEVEL_SCORES, LEVEL_BAGS * store.n_labels)
    largest_bag_rows = (
        lifted_bag // (4 * max(1, n_lifted)) if not store.sparse else lifted_bag // 16
    )
    n_bytes += 2 * SLICE_BYTES + lifted_bag + 24 * width * largest_bag_rows
    return n_bytes + 4 * largest_block(store, stretch_bags(store), below)


def resolved_init(config: TrainConfig, store: Bags, plan: RunPlan) -> str:
    """Resolve the option ``init``: ``auto`` takes clusters, unless they do not fit into memory."""
    if config.init == "random":
        return config.init
    if config.shared_space and config.shared_dim == 1:
        if config.init == "auto":
            return "random"
        raise StreammimlError(
            f"--init {config.init} needs a dimension for the constant feature and one for the rest;"
            " give --shared-dim 2 or more, or --init random"
        )
    budget, n_lifted = plan.budget, LiftSpec.parse(config.lift).width(store.n_features)
    lifted_bag, below = budget.held["lifted bag"], longest_sampled(plan)
    n_bytes = start_bytes(config, store, n_lifted, lifted_bag, below)
    n_bytes += budget.held["store"] + budget.held["lift"]
    if n_bytes <= budget.allowed:
        return "clusters" if config.init == "auto" else config.init
    if config.init == "auto":
        return "random"
    raise StreammimlError(
        f"--init {config.init} would hold {format_size(n_bytes)}, more than --memory "
        f"{config.memory}; --init random needs less, or --memory {-(-n_bytes >> 20) + 1}MiB "
        "would do"
    )


def state_from_bags(store: Bags, config: TrainConfig, plan: RunPlan, lift: Lift) -> TrainState:
    """Begin with weights from the training bags, as ``config.init`` says."""
    width = start_width(config, lift_width(lift))
    deadline = plan.budget.read.deadline
    bags = SampledBags(
        store, plan.visits.holdout, lift, config.seed, width, deadline, longest_sampled(plan)
    )
    rng = np.random.default_rng([config.seed, _KEY])
    counts, n_bags = _label_counts(bags)
    if not n_bags:
        # A sample of few huge bags may consist of held-out bags.
        return new_state(config, lift, store.n_labels)
    basis, is_filled = _basis(bags, counts, n_bags, rng)
    directions = _directions(bags, basis, is_filled, counts, n_bags)
    n_sub = config.subconcepts
    vectors = np.repeat(directions[:, None, :], n_sub, axis=1)
    if config.init == "clusters" and n_sub > 1:
        n_kept = _key_rows_of_label(config, store, width)
        key_rows, centre = _key_rows(bags, basis, directions, n_kept)
        for label, sampled in enumerate(key_rows):
            if len(sampled) >= 2 * n_sub:
                rows: F64 = (sampled - centre) * is_filled
                rows[:, 0] = 0.0
                label_rng = np.random.default_rng([config.seed, _KEY, label])
                centres = cluster_centres(rows, n_sub, label_rng)
                vectors[label] = _unit(_towards(directions[label], centres, rows.mean(axis=0)))
    noise = rng.standard_normal((store.n_labels + 1, n_sub, width)) * (NOISE * width**-0.5)
    vectors += noise[:-1]
    vectors[:, :, 0] = 0.0
    levels = _levels(bags, basis, vectors, config.max_norm)
    labels = np.concatenate([vectors * levels.factor, noise[-1:]])
    labels[:-1, :, 0] = levels.factor * levels.offsets[:, None]
    labels[-1, :, 0] = levels.dummy
    if config.shared_space:
        return state_of(basis[:, :width], labels.astype(np.float32), config, lift)
    nothing = np.zeros((0, len(basis)), np.float32)
    return state_of(nothing, _in_feature_space(labels, basis[:, :width]), config, lift)


def _label_counts(bags: SampledBags) -> tuple[I64, int]:
    """Count the bags of each label (L,), and all bags."""
    counts, n_bags = np.zeros(bags.store.n_labels, np.int64), 0
    for block, _ in bags:
        counts += np.bincount(block.label_indices, minlength=len(counts))
        n_bags += len(block)
    return counts, n_bags


def _shares(counts: I64) -> F64:
    """Trust in the mean of each label (L,): n / (n + 1) of n bags."""
    return counts / (counts + 1.0)


def _bag_of_entry(block: BagBlock) -> I64:
    """Bag of each entry of ``label_indices``."""
    return np.repeat(np.arange(len(block)), np.diff(block.label_offsets))


def _basis(
    bags: SampledBags, counts: I64, n_bags: int, rng: np.random.Generator
) -> tuple[F32, NDArray[np.bool_]]:
    """Shared space (d', padded width), and which of its dimensions the rows fill (width,)."""
    width, n_lifted, n_labels = bags.width, lift_width(bags.lift), len(counts)
    n_mixtures = min(n_labels, width - 1)
    mixing = np.eye(n_labels)
    if n_mixtures < n_labels:
        mixing = rng.standard_normal((n_labels, n_mixtures))
    shares = _shares(counts)
    of_label = mixing * (shares / np.maximum(counts, 1))[:, None]
    of_all = (mixing * shares[:, None]).sum(axis=0) / n_bags
    first_random = 1 + n_mixtures
    n_random = width - first_random
    random = rng.standard_normal((n_lifted, max(1, n_random)), np.float32)
    random_axes = aligned(padded(random * np.float32(n_lifted**-0.5)))
    sums = np.zeros((n_lifted, width))
    for block, kernel_bags in bags:
        sizes = np.diff(block.bag_offsets)
        of_bag = np.tile(-of_all, (len(block), 1))
        np.add.at(of_bag, _bag_of_entry(block), of_label[block.label_indices])
        factors = np.zeros((block.n_rows, width))
        factors[:, 1:first_random] = np.repeat(of_bag / sizes[:, None], sizes, axis=0)
        if n_random:
            placed = place_bags(kernel_bags, bags.lift, random_axes)[:, :n_random]
            factors[:, first_random:] = placed / np.repeat(sizes, sizes)[:, None]
        add_products(kernel_bags, bags.lift, factors, random_axes, sums)
    sums[:, 0] = 0.0
    sums[-1, 0] = 1.0
    is_filled = orthonormalise(sums)
    n_empty = int((~is_filled).sum())
    sums[:, ~is_filled] = rng.standard_normal((n_lifted, n_empty)) * (FILL * n_lifted**-0.5)
    return aligned(padded(sums.astype(np.float32))), is_filled


def _directions(
    bags: SampledBags, basis: F32, is_filled: NDArray[np.bool_], counts: I64, n_bags: int
) -> F64:
    """Mean of each label's bags, less that of all bags, as vectors of norm 1 (L, width).

    Labels without bags have zeros.
    """
    sums, total = np.zeros((len(counts), bags.width)), np.zeros(bags.width)
    for block, kernel_bags in bags:
        placed = place_bags(kernel_bags, bags.lift, basis)[:, : bags.width].astype(np.float64)
        means = np.add.reduceat(placed, block.bag_offsets[:-1], axis=0)
        means /= np.diff(block.bag_offsets)[:, None]
        np.add.at(sums, block.label_indices, means[_bag_of_entry(block)])
        total += means.sum(axis=0)
    differences = sums / np.maximum(counts, 1)[:, None] - total / n_bags
    differences *= _shares(counts)[:, None] * is_filled
    differences[:, 0] = 0.0
    return _unit(differences)


def _unit(vectors: F64) -> F64:
    """Divide vectors by their norms; zeros stay zeros."""
    norms = np.sqrt((vectors**2).sum(axis=-1, keepdims=True))
    out: F64 = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return out


def _key_rows_of_label(config: TrainConfig, store: Bags, width: int) -> int:
    """Most key rows that are kept of each label; at least two for each sub-concept."""
    fitting = KEY_ROW_BYTES // (4 * width * store.n_labels)
    return max(2 * config.subconcepts, min(KEY_ROWS, fitting))


def _key_rows(bags: SampledBags, basis: F32, directions: F64, n_kept: int) -> tuple[list[F32], F64]:
    """Sample key rows of each label under ``directions`` (L, width); also return the mean row.

    The rows with the lowest keyed hashes of (bag, label) pairs are kept.
    """
    width = bags.width
    rows = [np.zeros((0, width), np.float32) for _ in directions]
    hashes = [np.zeros(0, np.uint64) for _ in directions]
    total, n_rows, n_entries = np.zeros(width), 0, 0
    for block, kernel_bags in bags:
        placed = place_bags(kernel_bags, bags.lift, basis)
        entries, labels = np.arange(len(block.label_indices)), block.label_indices
        places = np.zeros(len(labels), np.int64)
        best_rows(placed, block.bag_offsets, block.label_offsets, labels, directions, places)
        keys = mixed(n_entries + entries, bags.seed, _KEY)
        n_entries += len(labels)
        total += placed[:, :width].sum(axis=0, dtype=np.float64)
        n_rows += len(placed)
        order = np.argsort(labels, kind="stable")
        bounds = np.flatnonzero(np.diff(labels[order])) + 1
        for part in np.split(order, bounds):
            if not len(part):
                continue
            label = int(labels[part[0]])
            all_keys = np.concatenate([hashes[label], keys[part]])
            kept = np.argsort(all_keys, kind="stable")[:n_kept]
            hashes[label] = all_keys[kept]
            rows[label] = np.concatenate([rows[label], placed[places[part], :width]])[kept]
    return rows, total / n_rows


def _towards(direction: F64, centres: F64, mean: F64) -> F64:
    """Turn the ``centres`` of a label's key rows: half of their ``mean`` to its direction.

    The mean of key rows is what the label's rows look like, the direction is what tells them from
    the rows of other labels.
    """
    turned: F64 = centres + (direction * np.sqrt((mean**2).sum()) - mean) / 2
    return turned


def cluster_centres(rows: F64, n_centres: int, rng: np.random.Generator) -> F64:
    """Centres (n_centres, width) of ``rows`` (n ≥ 1, width): the best of some runs of k-means."""
    runs = [_k_means(rows, n_centres, rng) for _ in range(RUNS)]
    return min(runs, key=lambda run: run[0])[1]


def _k_means(rows: F64, n_centres: int, rng: np.random.Generator) -> tuple[float, F64]:
    """Sum of squared distances, and the centres, of a run that k-means++ begins."""
    centres = rows[rng.integers(len(rows))][None]
    while len(centres) < n_centres:
        nearest = _squared_distances(rows, centres).min(axis=1)
        chosen = np.searchsorted(np.cumsum(nearest), rng.random() * nearest.sum(), "right")
        centres = np.concatenate([centres, rows[[min(int(chosen), len(rows) - 1)]]])
    for _ in range(ITERATIONS):
        nearest = _squared_distances(rows, centres).argmin(axis=1)
        for k in range(n_centres):
            if (nearest == k).any():
                centres[k] = rows[nearest == k].mean(axis=0)
    return float(_squared_distances(rows, centres).min(axis=1).sum()), centres


def _squared_distances(rows: F64, centres: F64) -> F64:
    """Squared distance of each row to each centre (n, n_centres)."""
    return np.stack([((rows - centre) ** 2).sum(axis=1) for centre in centres], axis=1)


def _levels(bags: SampledBags, basis: F32, vectors: F64, max_norm: float) -> Levels:
    """Fit factor, offsets and the dummy's score to the scores of some bags."""
    dummy = np.zeros((1, *vectors.shape[1:]))
    labels = aligned(padded(np.concatenate([vectors, dummy]).astype(np.float32)))
    n_labels, n_left = len(vectors), min(LEVEL_BAGS, max(64, LEVEL_SCORES // len(vectors)))
    parts: list[F64] = []
    carried: list[NDArray[np.bool_]] = []
    for block, _ in bags:
        block = block.slice(0, min(n_left, len(block)))
        scores = score_block(kernel_block(block), bags.lift, Weights(basis, labels))
        parts.append(scores.value[:, :n_labels].astype(np.float64))
        carries = np.zeros(parts[-1].shape, bool)
        carries[_bag_of_entry(block), block.label_indices] = True
        carried.append(carries)
        n_left -= len(block)
        if not n_left:
            break
    return fit_levels(np.concatenate(parts), np.concatenate(carried), max_norm)


def fit_levels(scores: F64, carries: NDArray[np.bool_], max_norm: float) -> Levels:
    """Fit levels to ``scores`` (n, L) of bags, and whether each bag carries each label."""
    n_with, n_without = carries.sum(axis=0), (~carries).sum(axis=0)
    mean_with = (scores * carries).sum(axis=0) / np.maximum(n_with, 1)
    mean_without = (scores * ~carries).sum(axis=0) / np.maximum(n_without, 1)
    is_known = (n_with > 0) & (n_without > 0)
    # A label that all bags carry, or none, is placed by the bags that there are.
    mean_with = np.where(n_with > 0, mean_with, mean_without)
    mean_without = np.where(n_without > 0, mean_without, mean_with)
    offsets = -(mean_with + mean_without) / 2
    factor = 1.0
    shifted = scores + offsets
    if is_known.any():
        gap = shifted[carries].mean() - shifted[~carries].mean()
        spread = shifted - np.where(carries, shifted[carries].mean(), shifted[~carries].mean())
        within = (spread**2).mean()
        if gap > 0:
            explained = gap**2 / 4 / (gap**2 / 4 + within)
            factor = min(GAIN * explained / gap, max_norm / 2)
    ordered = np.sort(shifted, axis=None)
    n_above = int(carries.sum())
    if n_above == ordered.size:
        dummy = ordered[0] - 1.0
    else:
        first_above = ordered.size - n_above
        dummy = (ordered[first_above - 1] + ordered[min(first_above, ordered.size - 1)]) / 2
    return Levels(factor, offsets, factor * dummy)


def _in_feature_space(labels: F64, axes: F32) -> F32:
    """Label vectors (L + 1, K, width) as vectors of lifted features: times ``axes`` (d', width)."""
    n_labels, n_sub, width = labels.shape
    out = np.zeros((n_labels, n_sub, len(axes)), np.float32)
    columns = np.ascontiguousarray(axes.T).astype(np.float64)
    for label in range(n_labels):
        for k in range(n_sub):
            total = np.zeros(len(axes))
            for j in range(width):
                total += labels[label, k, j] * columns[j]
            out[label, k] = total
    return out
