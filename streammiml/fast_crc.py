"""crc32c of many pieces of a buffer at once, at close to twice the speed of one instruction.

A processor has two ways to a crc32c: an instruction that takes eight bytes a cycle, and carry-less
multiplication of wide vectors, and they run beside each other. Half of a piece goes through four
chains of the first, half through four vectors of the second, and the remainders are joined by
multiplying them with powers of x modulo the polynomial. ``checksum.py`` says when.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from streammiml.jit import inner, njit

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, lowest power in the highest bit, as everything here.
_CHAINS, _WORDS, _VECTORS = 4, 4, 4
_CHAIN_BYTES, _VECTOR_BYTES = 8 * _WORDS, 32
_TURN_BYTES = _CHAINS * _CHAIN_BYTES + _VECTORS * _VECTOR_BYTES
_ALL = np.uint64(0xFFFFFFFF)
_NONE, _ONE = np.uint64(0), np.uint64(1)

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_STATES: Any = types.UniTuple(types.uint64, _CHAINS + 2)  # type: ignore[no-untyped-call]
_PAIR, _QUAD = ir.VectorType(_I64, 2), ir.VectorType(_I64, 4)


def first_wrong(buffer: NDArray[np.uint8], sizes: NDArray[Any], crcs: NDArray[Any]) -> int:
    """See ``streammiml.checksum``; only where :func:`is_fast`."""
    return int(_first_wrong(buffer, _as(sizes, np.int64), _as(crcs, np.uint64)))


@njit
def _first_wrong(buffer: Any, sizes: Any, crcs: Any) -> int:
    return first_wrong_at(np.int64(buffer.ctypes.data), sizes, crcs)


def _as(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    return values if values.dtype == dtype else values.astype(dtype)


@cache
def is_fast() -> bool:
    """Whether this processor multiplies wide vectors without carry, and we may compile for it."""
    config: Any = numba.config
    if config.DISABLE_JIT or config.CPU_NAME or config.CPU_FEATURES or not config.ENABLE_AVX:
        return False
    features = binding.get_host_cpu_features()
    return all(features.get(name, False) for name in ("vpclmulqdq", "avx2", "sse4.2"))


def _instructions(generate: Any) -> Any:
    """Numba's ``intrinsic``, whose first argument callers never see."""
    return intrinsic(generate)


def _power(n: int) -> int:
    """The n-th power of x modulo the polynomial."""
    found = 0x80000000
    for _ in range(n):
        found = found >> 1 ^ (_POLYNOMIAL if found & 1 else 0)
    return found


def _moves(n_bytes: int) -> list[int]:
    """Factors that move the two words of a lane ``n_bytes`` on.

    A product of two reflected words is one place short, and factors sit in the low half of their
    word, 32 places up: hence 63 − 32 for the first word, which lies 64 places before the second.
    """
    return [_power(8 * n_bytes + 31), _power(8 * n_bytes - 33)]


def _call(builder: Any, name: str, kind: Any, arguments: list[Any]) -> Any:
    module = builder.module
    callee = module.globals.get(name) or ir.Function(
        module, ir.FunctionType(kind, [each.type for each in arguments]), name
    )
    return builder.call(callee, arguments)


def _crc(builder: Any, state: Any, word: Any) -> Any:
    return _call(builder, "llvm.x86.sse42.crc32.64.64", _I64, [state, word])


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _moved(builder: Any, lanes: Any, factors: Any) -> Any:
    """Both words of each lane times their factors, added."""
    name = "llvm.x86.pclmulqdq" + (".256" if lanes.type == _QUAD else "")
    low, high = (
        _call(builder, name, lanes.type, [lanes, factors, _I8(which)]) for which in (0x00, 0x11)
    )
    return builder.xor(low, high)


def _chains(builder: Any, states: list[Any], start: Any, length: Any, turn: Any) -> list[Any]:
    """Each chain takes the words of a turn; chain c begins ``length`` bytes after chain c − 1."""
    states = list(states)
    at = builder.add(start, builder.mul(turn, _I64(_CHAIN_BYTES)))
    for word in range(_WORDS):
        for chain in range(_CHAINS):
            place = builder.add(builder.mul(length, _I64(chain)), _I64(8 * word))
            loaded = _load(builder, builder.add(at, place), _I64)
            states[chain] = _crc(builder, states[chain], loaded)
    return states


def _joined(builder: Any, vectors: list[Any]) -> list[Any]:
    """The two words that all lanes of all vectors come to."""
    factors = ir.Constant(_PAIR, _moves(16))
    joined = None
    for vector in vectors:
        for places in ([0, 1], [2, 3]):
            mask = ir.Constant(ir.VectorType(_I32, 2), places)
            lane = builder.shuffle_vector(vector, ir.Constant(_QUAD, ir.Undefined), mask)
            joined = lane if joined is None else builder.xor(_moved(builder, joined, factors), lane)
    return [builder.extract_element(joined, _I32(i)) for i in range(2)]


