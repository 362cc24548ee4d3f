"""One update of the model from one bag, by the MIMLfast algorithm.

Letters: y is a drawn label of the bag, or the dummy. ȳ is a label that the bag does not have and
that scores above y's score minus 1, which violates the margin; ȳ may be the dummy if y is not.
x and x̄ are the rows that give the scores of y and ȳ, w_y and w_ȳ the vectors of their
sub-concepts. W0 is the shared space, γ the step size, and S the weight of a violation.

A visit has three parts. *Project*: compute the bag's rows in the shared space, P = X W0ᵀ.
*Search*: draw candidates and compare them with y until one violates the margin. Draws do not depend
on scores, so candidates are scored a few at a time, in draw order, and the first violation is
taken: the same result as one by one, at the speed of a matrix product. A label that was tried
before in this visit cannot violate the margin and is not scored again. *Update*: change w_y, w_ȳ
and W0, all from the values before the step, W0 in one pass over the features that x or x̄ has.

If a bag is so long that P would take too much memory, all its labels are scored in one pass of
bounded memory, and the table of scores is searched. The scores are the same, so the step is too.
Dense rows without a context are then lifted a panel at a time too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streammiml.kernel import inlined, inner
from streammiml.kernel.average import Averages, catch_up, iterates_before, weight_until
from streammiml.kernel.draws import draw_against, draw_ahead, draw_label, step_key
from streammiml.kernel.lift import Lift, PlainLift, lift_bag
from streammiml.kernel.score import (
    PANEL_ROWS,
    Array,
    LiftedCsr,
    Panel,
    Scores,
    Weights,
    dot_columns,
    make_panel,
    place_dense,
    place_sparse,
    raise_scores,
)
from streammiml.kernel.tile import (
    F32,
    F64,
    I64,
    LANES,
    aligned_zeros,
    padded_width,
    sum_squares,
    update_tile,
)

KEPT_BYTES = 4 << 20
"""If a bag's projection P is larger than this, its table of scores is searched instead."""

DRAWS_AHEAD = 16
"""Candidates drawn at a time; a power of two."""


class Settings(NamedTuple):
    """Settings of a step."""

    seed: int
    step_size: float
    """γ0."""
    decay: float
    """η: γ at step t is γ0 / (1 + η γ0 t)."""
    max_norm: float
    """C, the upper limit for the norms of label vectors and of columns of W0."""
    by_rank: bool = True
    """Whether the weight of a violation grows with the estimated rank of y."""
    bag_weight: float = 1.0
    """Factor of the step on the bag that is visited; 0 changes nothing."""


class Room(NamedTuple):
    """Temporary arrays of a step; each thread has its own."""

    panel: Panel
    """Its columns are the K sub-concepts of y, then the K of each candidate."""
    batch: I64
    """(2, candidates) Label and try of each candidate that is being scored."""
    visited: I64
    """(L + 2,) Number of the visit in which each label was last a candidate; the last entry is the
    number of the current visit."""
    drawn: I64
    """(DRAWS_AHEAD,) Candidates drawn ahead."""
    rank_weights: F64
    """(L + 2,) S by the estimated rank n: 1 + 1/2 + … + 1/n; or 1 for every rank, if violations
    are not weighted by rank."""
    gains: F32
    """(4, max(d', m_pad)) γSx, γSx̄, and w_y, w_ȳ from before the step."""
    squares: F32
    """(4,) Squared norms of up to four columns of W0 after the step."""


class Outcome(NamedTuple):
    """Result of a step."""

    label: int
    """y."""
    against: int
    """ȳ, the label that violates the margin, or -1."""
    tries: int
    """v, the number of tries up to the violation, or of all tries if there is none."""
    distinct: int
    """Number of different labels among the tries."""
    row: int
    """Row x, which gives the score of y."""
    against_row: int
    """Row x̄, which gives the score of ȳ."""
    sub: Any
    against_sub: Any
    weight: float
    """S times the weight of the bag; 0 without a violation."""
    loss: float
    """S times the weight of the bag times the distance from the margin."""
    is_finite: bool
    """False if a score or a weight is no longer a finite number."""


