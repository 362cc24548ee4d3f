"""``streammiml verify``: read and check every file of a store."""

from __future__ import annotations

from streammiml.bags.store import open_one


def verify(store: str, /) -> int:
    """Read every file and every bag of a store and check them; a line for each damaged file.

    Parameters
    ----------
    store
        Folder or URL.
    """
    opened = open_one(store)
    problems = opened.check()
    for line in problems:
        print(line)
    if problems:
        return 2
    print(f"{store}: {opened.n_bags:,} bags in order, {opened.fingerprint}")
    return 0
