"""crc32c of many pieces of a buffer, at the speed of the crc32c instruction or twice that.

A processor can compute a crc32c in two ways, which run in parallel: by an instruction that takes
eight bytes a cycle, and by carry-less multiplication of wide vectors. The instruction processes
half of a piece, in four chains; the multiplication processes the other half, in four vectors. The
remainders are joined by multiplying them with powers of x modulo the polynomial. On processors
that multiply only 128-bit vectors, the four chains process the whole piece. ``crc.py`` decides when
to use this module.
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

from streammiml._base.compiled import inner, njit

_POLYNOMIAL = 0x82F63B78  # Castagnoli's. In all words here the highest bit is the lowest power.
_FEATURES = binding.get_host_cpu_features()
_CHAINS, _WORDS = 4, 4
_VECTORS = 4 if _FEATURES.get("vpclmulqdq") and _FEATURES.get("avx2") else 0
_CHAIN_BYTES, _VECTOR_BYTES = 8 * _WORDS, 32
_TURN_BYTES = _CHAINS * _CHAIN_BYTES + _VECTORS * _VECTOR_BYTES
_ALL = np.uint64(0xFFFFFFFF)
_NONE, _ONE = np.uint64(0), np.uint64(1)

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_STATES: Any = types.UniTuple(types.uint64, _CHAINS + 2)  # type: ignore[no-untyped-call]
_PAIR, _QUAD = ir.VectorType(_I64, 2), ir.VectorType(_I64, 4)


def first_wrong(buffer: NDArray[np.uint8], sizes: NDArray[Any], crcs: NDArray[Any]) -> int:
    """See ``streammiml._base.crc``; call it only if :func:`is_fast`."""
    return int(_first_wrong(buffer, _as(sizes, np.int64), _as(crcs, np.uint64)))


@njit
def _first_wrong(buffer: Any, sizes: Any, crcs: Any) -> int:
    return first_wrong_at(np.int64(buffer.ctypes.data), sizes, crcs)


def _as(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    return values if values.dtype == dtype else values.astype(dtype)


@cache
def is_fast() -> bool:
    """Whether this processor has the instructions, and numba may compile for it."""
    config: Any = numba.config
    if config.DISABLE_JIT or config.CPU_NAME or config.CPU_FEATURES:
        return False
    if _VECTORS and not config.ENABLE_AVX:
        return False
    return all(_FEATURES.get(name, False) for name in ("pclmul", "sse4.2"))


def _instructions(generate: Any) -> Any:
    """Numba's ``intrinsic``, whose first argument callers never see."""
    return intrinsic(generate)


def _power(n: int) -> int:
    """The n-th power of x modulo the polynomial."""
    power = 0x80000000
    for _ in range(n):
        power = power >> 1 ^ (_POLYNOMIAL if power & 1 else 0)
    return power


def _moves(n_bytes: int) -> list[int]:
    """Factors that multiply the two words of a lane by x^(8 ``n_bytes``).

    A factor x^k multiplies by x^(k + 33): 32 because it is in the low half of its word, and 1
    because the product of two reflected words is shifted by one bit. The first word of a lane is 64
    powers above the second.
    """
    return [_power(8 * n_bytes + 31), _power(8 * n_bytes - 33)]


def _call(builder: Any, name: str, kind: Any, arguments: list[Any]) -> Any:
    module = builder.module
    callee = module.globals.get(name) or ir.Function(
        module, ir.FunctionType(kind, [argument.type for argument in arguments]), name
    )
    return builder.call(callee, arguments)


def _crc(builder: Any, state: Any, word: Any) -> Any:
    return _call(builder, "llvm.x86.sse42.crc32.64.64", _I64, [state, word])


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _moved(builder: Any, lanes: Any, factors: Any) -> Any:
    """Multiply both words of each lane by their factors, and add the two products."""
    name = "llvm.x86.pclmulqdq" + (".256" if lanes.type == _QUAD else "")
    low, high = (
        _call(builder, name, lanes.type, [lanes, factors, _I8(words)]) for words in (0x00, 0x11)
    )
    return builder.xor(low, high)


def _chains(builder: Any, states: list[Any], start: Any, length: Any, turn: Any) -> list[Any]:
    """Let each chain take its words of one turn; chain c begins ``length`` bytes after c − 1."""
    states = list(states)
    at = builder.add(start, builder.mul(turn, _I64(_CHAIN_BYTES)))
    for word in range(_WORDS):
        for chain in range(_CHAINS):
            offset = builder.add(builder.mul(length, _I64(chain)), _I64(8 * word))
            loaded = _load(builder, builder.add(at, offset), _I64)
            states[chain] = _crc(builder, states[chain], loaded)
    return states