def make_room(weights: Weights, longest_bag: int, *, by_rank: bool = True) -> Room:
    """Room for steps on bags of up to ``longest_bag`` rows; for ``by_rank`` see ``Settings``."""
    n_labels, n_sub, width = weights.labels.shape
    at_once = candidates_at_once(n_sub)
    n_rows = max(PANEL_ROWS, min(longest_bag, most_projected(width)))
    widest = max(weights.shared.shape[0], width)
    ranks = np.arange(1, n_labels + 1)
    rank_weights = np.cumsum(1.0 / ranks) if by_rank else np.ones(n_labels)
    return Room(
        make_panel(width, max(1 + at_once, LANES) * n_sub, n_rows),
        np.zeros((2, at_once), np.int64),
        np.zeros(n_labels + 1, np.int64),
        np.zeros(DRAWS_AHEAD, np.int64),
        np.concatenate([[0.0], rank_weights]),
        aligned_zeros((4, -(-widest // 16) * 16)),
        aligned_zeros(4),
    )


def most_projected(width: int) -> int:
    """Most rows whose projection to a (padded) ``width`` is kept."""
    return max(PANEL_ROWS, KEPT_BYTES // (4 * width))


def candidates_at_once(n_sub: int) -> int:
    """Fewest labels whose sub-concepts fill tiles of four columns, at least two tiles."""
    at_once = 1
    while at_once * n_sub % 4 or at_once * n_sub < 8:
        at_once += 1
    return at_once


@inlined
def step_size_at(settings: Settings, step: int) -> float:
    """γ at ``step``, which counts the steps done before."""
    return settings.step_size / (1.0 + settings.decay * settings.step_size * step)


@inner
def _all_finite(values: F32) -> Any:
    """Check that no element is infinite or NaN, that is, that no exponent is all ones."""
    bits = values.view(np.int32)
    worst = np.int32(0)
    for i in range(bits.shape[0]):
        for j in range(bits.shape[1]):
            worst = max(worst, bits[i, j] & np.int32(0x7FFFFFFF))
    return worst < 0x7F800000


@inner
def _top(best: F32, start: int, stop: int) -> Any:
    """Maximum of columns ``start`` to ``stop``."""
    top = best[start]
    for column in range(start + 1, stop):
        if best[column] > top:
            top = best[column]
    return top


@inner
def _first_place(dots: F32, n_rows: int, start: int, n_sub: int, top: Any) -> Any:
    """First row, and first sub-concept in it, that has the value ``top``."""
    for row in range(n_rows):
        for k in range(n_sub):
            if dots[row, start + k] == top:
                return row, k
    return 0, 0


@inner
def search(key: Any, relevant: Array, projected: F32, labels: F32, room: Room) -> Outcome:
    """Search for a violation in ``projected`` (z ≥ 1, width); ``labels`` (L + 1, K, width)."""
    n_labels, n_sub, width = labels.shape
    vectors = labels.reshape(n_labels * n_sub, width)
    dots, best, chosen = room.panel.dots, room.panel.best, room.panel.chosen
    batch, visited = room.batch, room.visited
    dummy = n_labels - 1
    label = draw_label(key, relevant, dummy)
    n_against = dummy - relevant.shape[0] + (0 if label == dummy else 1)
    if n_against == 0:
        return Outcome(label, -1, 0, 0, 0, 0, 0, 0, 0.0, 0.0, True)
    n_rows = projected.shape[0]
    visited[n_labels] += 1
    visit = visited[n_labels]
    for k in range(n_sub):
        chosen[k] = label * n_sub + k
    # y is scored with the first candidates, which are one fewer to fill the same tiles.
    limit = max(1, batch.shape[1] - 1)
    value, margin = np.float32(0), 0.0
    # numba compiles a function once more for a literal 0, so these begin with a typed zero.
    zero: Any = np.int64(0)
    tried = distinct = first = row = sub = zero
    while tried < n_against:
        count = 0
        while count < limit and tried < n_against:
            tried += 1
            ahead = (tried - 1) & (DRAWS_AHEAD - 1)
            if ahead == 0:
                draw_ahead(key, tried, relevant, n_against, room.drawn)
            other = room.drawn[ahead]
            batch[0, count] = other
            batch[1, count] = tried
            # No branch: the processor could not predict it.
            count += visited[other] != visit
            visited[other] = visit
        if count == 0:
            break
        for i in range(count):
            for k in range(n_sub):
                chosen[(1 + i) * n_sub + k] = batch[0, i] * n_sub + k
        dot_columns(projected, vectors, chosen, first, (1 + count) * n_sub, dots, best)
        if first == 0:
            value = _top(best, first, n_sub)
            # A NaN loses every comparison, so the maximum alone would not show it.
            if not np.isfinite(value) or not _all_finite(projected):
                return Outcome(label, -1, tried, 0, 0, 0, 0, 0, 0.0, 0.0, False)
            margin = np.float64(value) - 1.0
            row, sub = _first_place(dots, n_rows, first, n_sub, value)
            first, limit = n_sub, batch.shape[1]
        for i in range(count):
            start = (1 + i) * n_sub
            score = _top(best, start, start + n_sub)
            distinct += 1
            if score > margin:
                v = batch[1, i]
                weight = room.rank_weights[n_against // v]
                loss = weight * (np.float64(score) - margin)
                place, k = _first_place(dots, n_rows, start, n_sub, score)
                return Outcome(
                    label, batch[0, i], v, distinct, row, place, sub, k, weight, loss,
                    np.isfinite(score),
                )  # fmt: skip
    return Outcome(label, -1, tried, distinct, row, 0, sub, 0, 0.0, 0.0, True)


@inner
def search_table(key: Any, relevant: Array, table: Scores, room: Room) -> Outcome:
    """As ``search``, with the scores of all labels given in ``table`` (1, L + 1)."""
    value, place, sub = table.value[0], table.row[0], table.subconcept[0]
    visited = room.visited
    dummy = value.shape[0] - 1
    label = draw_label(key, relevant, dummy)
    n_against = dummy - relevant.shape[0] + (0 if label == dummy else 1)
    if n_against == 0:
        return Outcome(label, -1, 0, 0, 0, 0, 0, 0, 0.0, 0.0, True)
    margin = np.float64(value[label]) - 1.0
    visited[dummy + 1] += 1
    distinct = 0
    row, k = place[label], np.int64(sub[label])
    finite = np.isfinite(value[label])
    for v in range(1, n_against + 1):
        other = draw_against(key, v, relevant, n_against)
        distinct += visited[other] != visited[dummy + 1]
        visited[other] = visited[dummy + 1]
        if value[other] > margin:
            weight = room.rank_weights[n_against // v]
            loss = weight * (np.float64(value[other]) - margin)
            finite &= np.isfinite(value[other])
            other_k = np.int64(sub[other])
            return Outcome(
                label, other, v, distinct, row, place[other], k, other_k, weight, loss, finite
            )
    return Outcome(label, -1, n_against, distinct, row, 0, k, 0, 0.0, 0.0, finite)


@inner
def shrink(vector: F32, max_norm: float) -> bool:
    """Project ``vector`` (width,) onto the ball of radius ``max_norm``; True if it is finite."""
    squared = sum_squares(vector)
    if squared > max_norm * max_norm:
        factor = np.float32(max_norm / np.sqrt(squared))
        for j in range(vector.shape[0]):
            vector[j] *= factor
    return bool(np.isfinite(squared))


@inner
def update_label(
    weights: Weights, averages: Averages, place: Any, amount: Any, direction: F32, max_norm: float,
    now: int,
) -> bool:  # fmt: skip
    """Add amount · direction (width,) to w[place] and project it; True if it is finite."""
    label, sub = place
    vectors = weights.labels[label]
    if now > 0 and averages.labels_seen[label, sub] < now:
        seen, total = averages.labels_seen[label, sub], weight_until(now)
        catch_up(averages.labels[label], vectors, sub, seen, total)
        averages.labels_seen[label, sub] = now
    for j in range(vectors.shape[1]):
        vectors[sub, j] += amount * direction[j]
    return shrink(vectors[sub], max_norm)


@inner
def update_shared_dense(
    weights: Weights, averages: Averages, x: F32, against_x: F32, amount: Any, room: Room,
    max_norm: float, now: int,
) -> bool:  # fmt: skip
    """Add amount (w_y xᵀ - w_ȳ x̄ᵀ) to W0 in one pass; True if all is finite.

    ``room.gains[2:]`` holds w_y and w_ȳ.
    """
    shared, means, seen = weights.shared, averages.shared, averages.shared_seen
    more, less, plus, minus = room.gains[0], room.gains[1], room.gains[2], room.gains[3]
    squares = room.squares
    n_features = shared.shape[0]
    for j in range(n_features):
        more[j] = amount * x[j]
        less[j] = amount * against_x[j]
    if now > 0:
        total = weight_until(now)
        for j in range(n_features):
            if seen[j] < now and (more[j] != 0 or less[j] != 0):
                catch_up(means, shared, j, seen[j], total)
                seen[j] = now
    # For most features the squared norm in float32 shows that they are within the bound. Near the
    # bound and beyond, ``shrink`` computes it in float64. A feature that neither row has is never
    # shrunk: rounding would shrink it again and again.
    bound = np.float32(max_norm * max_norm * (1.0 - 1e-4))
    finite = True
    whole = n_features & ~3
    for first in range(0, whole, 4):
        update_tile(shared, first, plus, minus, more, less, first, squares, 4)
        for i in range(4):
            j = first + i
            if not squares[i] < bound and (more[j] != 0 or less[j] != 0):
                finite &= shrink(shared[j], max_norm)
    for j in range(whole, n_features):
        update_tile(shared, j, plus, minus, more, less, j, squares, 1)
        if not squares[0] < bound and (more[j] != 0 or less[j] != 0):
            finite &= shrink(shared[j], max_norm)
    return finite


@inner
def update_shared_sparse(
    weights: Weights, averages: Averages, rows: LiftedCsr, pair: Any, amount: Any, room: Room,
    max_norm: float, now: int,
) -> bool:  # fmt: skip
    """As ``update_shared_dense``, on the merged columns of the two sparse rows ``pair``."""
    shared, means, seen = weights.shared, averages.shared, averages.shared_seen
    more, less, plus, minus = room.gains[0], room.gains[1], room.gains[2], room.gains[3]
    columns, values, squares, context = rows.columns, rows.values, room.squares, rows.context
    p, p_end = rows.offsets[pair[0]], rows.offsets[pair[0] + 1]
    q, q_end = rows.offsets[pair[1]], rows.offsets[pair[1] + 1]
    c, c_end = 0, context.size[0] if context.near.shape[0] else 0
    total = weight_until(now)
    bound = np.float32(max_norm * max_norm * (1.0 - 1e-4))
    finite = True
    past = shared.shape[0]
    while c < c_end or p < p_end or q < q_end:
        feature: Any = 0
        if c < c_end:
            # Both rows have the features of the context.
            feature = np.int64(context.columns[c])
            more[0] = less[0] = amount * context.values[c]
            c += 1
        else:
            left = np.int64(columns[p]) if p < p_end else past
            right = np.int64(columns[q]) if q < q_end else past
            feature = min(left, right)
            more[0] = less[0] = np.float32(0)
            if left == feature:
                more[0] = amount * values[p]
                p += 1
            if right == feature:
                less[0] = amount * values[q]
                q += 1
        if now > 0 and seen[feature] < now:
            catch_up(means, shared, feature, seen[feature], total)
            seen[feature] = now
        update_tile(shared, feature, plus, minus, more, less, 0, squares, 1)
        if not squares[0] < bound:
            finite &= shrink(shared[feature], max_norm)
    return finite


@inlined
def _hold(weights: Weights, outcome: Outcome, gains: F32) -> None:
    """Copy w_y and w_ȳ from before the step to ``gains``."""
    for j in range(weights.labels.shape[2]):
        gains[2, j] = weights.labels[outcome.label, outcome.sub, j]
        gains[3, j] = weights.labels[outcome.against, outcome.against_sub, j]


@inlined
def _update_labels(
    weights: Weights, averages: Averages, outcome: Outcome, places: Any, amount: Any, room: Room,
    max_norm: float, now: int,
) -> bool:  # fmt: skip
    """Update w_y and w_ȳ from rows ``places`` of the projection, computed before the step."""
    x, against_x = room.panel.projected[places[0]], room.panel.projected[places[1]]
    place, against = (outcome.label, outcome.sub), (outcome.against, outcome.against_sub)
    finite = update_label(weights, averages, place, amount, x, max_norm, now)
    finite &= update_label(weights, averages, against, -amount, against_x, max_norm, now)
    return finite


@inlined
def _with_finite(o: Outcome, finite: bool) -> Outcome:
    """Copy an outcome; ``is_finite`` becomes False unless ``finite``."""
    return Outcome(
        o.label, o.against, o.tries, o.distinct, o.row, o.against_row, o.sub, o.against_sub,
        o.weight, o.loss, o.is_finite and finite,
    )  # fmt: skip


@inlined
def _with_bag_weight(o: Outcome, bag_weight: float) -> Outcome:
    """Copy an outcome with its weight and loss multiplied by the weight of the bag."""
    return Outcome(
        o.label, o.against, o.tries, o.distinct, o.row, o.against_row, o.sub, o.against_sub,
        o.weight * bag_weight, o.loss * bag_weight, o.is_finite,
    )  # fmt: skip


@inlined
def _with_rows(o: Outcome, row: int, against_row: int) -> Outcome:
    """Copy an outcome with these rows as x and x̄."""
    return Outcome(
        o.label, o.against, o.tries, o.distinct, row, against_row, o.sub, o.against_sub,
        o.weight, o.loss, o.is_finite,
    )  # fmt: skip


@inlined
def apply_dense(
    outcome: Outcome, rows: F32, places: Any, step: int, weights: Weights, averages: Averages,
    settings: Settings, room: Room,
) -> Any:  # fmt: skip
    """Update by a violation; ``places`` are the rows of x and x̄ in ``room.panel.projected``."""
    outcome = _with_bag_weight(outcome, settings.bag_weight)
    if outcome.weight == 0.0 or not outcome.is_finite:
        return outcome
    amount = np.float32(step_size_at(settings, step) * outcome.weight)
    now = iterates_before(averages, step)
    finite = True
    if weights.shared.shape[0]:
        _hold(weights, outcome, room.gains)
        x, against_x = rows[outcome.row], rows[outcome.against_row]
        finite = update_shared_dense(
            weights, averages, x, against_x, amount, room, settings.max_norm, now
        )
    finite &= _update_labels(
        weights, averages, outcome, places, amount, room, settings.max_norm, now
    )
    return _with_finite(outcome, finite)


@inner
def apply_sparse(
    outcome: Outcome, rows: LiftedCsr, places: Any, step: int, weights: Weights,
    averages: Averages, settings: Settings, room: Room,
) -> Any:  # fmt: skip
    """As ``apply_dense``, for sparse rows."""
    outcome = _with_bag_weight(outcome, settings.bag_weight)
    if outcome.weight == 0.0 or not outcome.is_finite:
        return outcome
    amount = np.float32(step_size_at(settings, step) * outcome.weight)
    now = iterates_before(averages, step)
    finite = True
    if weights.shared.shape[0]:
        _hold(weights, outcome, room.gains)
        finite = update_shared_sparse(
            weights, averages, rows, (outcome.row, outcome.against_row), amount, room,
            settings.max_norm, now,
        )  # fmt: skip
    finite &= _update_labels(
        weights, averages, outcome, places, amount, room, settings.max_norm, now
    )
    return _with_finite(outcome, finite)


@inlined
def step_dense(
    rows: F32, relevant: Array, step: int, weights: Weights, averages: Averages,
    settings: Settings, room: Room,
) -> Any:  # fmt: skip
    """Take one step on a bag: lifted ``rows`` (z, d') and ``relevant`` labels, ascending.

    z is at least 1 and at most the number of rows of ``room.panel.projected``; longer bags go to
    ``step_long_dense``.
    """
    projected = room.panel.projected[: rows.shape[0]]
    place_dense(rows, weights.shared, projected)
    key = step_key(settings.seed, step)
    outcome = search(key, relevant, projected, weights.labels, room)
    places = (outcome.row, outcome.against_row)
    return apply_dense(outcome, rows, places, step, weights, averages, settings, room)


@inner
def step_sparse(
    rows: LiftedCsr, n_rows: int, relevant: Array, step: int, weights: Weights,
    averages: Averages, settings: Settings, room: Room,
) -> Any:  # fmt: skip
    """As ``step_dense``, for the ``n_rows`` lifted sparse rows of a bag, columns ascending."""
    projected = room.panel.projected[:n_rows]
    place_sparse(rows, 0, n_rows, weights.shared, projected)
    key = step_key(settings.seed, step)
    outcome = search(key, relevant, projected, weights.labels, room)
    places = (outcome.row, outcome.against_row)
    return apply_sparse(outcome, rows, places, step, weights, averages, settings, room)


@inner
def _raise_table(
    projected: F32, first_row: int, n_rows: int, labels: F32, panel: Panel, table: Scores
) -> None:
    """Raise ``table`` to the scores of a panel of rows, with the same bits as ``search``."""
    n_labels, n_sub, width = labels.shape
    vectors = labels.reshape(n_labels * n_sub, width)
    chosen, offsets = panel.chosen, np.array([0, n_rows])
    at_once = chosen.shape[0] // n_sub // LANES * LANES
    for label in range(0, n_labels, at_once):
        n_here = min(at_once, n_labels - label)
        # A column for each label of sub-concept 0, then of 1, …; padded with the last label.
        stride = padded_width(n_here)
        for k in range(n_sub):
            for i in range(stride):
                chosen[k * stride + i] = (label + min(i, n_here - 1)) * n_sub + k
        dot_columns(projected, vectors, chosen, 0, n_sub * stride, panel.dots, panel.best)
        part = (label, n_here, stride, n_sub)
        raise_scores(first_row, projected.shape[0], offsets, 0, part, panel, table)


@inner
def step_long_dense(
    rows: F32, relevant: Array, step: int, weights: Weights, averages: Averages,
    settings: Settings, room: Room, table: Scores,
) -> Any:  # fmt: skip
    """Take the same step as on a short bag, at any length; overwrites ``table`` (1, L + 1)."""
    for start in range(0, rows.shape[0], PANEL_ROWS):
        stop = min(rows.shape[0], start + PANEL_ROWS)
        projected = room.panel.projected[: stop - start]
        place_dense(rows[start:stop], weights.shared, projected)
        _raise_table(projected, start, rows.shape[0], weights.labels, room.panel, table)
    outcome = search_table(step_key(settings.seed, step), relevant, table, room)
    finite = _all_finite(rows)
    for i, row in enumerate((outcome.row, outcome.against_row)):
        place_dense(rows[row : row + 1], weights.shared, room.panel.projected[i : i + 1])
    outcome = _with_finite(outcome, finite)
    return apply_dense(outcome, rows, (0, 1), step, weights, averages, settings, room)


@inner
def step_in_slices(
    rows: Array, lift: Lift | PlainLift, lifted: F32, relevant: Array, step: int, weights: Weights,
    averages: Averages, settings: Settings, room: Room, table: Scores,
) -> Any:  # fmt: skip
    """As ``step_long_dense``, for ``rows`` (z, d) before a lift that has no context.

    ``lifted`` (≥ PANEL_ROWS, d') is room for the lifted rows of a panel.
    """
    finite = True
    for start in range(0, rows.shape[0], PANEL_ROWS):
        stop = min(rows.shape[0], start + PANEL_ROWS)
        here, projected = lifted[: stop - start], room.panel.projected[: stop - start]
        lift_bag(lift, rows[start:stop], here)
        finite &= _all_finite(here)
        place_dense(here, weights.shared, projected)
        _raise_table(projected, start, rows.shape[0], weights.labels, room.panel, table)
    outcome = search_table(step_key(settings.seed, step), relevant, table, room)
    # The two rows of the update are lifted again.
    for i, row in enumerate((outcome.row, outcome.against_row)):
        lift_bag(lift, rows[row : row + 1], lifted[i : i + 1])
        place_dense(lifted[i : i + 1], weights.shared, room.panel.projected[i : i + 1])
    outcome = _with_finite(outcome, finite)
    done = apply_dense(
        _with_rows(outcome, 0, 1), lifted, (0, 1), step, weights, averages, settings, room
    )
    return _with_rows(done, outcome.row, outcome.against_row)


@inner
def step_long_sparse(
    rows: LiftedCsr, n_rows: int, relevant: Array, step: int, weights: Weights,
    averages: Averages, settings: Settings, room: Room, table: Scores,
) -> Any:  # fmt: skip
    """Take the same step as on a short bag, at any length; overwrites ``table`` (1, L + 1)."""
    for start in range(0, n_rows, PANEL_ROWS):
        stop = min(n_rows, start + PANEL_ROWS)
        projected = room.panel.projected[: stop - start]
        place_sparse(rows, start, stop, weights.shared, projected)
        _raise_table(projected, start, n_rows, weights.labels, room.panel, table)
    outcome = search_table(step_key(settings.seed, step), relevant, table, room)
    n_values = rows.offsets[n_rows]
    finite = _all_finite(rows.values[:n_values].reshape(1, n_values))
    for i, row in enumerate((outcome.row, outcome.against_row)):
        place_sparse(rows, row, row + 1, weights.shared, room.panel.projected[i : i + 1])
    outcome = _with_finite(outcome, finite)
    return apply_sparse(outcome, rows, (0, 1), step, weights, averages, settings, room)
