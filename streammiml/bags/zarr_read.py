"""Reading the Zarr 3 backend: decode chunks, read the description; zarr is not imported."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np
from numcodecs import blosc, gzip, zstd
from numpy.typing import NDArray

from streammiml._base.json_and_toml import parse_json
from streammiml.bags.layout import ArrayEntry, Manifest
from streammiml.bags.location import Location
from streammiml.bags.verified_array import ChunkRecord, Decode, fetch_checked, one_by_one

UNPACK = {"blosc": blosc.decompress, "zstd": zstd.decompress, "gzip": gzip.GZip().decode}
_HEADER = struct.Struct("<4xI4xI")
"""Header of a blosc chunk: bytes after decompression, and bytes of the chunk."""


def decoders(location: Location, manifest: Manifest) -> dict[str, Decode]:  # noqa: ARG001
    """Make a function for each array that turns checked bytes of chunks into values."""
    return {name: _decoder(entry) for name, entry in manifest.arrays.items()}


def _decoder(entry: ArrayEntry) -> Decode:
    unpack, dtype = UNPACK.get(entry.coding), np.dtype(entry.dtype)

    def decode(raw: NDArray[np.uint8], record: ChunkRecord, out: NDArray[Any]) -> None:
        padded = record.first + record.elements == entry.length
        if entry.coding == "blosc" and not _is_sound(raw, 0, len(raw), out.nbytes):
            raise ValueError(
                "the header of the chunk does not match its bytes or its number of values"
            )
        if entry.coding == "blosc" and not padded:
            blosc.decompress(raw, out)
            return
        values = np.frombuffer(raw if unpack is None else unpack(raw), dtype)
        if len(values) < len(out) or (len(values) > len(out) and not padded):
            raise ValueError(f"the chunk has {len(values)} values, expected {len(out)}")
        out[:] = values[: len(out)]

    decode_all = one_by_one(decode, entry.width)
    if entry.coding != "blosc":
        return decode_all

    def decode_blosc(raw: NDArray[np.uint8], records: list[ChunkRecord], out: NDArray[Any]) -> None:
        if not _decompressed(raw, records, out, entry.width * dtype.itemsize):
            decode_all(raw, records, out)

    return decode_blosc


def _is_sound(raw: NDArray[np.uint8], at: int, size: int, expected: int) -> bool:
    """Check the header of a blosc chunk of ``size`` bytes that should hold ``expected`` bytes.

    The library trusts the header: it would read beyond the chunk, or leave values unset.
    """
    if size < _HEADER.size:
        return False
    unpacked, packed = _HEADER.unpack_from(raw.data, at)
    return bool(packed <= size and unpacked >= expected)


@cache
def _blosc() -> Callable[[int, int, int, int], int] | None:
    """Find the C function behind numcodecs' blosc; None if there is none.

    The wrapper of numcodecs spends a third of the time on its arguments. The C function is not
    part of the documented interface of numcodecs (checked: 0.16).
    """
    try:
        decompress = ctypes.CDLL(blosc.__file__).blosc_decompress_ctx
    except (OSError, AttributeError):
        return None
    decompress.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    decompress.restype = ctypes.c_int
    return cast("Callable[[int, int, int, int], int]", decompress)


@cache
def unpackers() -> tuple[int, ...]:
    """Addresses of ``blosc_decompress_ctx`` and ``blosc_getitem``; () if either is missing."""
    try:
        library = ctypes.CDLL(blosc.__file__)
        functions = (library.blosc_decompress_ctx, library.blosc_getitem)
    except (OSError, AttributeError):
        return ()
    return tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)


def _decompressed(
    raw: NDArray[np.uint8], records: list[ChunkRecord], out: NDArray[Any], element: int
) -> bool:
    """Decompress checked chunks; False if the C function is missing or a chunk is wrong."""
    decompress = _blosc()
    if decompress is None:
        return False
    source, target = (array.__array_interface__["data"][0] for array in (raw, out))
    begin = records[0].offset
    for record in records:
        size, at = record.elements * element, record.offset - begin
        if not _is_sound(raw, at, record.nbytes, size):
            return False
        # This fails for a padded last chunk of an array, because ``out`` has no room for padding.
        if decompress(source + at, target, size, 1) != size:
            return False
        target += size
    return True


def attributes(location: Location, manifest: Manifest) -> dict[str, Any]:
    """Read counts and names from the attributes of the group."""
    raw = fetch_checked(location, "zarr.json", manifest.metadata["zarr.json"])
    return dict(parse_json(bytes(raw)).get("attributes", {}).get("streammiml", {}))
