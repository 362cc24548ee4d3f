"""Random corpora of any size with a planted linear model, for tests and benchmarks.

Every label has several directions, its sub-concepts. A row is noise, plus one direction of one
label of its bag; background rows have no direction. The label is stored as the row's label. A part
depends only on the settings and its number, so any process can write it, in any order.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray

from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import PoolOptions
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.layout import ROW_DTYPES
from streammiml.bags.offsets import from_sizes
from streammiml.bags.store import BagStore
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter
from streammiml.errors import StreammimlError, unknown

I64 = NDArray[np.int64]
PART_BYTES = 16 << 20
# Size of a tile of rows: directions are added while the noise of the tile is still in the cache.
TILE_BYTES = 256 << 10
ORDERS = ("random", "by-label")
# For integer types: the middle of the values, and the size of an entry of a direction.
INTEGERS = {"uint8": (128, 32), "int8": (0, 32), "int16": (0, 4096)}
# Parts of the seeds, so that directions and bags draw from different streams.
DIRECTIONS, PARTS = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """Settings of a planted corpus; they decide every bag.

    The name of the class is part of the identity of a half-written store; see ``write_corpus``.
    """

    n_bags: int = 10_000
    """Number of bags."""
    n_features: int = 100
    """Number of values in a row."""
    n_labels: int = 20
    """Number of labels."""
    rows_per_bag: tuple[int, int] = (3, 9)
    """Fewest and most rows of a bag."""
    labels_per_bag: tuple[int, int] = (1, 3)
    """Fewest and most labels of a bag; a bag never has more labels than rows."""
    subconcepts: int = 2
    """Number of directions of each label."""
    background: float = 0.25
    """Share of rows without a label, after each label of the bag has got one row."""
    noise: float = 1.0
    """Length of a row's noise, where a direction has length 1; in sparse rows, the number of noisy
    non-zeros for each other non-zero."""
    sparse: bool = False
    """Whether rows are sparse."""
    nonzeros: int = 32
    """Approximate non-zeros of a sparse row, and number of features of a sparse direction."""
    dtype: str = "float32"
    """Type of the values: float32, float16, uint8, int8 or int16."""
    order: str = "random"
    """``by-label``: bags are sorted by label, which is the worst case for mixing."""
    seed: int = 0
    """Seed of all directions and bags."""

    def __post_init__(self) -> None:
        for name in ("n_bags", "n_features", "n_labels", "subconcepts", "nonzeros"):
            if getattr(self, name) < 1:
                raise StreammimlError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, lowest in (("rows_per_bag", 1), ("labels_per_bag", 0)):
            low, high = getattr(self, name)
            if not lowest <= low <= high:
                raise StreammimlError(
                    f"{name} must be two ascending numbers from {lowest} on, got {low} and {high}"
                )
        if self.labels_per_bag[1] > self.n_labels:
            raise StreammimlError(
                f"a bag cannot have {self.labels_per_bag[1]} of {self.n_labels} labels"
            )
        if not 0 <= self.background <= 1:
            raise StreammimlError(f"background must be 0 to 1, got {self.background}")
        if not 0 <= self.noise < np.inf:
            raise StreammimlError(f"noise must be at least 0 and finite, got {self.noise}")
        if self.order not in ORDERS:
            raise unknown("order", self.order, ORDERS)
        if self.dtype not in ROW_DTYPES:
            raise unknown("dtype", self.dtype, ROW_DTYPES)

    @property
    def bags_per_part(self) -> int:
        """Number of bags in each part but the last; a part takes about 16 MiB."""
        width = self.nonzeros * (4 + 4) if self.sparse else self.n_features * self._itemsize
        mean = sum(self.rows_per_bag) / 2
        return max(1, int(PART_BYTES / (mean * width)))

    @property
    def _itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def n_parts(self) -> int:
        """Number of parts of the corpus."""
        return -(-self.n_bags // self.bags_per_part)

    @property
    def spec(self) -> StoreSpec:
        """The specification of a store of the corpus."""
        return StoreSpec(
            n_features=self.n_features,
            n_labels=self.n_labels,
            dtype=self.dtype,
            sparse=self.sparse,
            row_labels=True,
        )


def dense_directions(corpus: Planted) -> NDArray[np.float32]:
    """Return the planted model (labels, sub-concepts, features): unit vectors."""
    rng = np.random.default_rng([corpus.seed, DIRECTIONS])
    shape = (corpus.n_labels, corpus.subconcepts, corpus.n_features)
    directions = rng.standard_normal(shape, np.float32)
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    return directions


def sparse_directions(corpus: Planted) -> NDArray[np.uint32]:
    """Return the features of each planted direction (labels, sub-concepts, non-zeros).

    A direction may have a feature twice.
    """
    rng = np.random.default_rng([corpus.seed, DIRECTIONS])
    shape = (corpus.n_labels, corpus.subconcepts, corpus.nonzeros)
    return rng.integers(corpus.n_features, size=shape, dtype=np.uint32)


@lru_cache(maxsize=1)
def _directions(corpus: Planted) -> NDArray[Any]:
    return sparse_directions(corpus) if corpus.sparse else dense_directions(corpus)


def planted_part(corpus: Planted, part: int) -> BagBlock:
    """Return the bags of one part, with the label of every row."""
    rng = np.random.Generator(np.random.SFC64([corpus.seed, PARTS, part]))
    first = part * corpus.bags_per_part
    bags = np.arange(first, min(first + corpus.bags_per_part, corpus.n_bags))
    low, high = corpus.rows_per_bag
    sizes = rng.integers(low, high + 1, len(bags))
    label_offsets, labels = _draw_labels(corpus, bags, sizes, rng)
    row_labels = _draw_row_labels(corpus, from_sizes(sizes), label_offsets, labels, rng)
    concepts = rng.integers(corpus.subconcepts, size=len(row_labels))
    draw = _sparse_rows if corpus.sparse else _dense_rows
    return BagBlock(
        bag_offsets=from_sizes(sizes),
        rows=draw(corpus, row_labels, concepts, rng),
        label_offsets=label_offsets,
        label_indices=_sorted_within(label_offsets, labels),
        row_labels=row_labels,
    )


def _draw_labels(
    corpus: Planted, bags: I64, sizes: I64, rng: np.random.Generator
) -> tuple[I64, NDArray[np.int32]]:
    """Draw the labels of bags, in random order within a bag; return offsets and labels."""
    low, high = corpus.labels_per_bag
    counts = np.minimum(rng.integers(low, high + 1, len(bags)), sizes)
    if corpus.order == "by-label":
        leading = bags * corpus.n_labels // corpus.n_bags
        grid = (leading[:, None] + np.arange(high)) % corpus.n_labels
    else:
        grid = rng.permuted(distinct(corpus.n_labels, high, len(bags), rng), axis=1)
    return from_sizes(counts), grid[np.arange(high) < counts[:, None]].astype(np.int32)


def distinct(limit: int, count: int, n_sets: int, rng: np.random.Generator) -> I64:
    """Draw sets of ``count`` different numbers below ``limit``, as (sets, count).

    This is Floyd's sampling: all sets are equally likely, but the order in a set is not random.
    """
    out = np.empty((n_sets, count), np.int64)
    for column, top in enumerate(range(limit - count, limit)):
        drawn = rng.integers(0, top + 1, n_sets)
        taken = (out[:, :column] == drawn[:, None]).any(axis=1)
        out[:, column] = np.where(taken, top, drawn)
    return out


def _draw_row_labels(
    corpus: Planted,
    bag_offsets: I64,
    label_offsets: I64,
    labels: NDArray[np.int32],
    rng: np.random.Generator,
) -> NDArray[np.int32]:
    """Draw the label of each row, −1 for none; every label of a bag gets at least one row."""
    sizes, counts = np.diff(bag_offsets), np.diff(label_offsets)
    bag = np.repeat(np.arange(len(sizes)), sizes)
    row_in_bag = np.arange(len(bag)) - bag_offsets[bag]
    drawn = (rng.random(len(bag)) * counts[bag]).astype(np.int64)
    choice = np.where(row_in_bag < counts[bag], row_in_bag, drawn)
    is_background = (row_in_bag >= counts[bag]) & (rng.random(len(bag)) < corpus.background)
    has_no_label = is_background | (counts[bag] == 0)
    padded = np.append(labels, np.int32(-1))
    row_labels = np.where(
        has_no_label, np.int32(-1), padded[np.minimum(label_offsets[bag] + choice, len(labels))]
    )
    # Shuffle within bags, so that the position of a row does not reveal its label.
    return row_labels[np.lexsort((rng.random(len(bag)), bag))]


def _sorted_within(offsets: I64, labels: NDArray[np.int32]) -> NDArray[np.int32]:
    bag = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return labels[np.lexsort((labels, bag))]


def _dense_rows(
    corpus: Planted, row_labels: NDArray[np.int32], concepts: I64, rng: np.random.Generator
) -> NDArray[Any]:
    width = corpus.n_features
    rows = np.empty((len(row_labels), width), corpus.dtype)
    directions = _directions(corpus).reshape(-1, width)
    which = row_labels.astype(np.int64) * corpus.subconcepts + concepts
    # Entries of a direction are about 1 / √d, too small for integers; ``entry`` scales them up.
    middle, entry = INTEGERS.get(corpus.dtype, (0, 0))
    tile_rows = max(1, TILE_BYTES // (4 * width))
    noise = np.empty((tile_rows, width), np.float32)
    for start in range(0, len(rows), tile_rows):
        stop = min(start + tile_rows, len(rows))
        tile = noise[: stop - start]
        # Uniform numbers are drawn four times as fast as normal numbers, and serve as well.
        rng.random(dtype=np.float32, out=tile)
        tile -= np.float32(0.5)
        tile *= np.float32(np.sqrt(12 / width) * corpus.noise)
        labelled = np.flatnonzero(row_labels[start:stop] >= 0)
        tile[labelled] += directions[which[start + labelled]]
        if entry:
            limits = np.iinfo(corpus.dtype)
            tile *= np.float32(entry * np.sqrt(width))
            tile += np.float32(middle)
            np.rint(tile, out=tile)
            np.maximum(tile, np.float32(limits.min), out=tile)
            np.minimum(tile, np.float32(limits.max), out=tile)
        rows[start:stop] = tile
    return rows


def _sparse_rows(
    corpus: Planted, row_labels: NDArray[np.int32], concepts: I64, rng: np.random.Generator
) -> SparseRows:
    """Draw features of each row's direction, and noise, in which low features are more frequent."""
    shape = (len(row_labels), corpus.nonzeros)
    columns = (corpus.n_features * rng.random(shape, np.float32) ** 2).astype(np.int64)
    np.minimum(columns, corpus.n_features - 1, out=columns)
    directions = _directions(corpus)
    own_columns = directions[row_labels, concepts]
    chosen = np.take_along_axis(own_columns, rng.integers(corpus.nonzeros, size=shape), axis=1)
    is_own = rng.random(shape, np.float32) < 1 / (1 + corpus.noise)
    is_own &= row_labels[:, None] >= 0
    columns = np.sort(np.where(is_own, chosen, columns), axis=1)
    is_first = np.ones(shape, bool)
    is_first[:, 1:] = columns[:, 1:] != columns[:, :-1]
    amounts = rng.random(shape, np.float32) + np.float32(0.5)
    if corpus.dtype in INTEGERS:
        amounts = np.ceil(amounts * 2)
    return SparseRows(
        from_sizes(is_first.sum(axis=1)),
        columns[is_first].astype(np.uint32),
        amounts[is_first].astype(corpus.dtype),
        corpus.n_features,
    )


