"""``streammiml seal``: complete a store that another program wrote."""

from __future__ import annotations

from streammiml.bags.seal import seal as seal_store


def seal(store: str, /) -> None:
    """Check a store that another program wrote, and add its index, manifest and fingerprint.

    Parameters
    ----------
    store
        Local folder with the layout of FORMAT.md; its data files are read, not changed.
    """
    sealed = seal_store(store)
    print(f"{store}: {sealed.n_bags:,} bags, {sealed.n_rows:,} rows, {sealed.fingerprint}")
