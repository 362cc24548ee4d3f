"""Checks of declared sizes before anything is allocated: are they possible, do they fit.

A small file can declare a huge size: of a compressed member, a shape, a chunk, a feature number.
Readers call these checks before they allocate, so that a hostile file is refused with one line.
"""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from streammiml.bags.block import SparseRows
from streammiml.config import format_size
from streammiml_tools.readers.base import Limits, SourceError

RATIOS = {"stored": 1, "deflate": 1032, "lzma": 8192, "bzip2": 1_500_000}
"""Upper limit of decompressed bytes for one compressed byte. Deflate codes 258 bytes in two bits;
LZMA codes 273 bytes in about a third of a bit; bzip2 codes a block of 46 MB in some 32 bytes."""
BLOCK_COPIES = 3
"""Upper limit of the copies of bags in memory while they become a part of a store."""
ID_BYTES = 100
"""Approximate memory for a short text in a set or dictionary, without its characters."""
SMALLEST = 1 << 10
"""Declared sizes up to this size are not checked by ratio: they are mostly headers and padding."""


def check_ratio(where: str, declared: int, stored: int, method: str) -> None:
    """Refuse a declared size that the compression method cannot reach from the stored bytes."""
    max_ratio = RATIOS.get(method)
    if max_ratio is not None and declared > max(SMALLEST, max_ratio * stored):
        raise SourceError(
            f"{where} declares {declared:,} bytes in {stored:,} stored bytes, more than "
            f"{method} can hold; it is damaged or a bomb, fetch it again"
        )


def check_fits(
    where: str,
    need: int,
    limits: Limits,
    *,
    declared: int | None = None,
    stored: int | None = None,
    instead: str = "",
) -> None:
    """Refuse a source that needs more memory than one process may hold.

    ``need`` counts every copy that reading makes. The message also names, if given, the size that
    the file ``declared``, the ``stored`` (compressed) bytes, and ``instead``, a remedy other than
    more memory.
    """
    if need <= limits.share:
        return
    size = "" if declared is None else f" declares {format_size(declared)}"
    if stored is not None:
        size += f" in {stored:,} compressed bytes"
    and_ = " and" if size else ""
    raise SourceError(
        f"{where}{size}{and_} needs about {format_size(need)}{limits.per_process}, more than "
        f"--memory {format_size(limits.memory)}; --memory {memory_for(need, limits)} would be "
        f"enough{instead}"
    )


def memory_for(need: int, limits: Limits) -> str:
    """Value of ``--memory`` that gives every process ``need`` bytes."""
    return f"{math.ceil(need * limits.n_processes / (1 << 20))}MiB"


def check_dense(where: str, rows: NDArray[Any] | SparseRows, sparse: bool, limits: Limits) -> None:
    """Refuse to convert sparse rows to dense rows that would be too large."""
    if sparse or not isinstance(rows, SparseRows):
        return
    n_bytes = len(rows) * rows.n_features * rows.values.dtype.itemsize
    check_fits(
        f"{where}: a block of {len(rows):,} rows of {rows.n_features:,} features, made dense,",
        BLOCK_COPIES * n_bytes,
        limits,
        instead=", or leave --no-sparse out",
    )


def check_bag(where: str, n_bytes: int, limits: Limits) -> None:
    """Refuse a block, often of one bag, that is larger than a process may hold."""
    check_fits(f"{where}: a block of {format_size(n_bytes)}", BLOCK_COPIES * n_bytes, limits)


class HeldBytes:
    """Counts the bytes that a pass keeps in memory; refuses more than one process may hold."""

    def __init__(self, where: str, what: str, limits: Limits) -> None:
        self._where, self._what, self._limits = where, what, limits
        self._bytes = 0

    def add(self, n_bytes: int) -> None:
        """Count bytes that are kept from now on; raises SourceError."""
        self._bytes += n_bytes
        if self._bytes > self._limits.share:
            limits = self._limits
            raise SourceError(
                f"{self._where}: {self._what} must be held in memory, and need more than --memory "
                f"{format_size(limits.memory)}{limits.per_process}; give more --memory, or split "
                "the file"
            )
