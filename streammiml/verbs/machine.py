"""What this machine lacks of what makes streammiml fast; results are the same without it."""

from __future__ import annotations

from streammiml.bags.cold import may_bypass
from streammiml.checksum import has_fast_way


def lacking() -> list[str]:
    """A line for each faster way that is not to be had here, or was switched off."""
    lines = []
    if not may_bypass():
        lines.append(
            "no reads past the page cache (O_DIRECT): stores larger than memory are read plainly"
        )
    if not has_fast_way():
        lines.append(
            "no wide vectors (AVX2, VPCLMULQDQ): checksums are computed by one instruction"
        )
    return lines
