"""Hashes and random orders as pure functions of their keys, compiled.

Orders of bags, draws and fingerprints come from here. No generator has a state, so any place of an
order can be computed alone, and a killed run resumes with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from streammiml._base.compiled import inner, njit

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ divided by the golden ratio: the step of SplitMix64's stream."""
_WORD = 1 << 64
_LAST = np.uint64(0x632BE59BD9B4E019)
_FIRST_FACTOR, _SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)
_FEISTEL_ROUNDS = 6
_STRETCH = 4096


def modular(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let products wrap without NumPy's warning, which scalars raise when the JIT is off."""
    uncompiled = numba.config.DISABLE_JIT  # type: ignore[attr-defined]
    return np.errstate(over="ignore")(function) if uncompiled else function


def _splitmix(x: Any) -> Any:
    """SplitMix64's finaliser: a bijection of 64 bits; every input bit affects every output bit."""
    x = (x ^ (x >> _30)) * _FIRST_FACTOR
    x = (x ^ (x >> _27)) * _SECOND_FACTOR
    return x ^ (x >> _31)


splitmix = modular(inner(_splitmix))


def splitmix_array(words: U64) -> U64:
    """Apply the finaliser to every word, without compiling."""
    return np.asarray(_splitmix(words))


def mixed(values: NDArray[Any], *keys: int) -> U64:
    """Hash each value together with the keys to 64 bits."""
    out = np.asarray(values).astype(np.uint64, order="C")
    with np.errstate(over="ignore"):  # NumPy would warn of products that wrap when the JIT is off.
        _mix(out.reshape(-1), _steps(*keys))
    return out


def below(words: U64, limit: int) -> I64:
    """Map each word to an integer from 0 to ``limit``, by its upper 32 bits, nearly uniformly."""
    return ((words >> np.uint64(32)) * np.uint64(limit) >> np.uint64(32)).astype(np.int64)


def permuted(places: NDArray[Any], n: int, *keys: int) -> I64:
    """Return the numbers at these places of a random order of 0 to ``n``; the rest is not computed.

    A Feistel network permutes the numbers of an even number of bits, at least ``n`` of them. A
    result that is not below ``n`` goes through the network again.
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    rounds = np.array([_steps(number, *keys) for number in range(_FEISTEL_ROUNDS)])
    out = np.asarray(places).astype(np.uint64)
    with np.errstate(over="ignore"):
        if not _permute(out, np.uint64(n), np.uint64(half), rounds):
            raise IndexError(f"a place is outside of an order of {n} numbers")
    return out.view(np.int64)


def shuffled(n: int, *keys: int) -> Iterator[int]:
    """All numbers below ``n`` in the order of :func:`permuted`, computed in pieces."""
    for start in range(0, n, _STRETCH):
        yield from permuted(np.arange(start, min(start + _STRETCH, n)), n, *keys).tolist()


def _steps(*keys: int) -> U64:
    """Return the number that each key adds in its round of mixing."""
    return np.array([key * int(GOLDEN) % _WORD for key in keys], np.uint64)


@inner
def _word(value: Any, steps: U64) -> Any:
    for i in range(len(steps)):
        value = splitmix(value + steps[i])
    return splitmix(value + _LAST)


@njit
def _mix(values: U64, steps: U64) -> None:
    for i in range(len(values)):
        values[i] = _word(values[i], steps)


@njit
def _permute(places: U64, n: np.uint64, half: np.uint64, rounds: U64) -> bool:
    # From a place outside of the range, the loop below might never end.
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
