"""Counts of scores by label, sorted by score, and the areas under curves that follow from them.

A key is an unsigned integer that orders like the float32 score it stands for. A table of counts is
three arrays: label l has the entries ``offsets[l]`` to ``offsets[l + 1]`` of ``keys``, ascending
and distinct, and ``counts`` says how many bags have a score with that key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streammiml.kernel import exact, njit
from streammiml.kernel.tile import F64, I64

U32 = npt.NDArray[np.uint32]
Table = tuple[I64, U32, I64]

KEY_BITS = 32
"""Bits of a key."""
_SIGN = np.uint32(1 << 31)


@njit
def score_keys(bits: U32, out: U32) -> None:
    """``out`` (L, n): key of each score; ``bits`` (n, L) are those of finite float32 scores.

    The two zeros of floating point have the same key.
    """
    for bag in range(bits.shape[0]):
        for label in range(bits.shape[1]):
            own = bits[bag, label]
            if own & _SIGN and own != _SIGN:
                out[label, bag] = ~own
            else:
                out[label, bag] = own | _SIGN


@njit
def count_keys(keys: U32, starts: I64, stops: I64, offsets: I64, out: U32, counts: I64) -> None:
    """Count equal keys: those of label l are ``keys[starts[l]:stops[l]]``, ascending.

    Overwrites ``offsets`` (L + 1,), and as much of ``out`` and ``counts`` as there are entries.
    """
    n = 0
    offsets[0] = 0
    for label in range(starts.shape[0]):
        first = n
        for place in range(starts[label], stops[label]):
            if n > first and out[n - 1] == keys[place]:
                counts[n - 1] += 1
            else:
                out[n] = keys[place]
                counts[n] = 1
                n += 1
        offsets[label + 1] = n


@njit
def merge_counts(table: Table, more: Table, mask: Any, out: Table) -> None:
    """Add two tables of the same labels, and keep only the bits ``mask`` of each key.

    ``mask`` has ones above zeros, so the order stays. Overwrites as much of ``out`` as there are
    entries.
    """
    offsets, keys, counts = table
    more_offsets, more_keys, more_counts = more
    out_offsets, out_keys, out_counts = out
    n = 0
    out_offsets[0] = 0
    for label in range(offsets.shape[0] - 1):
        first = n
        i, i_end = offsets[label], offsets[label + 1]
        j, j_end = more_offsets[label], more_offsets[label + 1]
        while i < i_end or j < j_end:
            if j == j_end or (i < i_end and keys[i] <= more_keys[j]):
                key, count = keys[i] & mask, counts[i]
                i += 1
            else:
                key, count = more_keys[j] & mask, more_counts[j]
                j += 1
            if n > first and out_keys[n - 1] == key:
                out_counts[n - 1] += count
            else:
                out_keys[n] = key
                out_counts[n] = count
                n += 1
        out_offsets[label + 1] = n


@njit
def add_sizes(offsets: I64, keys: U32, sizes: I64) -> None:
    """Add to ``sizes[b]`` the entries of a table whose keys lack their lowest b bits.

    ``sizes`` (33,) is for 0 to all 32 bits.
    """
    for label in range(offsets.shape[0] - 1):
        start, stop = offsets[label], offsets[label + 1]
        if start < stop:
            for dropped in range(sizes.shape[0]):
                sizes[dropped] += 1
        for place in range(start + 1, stop):
            # Two keys differ until the highest bit in which they differ is dropped.
            difference, dropped = keys[place] ^ keys[place - 1], 0
            while difference:
                sizes[dropped] += 1
                dropped += 1
                difference >>= np.uint32(1)


@exact
def curve_sums(carried: Table, others: Table, totals: I64, out: F64) -> None:
    """Sums over the carried scores of each label, compared with its other scores.

    ``totals`` (L, 2): number of carried scores, and of others. ``out`` (L, 5): other scores below a
    carried one, a tie counted as a half; ties; precision at each carried score, where all equal
    scores count as found; and the lowest and the highest sum of precisions that is possible if
    equal scores are in truth different. Both arrays are overwritten.
    """
    offsets, keys, counts = carried
    other_offsets, other_keys, other_counts = others
    for label in range(offsets.shape[0] - 1):
        n_others = 0
        for place in range(other_offsets[label], other_offsets[label + 1]):
            n_others += other_counts[place]
        below = ties = precision = lowest = highest = 0.0
        hits, wrong = 0, 0
        j, j_first = other_offsets[label + 1] - 1, other_offsets[label]
        for i in range(offsets[label + 1] - 1, offsets[label] - 1, -1):
            key, own, tied = keys[i], counts[i], 0
            while j >= j_first and other_keys[j] > key:
                wrong += other_counts[j]
                j -= 1
            if j >= j_first and other_keys[j] == key:
                tied = other_counts[j]
                j -= 1
            below += own * (n_others - wrong - tied + 0.5 * tied)
            ties += float(own) * tied
            precision += own * ((hits + own) / (hits + own + wrong + tied))
            highest += own * ((hits + own) / (hits + own + wrong))
            for found in range(hits + 1, hits + own + 1):
                lowest += found / (found + wrong + tied)
            hits += own
            wrong += tied
        totals[label, 0] = hits
        totals[label, 1] = n_others
        out[label, 0] = below
        out[label, 1] = ties
        out[label, 2] = precision
        out[label, 3] = lowest
        out[label, 4] = highest
