"""Rows that are images, as small PNG files inside a page."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = 96
"""Pixels of a side; larger images are thinned out."""


def picture(row: NDArray[Any], shape: tuple[int, ...], low: float, high: float) -> str:
    """A row as a ``data:`` address; values from ``low`` to ``high``, the highest black if grey."""
    image = np.asarray(row, np.float64).reshape(shape)
    image = image[:: -(-shape[0] // LARGEST), :: -(-shape[1] // LARGEST)]
    level = np.clip((image - low) / max(high - low, 1e-12), 0, 1)
    if image.ndim == 2:
        level = 1 - level
    raw = png(np.rint(level * 255).astype(np.uint8))
    return "data:image/png;base64," + base64.b64encode(raw).decode()


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG of (height, width) grey values, or (height, width, 3 or 4) colours."""
    height, width = pixels.shape[:2]
    kind = 0 if pixels.ndim == 2 else {3: 2, 4: 6}[pixels.shape[2]]
    # Each line begins with a byte that names its filter: none.
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
