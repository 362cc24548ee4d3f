"""Reading the Zarr 3 backend: decode chunks, find the description. Does not import zarr."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numcodecs import blosc, gzip, zstd
from numpy.typing import NDArray

from streammiml.bags.chunks import Decode, Record, fetch_checked
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

    return decode


def attributes(place: Place, manifest: Manifest) -> dict[str, Any]:
    """What the store says of itself: names of labels and features."""
    raw = fetch_checked(place, "zarr.json", manifest.metadata["zarr.json"])
    return dict(json.loads(bytes(raw)).get("attributes", {}).get("streammiml", {}))
