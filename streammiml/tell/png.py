"""Rows as PNG images, written into a page as ``data:`` URLs."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = 96
"""Upper limit for the pixels of a side; larger images keep every second, third … pixel."""


def image_url(row: NDArray[Any], shape: tuple[int, ...], low: float, high: float) -> str:
    """Return a row as the ``data:`` URL of a PNG image.

    Values from ``low`` to ``high`` become the range of brightness; in grey images the highest
    value is black. Values outside the range are clipped.
    """
    image = np.asarray(row, np.float64).reshape(shape)
    image = image[:: -(-shape[0] // LARGEST), :: -(-shape[1] // LARGEST)]
    level = np.clip((image - low) / max(high - low, 1e-12), 0, 1)
    if image.ndim == 2:
        level = 1 - level
    raw = encode_png(np.rint(level * 255).astype(np.uint8))
    return "data:image/png;base64," + base64.b64encode(raw).decode()


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode (height, width) grey values, or (height, width, 3 or 4) colours, as a PNG file."""
    height, width = pixels.shape[:2]
    kind = 0 if pixels.ndim == 2 else {3: 2, 4: 6}[pixels.shape[2]]
    # In PNG a line begins with the number of its filter; 0 means no filter.
    lines = np.zeros((height, 1 + pixels[0].size), np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    out = b"\x89PNG\r\n\x1a\n"
    for name, content in parts:
        check = struct.pack(">I", zlib.crc32(name + content))
        out += struct.pack(">I", len(content)) + name + content + check
    return out
