"""Notices about what this machine lacks to run fast; results are the same without it."""

from __future__ import annotations

from streammiml._base.crc import has_fast_way
from streammiml.bags.page_cache import may_bypass


def missing_fast_paths() -> list[str]:
    """A line for each fast path that this machine lacks, or that was switched off."""
    lines = []
    if not may_bypass():
        lines.append(
            "no reads that bypass the page cache (O_DIRECT): large stores are read through it"
        )
    if not has_fast_way():
        lines.append("no crc32c instruction (SSE4.2, PCLMULQDQ): reading is slower")
    return lines