@_instructions
def _sweep(_: Any, address: Any, n_turns: Any, state: Any) -> Any:
    """States of the chains, the first of which begins with ``state``, and two words of vectors.

    Chains cover the first bytes, ``n_turns`` × ``_CHAIN_BYTES`` each, vectors those behind them.
    """
    signature = _STATES(address, n_turns, state)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, turns, first = arguments
        length = builder.mul(turns, _I64(_CHAIN_BYTES))
        behind = builder.add(start, builder.mul(length, _I64(_CHAINS)))
        stride = _VECTORS * _VECTOR_BYTES
        factors = ir.Constant(_QUAD, _moves(stride) * 2)

        def loaded(turn: Any, vector: int) -> Any:
            at = builder.add(builder.mul(turn, _I64(stride)), _I64(vector * _VECTOR_BYTES))
            return _load(builder, builder.add(behind, at), _QUAD)

        carried = [first] + [_I64(0)] * (_CHAINS - 1)
        carried += [loaded(_I64(0), vector) for vector in range(_VECTORS)]
        before = builder.block
        head, body, done = (builder.append_basic_block(f"crc.{part}") for part in "hbd")
        builder.branch(head)
        builder.position_at_end(head)
        turn = builder.phi(_I64)
        turn.add_incoming(_I64(0), before)
        kept = [builder.phi(value.type) for value in carried]
        for phi, value in zip(kept, carried, strict=True):
            phi.add_incoming(value, before)
        last = builder.sub(turns, _I64(1))
        builder.cbranch(builder.icmp_signed("<", turn, last), body, done)
        builder.position_at_end(body)
        following = builder.add(turn, _I64(1))
        vectors = [
            builder.xor(_moved(builder, kept[_CHAINS + i], factors), loaded(following, i))
            for i in range(_VECTORS)
        ]
        states = _chains(builder, kept[:_CHAINS], start, length, turn)
        turn.add_incoming(following, builder.block)
        for phi, value in zip(kept, states + vectors, strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(done)
        states = _chains(builder, kept[:_CHAINS], start, length, turn)
        return context.make_tuple(
            builder, signature.return_type, states + _joined(builder, kept[_CHAINS:])
        )

    return signature, generate


@_instructions
def _crc_word(_: Any, state: Any, word: Any) -> Any:
    """The state after eight more bytes."""

    def generate(__: Any, builder: Any, ___: Any, arguments: Any) -> Any:
        return _crc(builder, *arguments)

    return types.uint64(types.uint64, types.uint64), generate


@_instructions
def _crc_byte(_: Any, state: Any, byte: Any) -> Any:
    """The state after one more byte."""

    def generate(__: Any, builder: Any, ___: Any, arguments: Any) -> Any:
        state = builder.trunc(arguments[0], _I32)
        found = _call(builder, "llvm.x86.sse42.crc32.32.8", _I32, [state, arguments[1]])
        return builder.zext(found, _I64)

    return types.uint64(types.uint64, types.uint8), generate


@_instructions
def _product(_: Any, a: Any, b: Any) -> Any:
    """The low word of a product without carries."""

    def generate(__: Any, builder: Any, ___: Any, arguments: Any) -> Any:
        zeros = ir.Constant(_PAIR, [0, 0])
        pairs = [builder.insert_element(zeros, each, _I32(0)) for each in arguments]
        found = _call(builder, "llvm.x86.pclmulqdq", _PAIR, [*pairs, _I8(0)])
        return builder.extract_element(found, _I32(0))

    return types.uint64(types.uint64, types.uint64), generate


@_instructions
def _word_at(_: Any, address: Any) -> Any:
    """Eight bytes from an address on."""

    def generate(__: Any, builder: Any, ___: Any, arguments: Any) -> Any:
        return _load(builder, arguments[0], _I64)

    return types.uint64(types.int64), generate


@_instructions
def _byte_at(_: Any, address: Any) -> Any:
    """The byte at an address."""

    def generate(__: Any, builder: Any, ___: Any, arguments: Any) -> Any:
        return _load(builder, arguments[0], _I8)

    return types.uint8(types.int64), generate


@inner
def _power_of_x(n: int) -> np.uint64:
    """X to the n, n ≥ 0, in about log n multiplications.

    A crc of a word is the word times x^32, and a square is one place short: so of x^e come x^(2e +
    32) and x^(2e + 33). The exponent is halved that way until it is small.
    """
    odd = _ONE
    while n > 191:
        odd = (odd << _ONE) | np.uint64(n & 1)
        n = (n >> 1) - 16
    found = np.uint64(0x80000000) >> np.uint64(n & 31)
    for _ in range(4 * (n >> 5)):
        found = _crc_byte(found, np.uint8(0))
    while odd > _ONE:
        found = _crc_word(_NONE, _product(found, found) << (_ONE - (odd & _ONE)))
        odd >>= _ONE
    return found


@inner
def _shifted(state: np.uint64, power: np.uint64) -> Any:
    """The state after as many zero bytes as x^(8 n − 33) stands for."""
    return _crc_word(_NONE, _product(state, power))


@inner
def first_wrong_at(start: Any, sizes: Any, crcs: Any) -> int:
    """The same of pieces from an address on; ``sizes`` are int64, ``crcs`` uint64."""
    known = -1
    by_chain, by_vectors = _NONE, _NONE
    for i in range(sizes.shape[0]):
        turns = sizes[i] // _TURN_BYTES
        state = _ALL
        if turns:
            if turns != known:
                by_chain = _power_of_x(8 * turns * _CHAIN_BYTES - 33)
                by_vectors = _power_of_x(8 * turns * _VECTORS * _VECTOR_BYTES - 33)
                known = turns
            parts = _sweep(start, turns, state)
            state = parts[0]
            for chain in range(1, _CHAINS):
                state = _shifted(state, by_chain) ^ parts[chain]
            behind = _crc_word(_crc_word(_NONE, parts[_CHAINS]), parts[_CHAINS + 1])
            state = _shifted(state, by_vectors) ^ behind
        at, end = start + turns * _TURN_BYTES, start + sizes[i]
        while at + 8 <= end:
            state = _crc_word(state, _word_at(at))
            at += 8
        while at < end:
            state = _crc_byte(state, _byte_at(at))
            at += 1
        if state ^ _ALL != crcs[i]:
            return i
        start = end
    return -1