def _joined(builder: Any, vectors: list[Any]) -> list[Any]:
    """Join all lanes of all vectors into one lane; return its two words, 0 without vectors."""
    if not vectors:
        return [_I64(0), _I64(0)]
    factors = ir.Constant(_PAIR, _moves(16))
    joined = None
    for vector in vectors:
        for words in ([0, 1], [2, 3]):
            mask = ir.Constant(ir.VectorType(_I32, 2), words)
            lane = builder.shuffle_vector(vector, ir.Constant(_QUAD, ir.Undefined), mask)
            joined = lane if joined is None else builder.xor(_moved(builder, joined, factors), lane)
    return [builder.extract_element(joined, _I32(i)) for i in range(2)]


@_instructions
def _sweep(_: Any, address: Any, n_turns: Any, state: Any) -> Any:
    """Return the final states of all chains, and the two words that the vectors are joined into.

    Each chain covers ``n_turns`` × ``_CHAIN_BYTES`` bytes; the first chain begins with ``state``,
    the others with 0. Vectors cover the bytes behind the last chain.
    """
    signature = _STATES(address, n_turns, state)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, turns, first = arguments
        length = builder.mul(turns, _I64(_CHAIN_BYTES))
        behind = builder.add(start, builder.mul(length, _I64(_CHAINS)))
        stride = _VECTORS * _VECTOR_BYTES
        factors = ir.Constant(_QUAD, _moves(stride) * 2) if _VECTORS else None

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
        phis = [builder.phi(value.type) for value in carried]
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, before)
        last = builder.sub(turns, _I64(1))
        builder.cbranch(builder.icmp_signed("<", turn, last), body, done)
        builder.position_at_end(body)
        next_turn = builder.add(turn, _I64(1))
        vectors = [
            builder.xor(_moved(builder, phis[_CHAINS + i], factors), loaded(next_turn, i))
            for i in range(_VECTORS)
        ]
        states = _chains(builder, phis[:_CHAINS], start, length, turn)
        turn.add_incoming(next_turn, builder.block)
        for phi, value in zip(phis, states + vectors, strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(done)
        states = _chains(builder, phis[:_CHAINS], start, length, turn)
        return context.make_tuple(
            builder, signature.return_type, states + _joined(builder, phis[_CHAINS:])
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
        crc = _call(builder, "llvm.x86.sse42.crc32.32.8", _I32, [state, arguments[1]])
        return builder.zext(crc, _I64)

    return types.uint64(types.uint64, types.uint8), generate


@_instructions
def _product(_: Any, a: Any, b: Any) -> Any:
    """The low word of a product without carries."""

    def generate(__: Any, builder: Any, ___: Any, arguments: Any) -> Any:
        zeros = ir.Constant(_PAIR, [0, 0])
        pairs = [builder.insert_element(zeros, argument, _I32(0)) for argument in arguments]
        product = _call(builder, "llvm.x86.pclmulqdq", _PAIR, [*pairs, _I8(0)])
        return builder.extract_element(product, _I32(0))

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
    """Return x^n modulo the polynomial, n ≥ 0, in about log n multiplications.

    The square of x^e, reduced by the crc instruction, is x^(2e + 33); shifted by one bit before, it
    is x^(2e + 32). So the first loop goes from n to a small exponent, and records in ``odd``, below
    a leading 1, which of the two formulas each halving inverts; the last loop applies them.
    """
    odd = _ONE
    while n > 191:
        odd = (odd << _ONE) | np.uint64(n & 1)
        n = (n >> 1) - 16
    power = np.uint64(0x80000000) >> np.uint64(n & 31)
    for _ in range(4 * (n >> 5)):
        power = _crc_byte(power, np.uint8(0))
    while odd > _ONE:
        power = _crc_word(_NONE, _product(power, power) << (_ONE - (odd & _ONE)))
        odd >>= _ONE
    return power


@inner
def _shifted(state: np.uint64, power: np.uint64) -> Any:
    """Return the state after n more zero bytes; ``power`` is x^(8 n − 33)."""
    return _crc_word(_NONE, _product(state, power))


@inner
def first_wrong_at(start: Any, sizes: Any, crcs: Any) -> int:
    """As ``first_wrong``, for pieces from the address ``start`` on; int64 sizes, uint64 crcs."""
    turns_before = -1
    by_chain, by_vectors = _NONE, _NONE
    for i in range(sizes.shape[0]):
        turns = sizes[i] // _TURN_BYTES
        state = _ALL
        if turns:
            if turns != turns_before:
                by_chain = _power_of_x(8 * turns * _CHAIN_BYTES - 33)
                if _VECTORS:
                    by_vectors = _power_of_x(8 * turns * _VECTORS * _VECTOR_BYTES - 33)
                turns_before = turns
            parts = _sweep(start, turns, state)
            state = parts[0]
            for chain in range(1, _CHAINS):
                state = _shifted(state, by_chain) ^ parts[chain]
            if _VECTORS:
                vectors = _crc_word(_crc_word(_NONE, parts[_CHAINS]), parts[_CHAINS + 1])
                state = _shifted(state, by_vectors) ^ vectors
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
