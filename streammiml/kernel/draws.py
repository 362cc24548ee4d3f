"""Random numbers as a function of (seed, step, draw): nothing is kept, nothing is shared.

A step's key mixes seed and step; its draws are the SplitMix64 stream that starts at the key. Any
draw can be computed alone, in any order and by any thread, which is what lets candidates be looked
at ahead of need and a run continue from its step number. A bounded draw is the high half of a
64 × 64 bit product: off from uniform by less than bound / 2⁶⁴.

Draw 0 of a step chooses y; draw i chooses the candidate of try i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from streammiml.kernel import inner

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_STEP = np.uint64(0xD1342543DE82EF95)
_LOW = np.uint64(0xFFFFFFFF)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


def _modular(function: Callable[..., Any]) -> Callable[..., Any]:
    """Products here wrap on purpose; NumPy's scalars would warn of it when the JIT is off."""
    uncompiled = numba.config.DISABLE_JIT  # type: ignore[attr-defined]
    return np.errstate(over="ignore")(function) if uncompiled else function


@_modular
@inner
def mixed(x: Any) -> Any:
    """SplitMix64's finaliser: a bijection of 64 bits in which every input bit moves every other."""
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)


@_modular
@inner
def step_key(seed: int, step: int) -> Any:
    """Start of one step's stream; seeds and steps count modulo 2⁶⁴."""
    return mixed(mixed(np.uint64(seed) + _GOLDEN) + np.uint64(step) * _STEP)


@_modular
@inner
def below(key: Any, draw: int, bound: int) -> Any:
    """Draw number ``draw`` of the stream, as an integer in [0, bound), 1 ≤ bound < 2³²."""
    word = mixed(key + (np.uint64(draw) + np.uint64(1)) * _GOLDEN)
    size = np.uint64(bound)
    high = (word >> _32) * size + (((word & _LOW) * size) >> _32)
    return np.int64(high >> _32)


@inner
def draw_label(key: Any, relevant: npt.NDArray[np.integer[Any]], dummy: int) -> Any:
    """y: uniform from ``relevant`` and the dummy, which stands last."""
    place = below(key, np.int64(0), relevant.shape[0] + 1)
    return dummy if place == relevant.shape[0] else np.int64(relevant[place])


@inner
def draw_against(
    key: Any, attempt: int, relevant: npt.NDArray[np.integer[Any]], n_against: int
) -> Any:
    """ȳ of try ``attempt`` ≥ 1: uniform from the labels not in ``relevant`` (sorted, distinct).

    ``n_against`` counts them, with the dummy, which comes last, or without it.
    """
    label = below(key, attempt, n_against)
    # Without a branch: whether a label is passed over is a coin toss to the processor.
    for other in relevant:
        label += other <= label
    return label


@inner
def draw_ahead(
    key: Any, first: int, relevant: npt.NDArray[np.integer[Any]], n_against: int, out: Any
) -> None:
    """``out`` (n,): ȳ of tries ``first`` to ``first`` + n, as ``draw_against`` gives them.

    All at once they fill the vector unit, which one by one they do not.
    """
    for i in range(out.shape[0]):
        out[i] = below(key, first + i, n_against)
    for other in relevant:
        for i in range(out.shape[0]):
            out[i] += other <= out[i]
