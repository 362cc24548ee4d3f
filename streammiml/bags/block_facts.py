"""Facts about one block that stores and bags in memory both need: digests and the highest label.

This module imports no code that writes stores, so bags in memory load neither zarr nor pyarrow.
"""

from __future__ import annotations

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.digest import U64, bag_digests


def digests_of(block: BagBlock) -> U64:
    """Digest of each bag of a block."""
    rows = block.rows
    return bag_digests(
        block.bag_offsets,
        block.label_offsets,
        block.label_indices,
        block.row_labels,
        (rows.offsets, rows.columns, rows.values) if isinstance(rows, SparseRows) else rows,
    )


def top_label(block: BagBlock) -> int:
    """Highest label of a block, of bags or of rows; −1 if there is none."""
    labels = [block.label_indices] + ([] if block.row_labels is None else [block.row_labels])
    return max(int(of.max(initial=-1)) for of in labels)
