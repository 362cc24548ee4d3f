"""Reading the Zarr 3 backend: decode chunks, find the description. Does not import zarr."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numcodecs import blosc, gzip, zstd
from numpy.typing import NDArray

from streammiml.bags.chunks import Decode, Record, fetch_checked
from streammiml.bags.layout import Manifest
from streammiml.bags.place import Place

UNPACK = {"blosc": blosc.decompress, "zstd": zstd.decompress, "gzip": gzip.GZip().decode}


def decoders(place: Place, manifest: Manifest) -> dict[str, Decode]:  # noqa: ARG001
    """A function for each array that turns checked bytes of a chunk into its values."""
    return {
        name: _decoder(entry.coding, np.dtype(entry.dtype), entry.width)
        for name, entry in manifest.arrays.items()
    }


def _decoder(coding: str, dtype: np.dtype[Any], width: int) -> Decode:
    unpack = UNPACK.get(coding)

    def decode(raw: memoryview, record: Record) -> NDArray[Any]:
        values = np.frombuffer(raw if unpack is None else unpack(raw), dtype)
        return values[: record.elements * width]

    return decode


def attributes(place: Place, manifest: Manifest) -> dict[str, Any]:
    """What the store says of itself: names of labels and features."""
    raw = fetch_checked(place, "zarr.json", manifest.metadata["zarr.json"])
    return dict(json.loads(bytes(raw)).get("attributes", {}).get("streammiml", {}))
