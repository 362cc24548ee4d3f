"""Reading the Zarr 3 backend: decode chunks, find the description. Does not import zarr."""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np
from numcodecs import blosc, gzip, zstd
from numpy.typing import NDArray

from streammiml.bags.chunks import Decode, Record, fetch_checked, one_by_one
from streammiml.bags.layout import ArrayEntry, Manifest
from streammiml.bags.place import Place

UNPACK = {"blosc": blosc.decompress, "zstd": zstd.decompress, "gzip": gzip.GZip().decode}
_HEADER = struct.Struct("<4xI4xI")
"""Of a blosc chunk: bytes that it holds, and bytes that it is."""


def decoders(place: Place, manifest: Manifest) -> dict[str, Decode]:  # noqa: ARG001
    """A function for each array that turns checked bytes of a chunk into its values."""
    return {name: _decoder(entry) for name, entry in manifest.arrays.items()}


def _decoder(entry: ArrayEntry) -> Decode:
    unpack, dtype = UNPACK.get(entry.coding), np.dtype(entry.dtype)

    def decode(raw: NDArray[np.uint8], record: Record, out: NDArray[Any]) -> None:
        padded = record.first + record.elements == entry.length
        if entry.coding == "blosc" and not _is_whole(raw, 0, len(raw), out.nbytes):
            raise ValueError("its header asks for more bytes than it has, or has fewer values")
        if entry.coding == "blosc" and not padded:
            blosc.decompress(raw, out)
            return
        values = np.frombuffer(raw if unpack is None else unpack(raw), dtype)
        if len(values) < len(out) or (len(values) > len(out) and not padded):
            raise ValueError(f"it has {len(values)} values, expected {len(out)}")
        out[:] = values[: len(out)]

    whole = one_by_one(decode, entry.width)
    if entry.coding != "blosc":
        return whole

    def decode_blosc(raw: NDArray[np.uint8], records: list[Record], out: NDArray[Any]) -> None:
        if not _decompressed(raw, records, out, entry.width * dtype.itemsize):
            whole(raw, records, out)

    return decode_blosc


def _is_whole(raw: NDArray[np.uint8], at: int, size: int, wanted: int) -> bool:
    """Whether a blosc chunk of ``size`` bytes says to be no longer, and to hold what is wanted.

    The library takes its word: it would read on behind it, or leave values as they were.
    """
    if size < _HEADER.size:
        return False
    holds, length = _HEADER.unpack_from(raw.data, at)
    return bool(length <= size and holds >= wanted)


@cache
def _blosc() -> Callable[[int, int, int, int], int] | None:
    """The C function behind numcodecs' blosc, which spends a third of its time on its arguments.

    Numcodecs does not promise it (seen in 0.16); None where it cannot be found.
    """
    try:
        found = ctypes.CDLL(blosc.__file__).blosc_decompress_ctx
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    found.restype = ctypes.c_int
    return cast("Callable[[int, int, int, int], int]", found)


@cache
def unpackers() -> tuple[int, ...]:
    """Addresses of what unpacks a chunk and what takes a part of one; none if either is missing."""
    try:
        library = ctypes.CDLL(blosc.__file__)
        found = (library.blosc_decompress_ctx, library.blosc_getitem)
    except (OSError, AttributeError):
        return ()
    return tuple(ctypes.cast(each, ctypes.c_void_p).value or 0 for each in found)


def _decompressed(
    raw: NDArray[np.uint8], records: list[Record], out: NDArray[Any], element: int
) -> bool:
    """Decompress chunks, whose checksums have been seen to; False where it does not come out."""
    decompress = _blosc()
    if decompress is None:
        return False
    source, target = (each.__array_interface__["data"][0] for each in (raw, out))
    begin = records[0].offset
    for record in records:
        size, at = record.elements * element, record.offset - begin
        if not _is_whole(raw, at, record.nbytes, size):
            return False
        # The last chunk of an array is longer than what is wanted of it: too little room.
        if decompress(source + at, target, size, 1) != size:
            return False
        target += size
    return True


def attributes(place: Place, manifest: Manifest) -> dict[str, Any]:
    """What the store says of itself: names of labels and features."""
    raw = fetch_checked(place, "zarr.json", manifest.metadata["zarr.json"])
    return dict(json.loads(bytes(raw)).get("attributes", {}).get("streammiml", {}))
