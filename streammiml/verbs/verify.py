"""Check every file of a store; ``streammiml_tools`` builds the verb ``verify`` on this."""

from __future__ import annotations

from streammiml.bags.store import open_one


def verify(store: str, /) -> int:
    """Read and check every file and every bag of a store; print a line for each damaged file."""
    opened = open_one(store)
    problems = opened.check()
    for line in problems:
        print(line)
    if problems:
        return 2
    print(f"{store}: {opened.n_bags:,} bags without errors, {opened.fingerprint}")
    return 0
