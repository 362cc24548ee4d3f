"""The one ``njit`` that every compiled function wears, and where its cache lives.

numba's own cache notices edits in a function's file but not in the files of what it calls, so the
cache folder is keyed by a hash of all compiled sources.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numba

_HERE = Path(__file__).parent
_COMPILED = ("jit.py", "digest.py", "drawing.py", "fast_crc.py", "laying.py", "fetching.py")
_SOURCES = [
    *(_HERE / name for name in _COMPILED),
    *sorted((_HERE / "kernel").glob("*.py")),
]


def _cache_folder() -> str:
    key = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return str(Path(home) / "streammiml" / key)


if "NUMBA_CACHE_DIR" not in os.environ:
    numba.config.CACHE_DIR = _cache_folder()  # type: ignore[attr-defined]

# nogil lets the reader threads run. nnan and ninf stay out: a divergence must stay visible;
# reassoc stays out: the order of a sum is ours.
njit = numba.njit(nogil=True, cache=True, fastmath={"nsz", "arcp", "contract"})
