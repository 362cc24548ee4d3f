"""Reading the Zarr 3 backend: decode chunks, find the description. Does not import zarr."""

from __future__ import annotations

import ctypes
import json
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


def decoders(place: Place, manifest: Manifest) -> dict[str, Decode]:  # noqa: ARG001
    """A function for each array that turns checked bytes of a chunk into its values."""
    return {name: _decoder(entry) for name, entry in manifest.arrays.items()}


def _decoder(entry: ArrayEntry) -> Decode:
    unpack, dtype = UNPACK.get(entry.coding), np.dtype(entry.dtype)

    def decode(raw: NDArray[np.uint8], record: Record, out: NDArray[Any]) -> None:
        padded = record.first + record.elements == entry.length
        if entry.coding == "blosc" and not padded:
            blosc.decompress(raw, out)
        else:
            out[:] = np.frombuffer(raw if unpack is None else unpack(raw), dtype)[: len(out)]

    whole = one_by_one(decode, entry.width)
    if entry.coding != "blosc":
        return whole

    def decode_blosc(raw: NDArray[np.uint8], records: list[Record], out: NDArray[Any]) -> None:
        if not _decompressed(raw, records, out, entry.width * dtype.itemsize):
            whole(raw, records, out)

    return decode_blosc


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


def _decompressed(
    raw: NDArray[np.uint8], records: list[Record], out: NDArray[Any], element: int
) -> bool:
    """Decompress chunks, whose checksums have been seen to; False where it does not come out."""
    decompress = _blosc()
    if decompress is None:
        return False
    source, target = (each.__array_interface__["data"][0] for each in (raw, out))
    source -= records[0].offset
    for record in records:
        size = record.elements * element
        # The last chunk of an array is longer than what is wanted of it: too little room.
        if decompress(source + record.offset, target, size, 1) != size:
            return False
        target += size
    return True


def attributes(place: Place, manifest: Manifest) -> dict[str, Any]:
    """What the store says of itself: names of labels and features."""
    raw = fetch_checked(place, "zarr.json", manifest.metadata["zarr.json"])
    return dict(json.loads(bytes(raw)).get("attributes", {}).get("streammiml", {}))
