"""Summary of a store: counts, types and names."""

from __future__ import annotations

from typing import Any

from streammiml.bags.store import BagStore


def describe(store: BagStore) -> dict[str, Any]:
    """Counts, types and names of a store; ``…_per_bag`` are means."""
    manifest = store.manifest
    return {
        "n_bags": store.n_bags,
        "n_rows": store.n_rows,
        "n_features": store.n_features,
        "n_labels": store.n_labels,
        "labels_per_bag": store.n_label_entries / store.n_bags,
        "rows_per_bag": store.n_rows / store.n_bags,
        "longest_bag": manifest.longest_bag,
        "dropped_bags": manifest.dropped_bags,
        "row_labels": store.has_row_labels,
        "bag_ids": store.has_bag_ids,
        "kept": [column._asdict() for column in store.kept_columns],
        "format": manifest.backend,
        "format_version": manifest.format_version,
        "dtype": store.dtype,
        "sparse": store.sparse,
        "codec": manifest.codec,
        "bytes": sum(size for _, size, _ in manifest.files),
        "fingerprint": store.fingerprint,
        "label_names": store.label_names,
    }
