"""``streammiml seal``: complete a store that was written by other programs."""

from __future__ import annotations

from streammiml.bags.seal import seal as seal_store


def seal(store: str, /) -> None:
    """Check a store written by others, and add its index, manifest and fingerprint.

    Parameters
    ----------
    store
        Folder laid out as FORMAT.md says; its data files are read, not changed.
    """
    sealed = seal_store(store)
    print(f"{store}: {sealed.n_bags:,} bags, {sealed.n_rows:,} rows, {sealed.fingerprint}")
