"""Reading foreign files in tests: everything at once, and into a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.validate import StoreSpec
from streammiml_tools.readers.base import Reader, Scan, SourceOptions
from tests.stores import scratch, write_parts

DATA = Path(__file__).parents[2] / "data"


def read_all(reader: Reader, paths: Path | Sequence[Path], **options) -> tuple[Scan, BagBlock]:
    """What a scan says, and the bags of all spans, each read by itself, last one first."""
    sources = [paths] if isinstance(paths, Path) else list(paths)
    asked = SourceOptions(**options)
    scan = reader.scan(sources, asked)
    parts = {span: list(reader.read(span, scan, asked)) for span in reversed(scan.spans)}
    return scan, BagBlock.join([block for span in scan.spans for block in parts[span]])


def spec_of(scan: Scan) -> StoreSpec:
    """The store that a scan asks for."""
    return StoreSpec(
        n_features=scan.n_features,
        dtype=scan.dtype,
        sparse=scan.sparse,
        n_labels=scan.n_labels,
        label_names=scan.label_names,
        feature_names=scan.feature_names,
        row_labels=scan.row_labels,
        bag_ids=scan.bag_ids,
    )


def fingerprint_of(scan: Scan, block: BagBlock) -> str:
    """Fingerprint of the store that the bags make."""
    with scratch() as folder:
        return write_parts(folder / "a.zarr", spec_of(scan), [block]).fingerprint


def counts_of(scan: Scan, block: BagBlock) -> tuple[int, int, int, float, int]:
    """Rows, bags, labels, labels per bag and features, as the table of the real sets has them."""
    assert scan.n_bags in (None, len(block))
    assert scan.n_rows in (None, block.n_rows)
    n_labels = len(scan.label_names) if scan.label_names is not None else scan.n_labels
    assert n_labels is not None
    per_bag = round(len(block.label_indices) / len(block), 3)
    return block.n_rows, len(block), n_labels, per_bag, block.n_features


def marks_of(block: BagBlock, n_labels: int) -> np.ndarray:
    """Labels as a matrix of 0 and 1, (bags, labels)."""
    marks = np.zeros((len(block), n_labels), int)
    bags = np.repeat(np.arange(len(block)), np.diff(block.label_offsets))
    marks[bags, block.label_indices] = 1
    return marks


def dense_rows(block: BagBlock) -> np.ndarray:
    """All rows, dense."""
    return block.rows.dense() if isinstance(block.rows, SparseRows) else block.rows


def without_ids(scan: Scan, block: BagBlock) -> tuple[Scan, BagBlock]:
    """The same without ids and names."""
    return replace(scan, bag_ids=False), replace(block, bag_ids=None)
