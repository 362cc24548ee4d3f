"""``BagBlock``: bags in memory with their rows and labels, as readers hand them to kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags import kept_columns
from streammiml.bags.kept_columns import Kept
from streammiml.bags.offsets import from_sizes, gather
from streammiml.errors import StreammimlError

I64 = NDArray[np.int64]


def _int32(labels: Sequence[int]) -> NDArray[np.int32]:
    """Convert labels to int32 if all fit; otherwise keep them for the writer to refuse."""
    numbers = np.array(labels)
    fits = not len(numbers) or (
        numbers.dtype.kind in "iu" and numbers.min() >= -(2**31) and numbers.max() < 2**31
    )
    return numbers.astype(np.int32) if fits else numbers


def check_shapes(bags: Sequence[Any]) -> None:
    """Refuse bags unless all have the shape (rows, features) with the same number of features."""
    first: tuple[int, ...] = np.shape(bags[0]) if len(bags) else ()
    for number, bag in enumerate(bags):
        shape = np.shape(bag)
        if len(shape) != 2 or shape[1] != first[1]:
            raise StreammimlError(
                f"bag {number} has shape {shape}, expected (rows, "
                f"{first[1] if len(first) == 2 else 'features'})"
            )


class _Bag(NamedTuple):
    rows: NDArray[Any]
    """Rows as a dense array (rows, features)."""
    labels: NDArray[np.int32]
    """Numbers of the labels that the bag carries."""
    id: str


class Bag(_Bag):
    """One bag of a store: a tuple of three, with the values of kept columns beside it."""

    kept: Kept
    """Values of kept columns by name, each with one item for each row."""

    def __new__(
        cls, rows: NDArray[Any], labels: NDArray[np.int32], id: str, kept: Kept | None = None
    ) -> Bag:
        """Make a bag; ``rows, labels, id = bag`` takes it apart."""
        bag = super().__new__(cls, rows, labels, id)
        bag.kept = {} if kept is None else kept
        return bag


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """Rows without their zeros: row i owns values ``offsets[i]`` to ``offsets[i + 1]``."""

    offsets: I64
    columns: NDArray[np.uint32]
    values: NDArray[Any]
    n_features: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, start: int, stop: int) -> SparseRows:
        """Rows ``start`` to ``stop``; they share memory with this object."""
        offsets = self.offsets[start : stop + 1]
        part = slice(offsets[0], offsets[-1])
        return replace(
            self,
            offsets=offsets - offsets[0],
            columns=self.columns[part],
            values=self.values[part],
        )

    def take(self, rows: I64) -> SparseRows:
        """Copy these rows, in this order."""
        offsets, chosen = gather(self.offsets, rows)
        return replace(
            self, offsets=offsets, columns=self.columns[chosen], values=self.values[chosen]
        )

    @classmethod
    def join(cls, parts: Sequence[SparseRows]) -> SparseRows:
        """Join at least one part; rows keep their order."""
        return cls(
            from_sizes(np.concatenate([np.diff(part.offsets) for part in parts])),
            np.concatenate([part.columns for part in parts]),
            np.concatenate([part.values for part in parts]),
            parts[0].n_features,
        )

    def dense(self) -> NDArray[Any]:
        """Dense array (rows, features), zeros included."""
        out = np.zeros((len(self), self.n_features), self.values.dtype)
        out[np.repeat(np.arange(len(self)), np.diff(self.offsets)), self.columns] = self.values
        return out


@dataclass(frozen=True, slots=True, eq=False)
class BagBlock:
    """Bags with rows and labels; bag i owns rows ``bag_offsets[i]`` to ``bag_offsets[i + 1]``.

    Offsets begin at 0. ``rows`` is an array (rows, features) or :class:`SparseRows`. Labels of a
    bag are sorted; ``row_labels`` has −1 where unknown.
    """

    bag_offsets: I64
    rows: NDArray[Any] | SparseRows
    label_offsets: I64
    label_indices: NDArray[np.int32]
    row_labels: NDArray[np.int32] | None = None
    bag_ids: list[str] | None = None
    kept: Kept = field(default_factory=dict)
    """Values of kept columns by name; see ``kept_columns.py``."""

    def __len__(self) -> int:
        return len(self.bag_offsets) - 1

    @property
    def n_rows(self) -> int:
        """Number of rows of all bags."""
        return int(self.bag_offsets[-1])

    @property
    def n_features(self) -> int:
        """Number of features of a row."""
        rows = self.rows
        return rows.n_features if isinstance(rows, SparseRows) else int(rows.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays; bag ids are not counted."""
        rows = self.rows
        arrays: list[NDArray[Any]] = [rows] if not isinstance(rows, SparseRows) else []
        if isinstance(rows, SparseRows):
            arrays += [rows.offsets, rows.columns, rows.values]
        arrays += [self.bag_offsets, self.label_offsets, self.label_indices]
        arrays += [] if self.row_labels is None else [self.row_labels]
        kept = sum(map(kept_columns.n_bytes, self.kept.values()))
        return sum(array.nbytes for array in arrays) + kept

    @property
    def top_label(self) -> int:
        """Highest label of bags and rows; −1 if there is none."""
        labels = [self.label_indices] + ([] if self.row_labels is None else [self.row_labels])
        return max(int(array.max(initial=-1)) for array in labels)

    def labels_of(self, bag: int) -> NDArray[np.int32]:
        """Labels of one bag."""
        return self.label_indices[self.label_offsets[bag] : self.label_offsets[bag + 1]]

    def rows_of(self, bag: int) -> NDArray[Any]:
        """Rows of one bag as a dense array (rows, features)."""
        start, stop = int(self.bag_offsets[bag]), int(self.bag_offsets[bag + 1])
        if isinstance(self.rows, SparseRows):
            return self.rows.slice(start, stop).dense()
        return self.rows[start:stop]

    def kept_of(self, bag: int) -> Kept:
        """Values of kept columns for the rows of one bag."""
        own = slice(int(self.bag_offsets[bag]), int(self.bag_offsets[bag + 1]))
        return {name: values[own] for name, values in self.kept.items()}

    def slice(self, start: int, stop: int) -> BagBlock:
        """Bags ``start`` to ``stop``; they share memory with this block."""
        bags = self.bag_offsets[start : stop + 1]
        labels = self.label_offsets[start : stop + 1]
        first, last = int(bags[0]), int(bags[-1])
        rows = self.rows
        return BagBlock(
            bag_offsets=bags - first,
            rows=rows.slice(first, last) if isinstance(rows, SparseRows) else rows[first:last],
            label_offsets=labels - labels[0],
            label_indices=self.label_indices[labels[0] : labels[-1]],
            row_labels=None if self.row_labels is None else self.row_labels[first:last],
            bag_ids=None if self.bag_ids is None else self.bag_ids[start:stop],
            kept={name: values[first:last] for name, values in self.kept.items()},
        )

    def take(self, bags: I64) -> BagBlock:
        """Copy these bags, in this order; a bag may be repeated."""
        bag_offsets, rows = gather(self.bag_offsets, bags)
        label_offsets, labels = gather(self.label_offsets, bags)
        taken = self.rows.take(rows) if isinstance(self.rows, SparseRows) else self.rows[rows]
        return BagBlock(
            bag_offsets=bag_offsets,
            rows=taken,
            label_offsets=label_offsets,
            label_indices=self.label_indices[labels],
            row_labels=None if self.row_labels is None else self.row_labels[rows],
            bag_ids=None if self.bag_ids is None else [self.bag_ids[i] for i in bags],
            kept={name: values[rows] for name, values in self.kept.items()},
        )

    @classmethod
    def from_bags(
        cls,
        bags: Sequence[NDArray[Any]],
        labels: Sequence[Sequence[int]],
        *,
        row_labels: Sequence[Sequence[int]] | None = None,
        bag_ids: Sequence[str] | None = None,
    ) -> BagBlock:
        """Join at least one dense bag (rows, features), with the labels of each bag.

        Labels that are not 32-bit integers stay as they are; the writer refuses them.
        """
        if not len(bags):
            raise StreammimlError("there are no bags to join")
        check_shapes(bags)
        return cls(
            bag_offsets=from_sizes([len(bag) for bag in bags]),
            rows=np.concatenate(bags),
            label_offsets=from_sizes([len(bag_labels) for bag_labels in labels]),
            label_indices=_int32([label for bag_labels in labels for label in sorted(bag_labels)]),
            row_labels=None if row_labels is None else _int32([*chain.from_iterable(row_labels)]),
            bag_ids=None if bag_ids is None else list(bag_ids),
        )

    @classmethod
    def join(cls, blocks: Sequence[BagBlock]) -> BagBlock:
        """Join at least one block; all sparse or all dense, with the same optional fields."""
        if len(blocks) == 1:
            return blocks[0]
        rows: NDArray[Any] | SparseRows
        if isinstance(blocks[0].rows, SparseRows):
            parts = [block.rows for block in blocks if isinstance(block.rows, SparseRows)]
            rows = SparseRows.join(parts)
        else:
            rows = np.concatenate([block.rows for block in blocks])
        row_labels = [block.row_labels for block in blocks if block.row_labels is not None]
        ids = [block.bag_ids for block in blocks if block.bag_ids is not None]
        return cls(
            bag_offsets=from_sizes(np.concatenate([np.diff(b.bag_offsets) for b in blocks])),
            rows=rows,
            label_offsets=from_sizes(np.concatenate([np.diff(b.label_offsets) for b in blocks])),
            label_indices=np.concatenate([b.label_indices for b in blocks]),
            row_labels=np.concatenate(row_labels) if row_labels else None,
            bag_ids=[*chain.from_iterable(ids)] if ids else None,
            kept={
                name: np.concatenate([block.kept[name] for block in blocks])
                for name in blocks[0].kept
            },
        )
