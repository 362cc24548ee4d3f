"""Hypothesis: ragged bags of every kind, and every way to cut them into chunks and parts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streammiml.bags.block import BagBlock
from streammiml.bags.kept_columns import KEPT_DTYPES, TEXT, Kept, as_texts, columns_of
from streammiml.bags.layout import CODECS, ROW_DTYPES
from streammiml.bags.offsets import from_sizes
from streammiml.bags.validate import StoreSpec
from tests.stores import sparse

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@dataclass(frozen=True)
class Corpus:
    """Bags, what to tell the writer of them, and where to cut them into parts."""

    spec: StoreSpec
    block: BagBlock
    cuts: list[int]

    @property
    def parts(self) -> list[BagBlock]:
        ends = [0, *self.cuts, len(self.block)]
        return [self.block.slice(a, b) for a, b in pairwise(ends)]


def offsets(max_items: int = 6, max_size: int = 5, min_size: int = 0) -> st.SearchStrategy:
    """Offsets of ragged items."""
    return st.lists(st.integers(min_size, max_size), max_size=max_items).map(from_sizes)


def values(dtype: str, shape: tuple[int, ...]) -> st.SearchStrategy:
    """Any finite values of a type: extremes, subnormal numbers and zeros of both signs too."""
    limits = {"allow_nan": False, "allow_infinity": False} if dtype.startswith("float") else {}
    return hnp.arrays(dtype, shape, elements=hnp.from_dtype(np.dtype(dtype), **limits))


def cuttings() -> st.SearchStrategy:
    """Arguments of :func:`tests.stores.sizes`."""
    return st.fixed_dictionaries(
        {
            "index_chunk": st.sampled_from([2, 3, 8192]),
            "shard": st.sampled_from([1, 100, 1 << 20]),
            "group": st.sampled_from([1, 60, 1 << 20]),
            "page": st.sampled_from([1, 2, 2048]),
        }
    )


@st.composite
def kept_columns(draw, n_rows: int) -> Kept:
    """Up to three kept columns: numbers of any type, NaN among them, wide ones, and texts."""
    kept: Kept = {}
    for name in draw(st.sets(st.sampled_from(["x", "long name", "y-2"]), max_size=3)):
        dtype = draw(st.sampled_from(KEPT_DTYPES))
        if dtype == TEXT:
            kept[name] = as_texts(draw(st.lists(names, min_size=n_rows, max_size=n_rows)))
            continue
        width = draw(st.integers(1, 3))
        shape = (n_rows,) if width == 1 else (n_rows, width)
        kept[name] = draw(hnp.arrays(dtype, shape))
    return kept


@st.composite
def blocks(
    draw,
    *,
    ids: bool | None = None,
    min_bags: int = 1,
    dtype: str | None = None,
    kept: bool = False,
):
    """Blocks of 1 to 7 bags, dense or sparse, of any stored type, with or without the rest."""
    counts = draw(st.lists(st.integers(1, 4), min_size=min_bags, max_size=7))
    n_features, n_labels = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    dtype = dtype or draw(st.sampled_from(ROW_DTYPES))
    shape = (sum(counts), n_features)
    rows = draw(values(dtype, shape))
    if draw(st.booleans()):
        rows = sparse(rows, draw(hnp.arrays(bool, shape)))
    numbers = st.integers(0, n_labels - 1) if n_labels else st.nothing()
    labels = draw(st.lists(st.sets(numbers), min_size=len(counts), max_size=len(counts)))
    row_labels = None
    if draw(st.booleans()):
        row_labels = draw(hnp.arrays(np.int32, shape[0], elements=st.integers(-1, n_labels - 1)))
    bag_ids = None
    if draw(st.booleans()) if ids is None else ids:
        size = len(counts)
        bag_ids = draw(st.lists(names, min_size=size, max_size=size, unique=True))
    return BagBlock(
        from_sizes(counts),
        rows,
        from_sizes([len(own) for own in labels]),
        np.array([i for own in labels for i in sorted(own)], np.int32),
        row_labels,
        bag_ids,
        draw(kept_columns(shape[0])) if kept and draw(st.booleans()) else {},
    )


@st.composite
def corpora(draw, **fixed):
    """Blocks with a codec, a chunk size, and cuts into parts, of which some may be empty."""
    block = draw(blocks(**{"kept": True, **fixed}))
    is_sparse = not isinstance(block.rows, np.ndarray)
    label_arrays = [block.label_indices] + ([] if block.row_labels is None else [block.row_labels])
    top = int(max(array.max(initial=-1) for array in label_arrays))
    spec = StoreSpec(
        n_features=block.n_features,
        dtype=(block.rows.values if is_sparse else block.rows).dtype.name,
        sparse=is_sparse,
        n_labels=draw(st.sampled_from([None, top + 1, top + 3])),
        row_labels=block.row_labels is not None,
        bag_ids=block.bag_ids is not None,
        codec=draw(st.sampled_from(["auto", *CODECS])),
        chunk_bytes=draw(st.sampled_from([1, 10, 40, 1 << 18])),
        kept=columns_of(block.kept),
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(block)), max_size=4)))
    return Corpus(spec, block, cuts)
