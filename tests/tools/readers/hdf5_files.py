"""HDF5 files of flat arrays, for tests."""

import h5py
import numpy as np

from streammiml.bags.block import BagBlock, SparseRows


def flat(block: BagBlock) -> dict:
    """The arrays of a block under their usual names."""
    arrays = {
        "offsets": block.bag_offsets,
        "label_indptr": block.label_offsets,
        "label_indices": block.label_indices,
    }
    if isinstance(block.rows, SparseRows):
        rows = block.rows
        arrays |= {"data": rows.values, "indices": rows.columns, "indptr": rows.offsets}
        arrays["shape"] = np.array([len(rows), rows.n_features])
    else:
        arrays["instances"] = block.rows
    if block.row_labels is not None:
        arrays["row_labels"] = block.row_labels
    if block.bag_ids is not None:
        arrays["bag_ids"] = [name.replace("\0", "0") for name in block.bag_ids]
    return arrays


def write(path, arrays, group="", **options):
    with h5py.File(path, "w") as file:
        inner = file.require_group(group) if group else file
        for name, values in arrays.items():
            inner.create_dataset(name, data=values, **(options if np.ndim(values) else {}))
    return path
