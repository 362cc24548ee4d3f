"""Sources for tests of the converter: NumPy arrays of a block, and stores to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.views import Bags


def arrays_of(block: BagBlock, **more) -> dict[str, np.ndarray]:
    """A block as the arrays that the NumPy reader takes."""
    rows = block.rows
    arrays = {
        "offsets": block.bag_offsets,
        "label_indptr": block.label_offsets,
        "label_indices": block.label_indices,
    }
    if isinstance(rows, SparseRows):
        arrays |= {"data": rows.values, "indices": rows.columns, "indptr": rows.offsets}
        arrays["shape"] = np.array([len(rows), rows.n_features])
    else:
        arrays["instances"] = rows
    if block.row_labels is not None:
        arrays["row_labels"] = block.row_labels
    if block.bag_ids is not None:
        arrays["bag_ids"] = np.array(block.bag_ids, dtype=np.str_)
    return arrays | more


def save_npz(path: Path, block: BagBlock, *, compressed: bool = False, **more) -> Path:
    """One npz of a block."""
    (np.savez_compressed if compressed else np.savez)(path, **arrays_of(block, **more))
    return path


def save_npy(folder: Path, block: BagBlock, **more) -> Path:
    """A folder of npy files of a block."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays_of(block, **more).items():
        np.save(folder / f"{name}.npy", array)
    return folder


def bags_of(store: Bags) -> Iterator[tuple]:
    """Every bag by itself: id, labels, rows, labels of rows."""
    block = store.read(0, store.n_bags)
    ids = store.bag_ids(0, store.n_bags)
    for bag in range(store.n_bags):
        start, stop = block.bag_offsets[bag : bag + 2]
        known = None if block.row_labels is None else tuple(block.row_labels[start:stop].tolist())
        yield ids[bag], tuple(block.labels_of(bag).tolist()), block.rows_of(bag).tobytes(), known
