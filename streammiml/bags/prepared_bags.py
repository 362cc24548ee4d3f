"""Bags that are checked and converted to the types of a store, ready to be written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streammiml.bags.block import BagBlock
from streammiml.bags.fingerprint import U64, digests_of
from streammiml.bags.validate import StoreSpec, clean


@dataclass(frozen=True, slots=True)
class PreparedBags:
    """Checked bags with their digests; :func:`prepare` makes them."""

    block: BagBlock
    dropped: int
    """Number of empty bags that were left out."""
    digests: U64

    def facts(self) -> dict[str, Any]:
        """Numbers that are saved with the arrays of a part."""
        return {"dropped": self.dropped, "top_label": self.block.top_label}


def prepare(block: BagBlock, spec: StoreSpec, where: str) -> PreparedBags:
    """Check bags and convert them to the types of the store.

    This step of writing only computes and needs no writer, so another thread can do it ahead of
    the writing. ``where`` is the beginning of error messages.
    """
    kept, dropped = clean(block, spec, where)
    return PreparedBags(kept, dropped, digests_of(kept))
