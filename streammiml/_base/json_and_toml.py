"""JSON and TOML of files that may be damaged or hostile: every failure is a ValueError.

The parsers of the standard library also raise RecursionError. For some texts, the TOML parser takes
time and memory in proportion to the square of the length.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

MAX_TOML = 1 << 20
"""Upper limit of characters of a TOML text; files of settings and grids have thousands at most."""
_LONG_KEY = re.compile(r"(?:[^.,=\[\]{}\n]*\.){100}")
"""A hundred names joined by dots: tomllib keeps every beginning of such a key."""
_TOO_DEEP = "it is nested too deeply"


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raises ValueError for anything else."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raises ValueError for anything else, and for text that would take long."""
    if len(text) > MAX_TOML:
        raise ValueError(f"it has {len(text):,} characters, more than {MAX_TOML:,}")
    if _LONG_KEY.search(text):
        raise ValueError("a name has a hundred dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
