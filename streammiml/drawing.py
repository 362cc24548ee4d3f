"""Random words, draws and orders as pure functions of their keys, compiled.

Whatever is random and must come out the same after a kill comes from here: no generator has a
state, and what stands at one place needs none of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.jit import inner, njit

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

_GOLDEN, _WORD = 0x9E3779B97F4A7C15, 1 << 64
_LAST = np.uint64(0x632BE59BD9B4E019)
_FIRST_FACTOR, _SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)
_FEISTEL_ROUNDS = 6
_STRETCH = 4096


def mixed(values: NDArray[Any], *keys: int) -> U64:
    """A well-spread 64-bit word for each value under these keys."""
    out = np.asarray(values).astype(np.uint64, order="C")
    with np.errstate(over="ignore"):  # Without a compiler numpy counts, and would complain.
        _mix(out.reshape(-1), _steps(*keys))
    return out


def below(words: U64, limit: int) -> I64:
    """Integers from 0 to ``limit``, all as likely, from 32 bits of each word."""
    return ((words >> np.uint64(32)) * np.uint64(limit) >> np.uint64(32)).astype(np.int64)


def permuted(places: NDArray[Any], n: int, *keys: int) -> I64:
    """What stands at these places of a random order of 0 to ``n``; needs no memory of the order.

    A Feistel network on the next even number of bits; what falls outside goes through it again.
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    rounds = np.array([_steps(number, *keys) for number in range(_FEISTEL_ROUNDS)])
    out = np.asarray(places).astype(np.uint64)
    with np.errstate(over="ignore"):
        if not _permute(out, np.uint64(n), np.uint64(half), rounds):
            raise IndexError(f"an order of {n} has no such place")
    return out.view(np.int64)


def shuffled(n: int, *keys: int) -> Iterator[int]:
    """All numbers below ``n`` in the order of :func:`permuted`, some thousand at a time."""
    for start in range(0, n, _STRETCH):
        yield from permuted(np.arange(start, min(start + _STRETCH, n)), n, *keys).tolist()


def _steps(*keys: int) -> U64:
    """What is added before each round of mixing."""
    return np.array([key * _GOLDEN % _WORD for key in keys], np.uint64)


@inner
def _finalised(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> _30)) * _FIRST_FACTOR
    x = (x ^ (x >> _27)) * _SECOND_FACTOR
    return x ^ (x >> _31)


@inner
def _word(value: np.uint64, steps: U64) -> np.uint64:
    for i in range(len(steps)):
        value = _finalised(value + steps[i])
    return _finalised(value + _LAST)


@njit
def _mix(values: U64, steps: U64) -> None:
    for i in range(len(values)):
        values[i] = _word(values[i], steps)


@njit
def _permute(places: U64, n: np.uint64, half: np.uint64, rounds: U64) -> bool:
    # From a place outside, the way might never lead inside.
    for i in range(len(places)):
        if places[i] >= n:
            return False
    mask = (np.uint64(1) << half) - np.uint64(1)
    for i in range(len(places)):
        at = places[i]
        while True:
            left, right = at >> half, at & mask
            for number in range(len(rounds)):
                left, right = right, left ^ (_word(right, rounds[number]) & mask)
            at = (left << half) | right
            if at < n:
                break
        places[i] = at
    return True
