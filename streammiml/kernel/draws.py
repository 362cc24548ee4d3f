"""Random numbers as a function of (seed, step, draw): no state is kept or shared.

A step's key mixes seed and step; its draws are the SplitMix64 stream that starts at the key. Any
draw can be computed alone, in any order and by any thread. So candidates can be drawn ahead of
need, and a run can continue from its step number. A bounded draw is the high half of a 64 × 64 bit
product; its distribution differs from uniform by less than bound / 2⁶⁴.

Draw 0 of a step chooses y, a label of the bag or the dummy; draw i chooses ȳ of try i, a candidate
that is compared with y.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streammiml._base.hashing import GOLDEN, modular, splitmix
from streammiml.kernel import inner

_STEP = np.uint64(0xD1342543DE82EF95)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@modular
@inner
def step_key(seed: int, step: int) -> Any:
    """Start of a step's stream; ``seed`` and ``step`` are taken modulo 2⁶⁴."""
    return splitmix(splitmix(np.uint64(seed) + GOLDEN) + np.uint64(step) * _STEP)


@modular
@inner
def below(key: Any, draw: int, bound: int) -> Any:
    """Draw number ``draw`` of the stream, as an integer in [0, bound), 1 ≤ bound < 2³²."""
    word = splitmix(key + (np.uint64(draw) + np.uint64(1)) * GOLDEN)
    size = np.uint64(bound)
    high = (word >> _32) * size + (((word & _LOW) * size) >> _32)
    return np.int64(high >> _32)


@inner
def draw_label(key: Any, relevant: npt.NDArray[np.integer[Any]], dummy: int) -> Any:
    """Draw y, uniformly from ``relevant`` and the dummy, which counts as the last of them."""
    place = below(key, np.int64(0), relevant.shape[0] + 1)
    return dummy if place == relevant.shape[0] else np.int64(relevant[place])


@inner
def draw_against(
    key: Any, attempt: int, relevant: npt.NDArray[np.integer[Any]], n_against: int
) -> Any:
    """Draw ȳ of try ``attempt`` ≥ 1, uniformly from the labels that are not in ``relevant``.

    ``relevant`` is sorted and distinct. ``n_against`` is the number of labels that are not in
    ``relevant``. It may count the dummy, which is the last of these labels.
    """
    label = below(key, attempt, n_against)
    # No branch: the processor could not predict whether a label is skipped.
    for other in relevant:
        label += other <= label
    return label


@inner
def draw_ahead(
    key: Any, first: int, relevant: npt.NDArray[np.integer[Any]], n_against: int, out: Any
) -> None:
    """Write ȳ of tries ``first`` to ``first`` + n to ``out`` (n,), as ``draw_against`` draws them.

    Drawing several at once lets the compiler use vector instructions.
    """
    for i in range(out.shape[0]):
        out[i] = below(key, first + i, n_against)
    for other in relevant:
        for i in range(out.shape[0]):
            out[i] += other <= out[i]
