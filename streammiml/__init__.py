"""Multi-instance multi-label learning on corpora far larger than memory.

The public names are those in ``__all__``; they load on first use, so that importing is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streammiml.bags.store import open_store as open_store
    from streammiml.bags.writer import BagWriter as BagWriter
    from streammiml.errors import StreammimlError as StreammimlError

_HOMES = {
    "BagWriter": "streammiml.bags.writer",
    "StreammimlError": "streammiml.errors",
    "open_store": "streammiml.bags.store",
}

__all__ = ["BagWriter", "StreammimlError", "open_store"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'streammiml' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