def write_corpus(
    path: str | os.PathLike[str],
    *,
    workers: int | None = None,
    codec: str = "auto",
    **settings: Any,
) -> BagStore:
    """Write a planted corpus to a store, in this process or in ``workers`` processes.

    ``settings`` are the fields of :class:`Planted`. The bytes of the store do not depend on
    ``workers``. The same call again resumes a store that was begun before.
    """
    corpus = Planted(**settings)
    spec = StoreSpec(**{**asdict(corpus.spec), "codec": codec})
    with BagWriter.begin(path, spec, source=f"synth {corpus}") as writer:
        missing = (part for part in range(corpus.n_parts) if not writer.has_part(part))
        if workers is None:
            for part in missing:
                writer.write_part(part, planted_part(corpus, part))
        else:
            with open_pool(PoolOptions(workers=workers)) as pool:
                for _ in pool.map(_write_part, missing, os.fspath(path), pool.share(corpus)):
                    writer.absorb()
        return writer.finish(corpus.n_parts)


def _write_part(part: int, path: str, corpus: Planted) -> None:
    with BagWriter.join(path) as writer:
        writer.write_part(part, planted_part(corpus, part))


def synth(
    store: Path,
    /,
    corpus: Annotated[Planted, Parameter(name="*")] = Planted(),  # noqa: B008  it is frozen
    *,
    codec: str = "auto",
    workers: int | None = None,
) -> None:
    """Write a random corpus with a planted model to STORE.

    Parameters
    ----------
    store
        Store to write; its suffix, .zarr or .parquet, decides the backend.
    corpus
        Settings of the corpus.
    codec
        ``none``, ``lz4`` or ``zstd``.
    workers
        Number of processes that write parts; by default this process writes them.
    """
    written = write_corpus(store, workers=workers, codec=codec, **asdict(corpus))
    print(
        f"{written.name}: {written.n_bags:,} bags, {written.n_rows:,} rows, {corpus.n_parts} parts"
    )
