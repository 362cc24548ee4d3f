"""The fields of a manifest that every backend fills in: counts, chunk tables, files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml._base.atomic import sync_file
from streammiml.bags.array_writer import table_pages
from streammiml.bags.fingerprint import U64, Fingerprint
from streammiml.bags.layout import FORMAT_VERSION, KEPT_VERSION, ArrayEntry, Manifest, table_key
from streammiml.bags.validate import StoreSpec

FileList = list[list[Any]]
"""(key, bytes, crc32c) of each file."""


@dataclass(slots=True)
class PartTally:
    """Counts and fingerprint of the parts so far."""

    n_bags: int = 0
    n_rows: int = 0
    top_label: int = -1
    longest_bag: int = 0
    dropped_bags: int = 0
    sums: tuple[int, int] = (0, 0)

    def add(self, digests: U64, sizes: NDArray[Any], top_label: int, dropped: int) -> None:
        """Count the bags of the next part."""
        fingerprint = Fingerprint(self.sums)
        fingerprint.add(self.n_bags, digests)
        self.sums = fingerprint.sums
        self.n_bags += len(sizes)
        self.n_rows += int(sizes.sum())
        self.top_label = max(self.top_label, top_label)
        self.longest_bag = max(self.longest_bag, int(sizes.max(initial=0)))
        self.dropped_bags += dropped

    def n_labels(self, spec: StoreSpec) -> int:
        """Number of labels in the spec; if the spec has none, the highest label plus one."""
        n_labels = spec.labels_known
        return self.top_label + 1 if n_labels is None else n_labels


@dataclass(frozen=True, slots=True)
class ManifestDraft:
    """Everything in a manifest that depends on the written files."""

    arrays: dict[str, ArrayEntry]
    files: FileList
    metadata: dict[str, list[int]]
    tally: PartTally

    def manifest(self, spec: StoreSpec, backend: str, n_labels: int) -> Manifest:
        """Make the manifest of the finished store."""
        return Manifest(
            backend=backend,
            n_bags=self.tally.n_bags,
            n_rows=self.tally.n_rows,
            n_features=spec.n_features,
            n_labels=n_labels,
            dtype=spec.dtype,
            sparse=spec.sparse,
            codec=spec.resolved_codec,
            fingerprint=Fingerprint(self.tally.sums).text(),
            longest_bag=self.tally.longest_bag,
            arrays=self.arrays,
            files=self.files,
            metadata=self.metadata,
            dropped_bags=self.tally.dropped_bags,
            format_version=KEPT_VERSION if spec.kept else FORMAT_VERSION,
        )


def store_attributes(spec: StoreSpec, n_labels: int) -> dict[str, Any]:
    """Counts and names for the description of a store, which other programs can read."""
    attributes = {
        "n_features": spec.n_features,
        "n_labels": n_labels,
        "label_names": spec.label_names,
        "feature_names": spec.feature_names,
    }
    return {key: value for key, value in attributes.items() if value is not None}


def write_table(
    root: Path, name: str, records: NDArray[np.void], first_file: int
) -> list[list[int]]:
    """Write the chunk table of an array, and return the pages of the table.

    The records number the files of the array from 0; file 0 has the number ``first_file`` in the
    manifest.
    """
    table = records.copy()
    table["file"] += first_file
    path = root / table_key(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(table.tobytes())
    sync_file(path)
    return table_pages(table)


def synced_entry(path: Path) -> list[int]:
    """Sync a small file, and return (offset, bytes, crc32c) of its content."""
    raw = path.read_bytes()
    sync_file(path)
    return [0, len(raw), crc32c(raw)]
