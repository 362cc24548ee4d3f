"""Phrases that messages of several readers share."""

from __future__ import annotations

from collections.abc import Iterable

MAX_NAMES = 12
"""Upper limit of names that a message lists."""
MAX_REASON = 160
"""Upper limit of characters of an exception that a message quotes."""


def listed(names: Iterable[str]) -> str:
    """The first names, and how many there are."""
    names = list(names)
    more = f", … ({len(names)} in all)" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def reason_of(error: Exception) -> str:
    """Text of an exception on one line; the name of its class if it has no text."""
    return " ".join(str(error).split())[:MAX_REASON] or type(error).__name__
