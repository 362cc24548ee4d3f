"""``BagBlock``: consecutive bags in memory, the one thing that moves through the pipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.offsets import from_sizes, gather
from streammiml.errors import StreammimlError

I64 = NDArray[np.int64]


def _int32(numbers: Sequence[int]) -> NDArray[np.int32]:
    found = np.array(numbers)
    fits = not len(found) or (
        found.dtype.kind in "iu" and found.min() >= -(2**31) and found.max() < 2**31
    )
    return found.astype(np.int32) if fits else found


def check_shapes(bags: Sequence[Any]) -> None:
    """Refuse bags that are not all (rows, features), of as many features as the first has."""
    first: tuple[int, ...] = np.shape(bags[0]) if len(bags) else ()
    for number, bag in enumerate(bags):
        shape = np.shape(bag)
        if len(shape) != 2 or shape[1] != first[1]:
            raise StreammimlError(
                f"bag {number} has shape {shape}, expected (rows, "
                f"{first[1] if len(first) == 2 else 'features'})"
            )


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """Rows in compressed form; row i owns ``offsets[i]`` to ``offsets[i + 1]``."""

    offsets: I64
    columns: NDArray[np.uint32]
    values: NDArray[Any]
    n_features: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, start: int, stop: int) -> SparseRows:
        """Rows ``start`` to ``stop``, sharing memory."""
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
        offsets, places = gather(self.offsets, rows)
        return replace(
            self, offsets=offsets, columns=self.columns[places], values=self.values[places]
        )

    @classmethod
    def join(cls, parts: Sequence[SparseRows]) -> SparseRows:
        """All rows, in order; at least one part."""
        return cls(
            from_sizes(np.concatenate([np.diff(part.offsets) for part in parts])),
            np.concatenate([part.columns for part in parts]),
            np.concatenate([part.values for part in parts]),
            parts[0].n_features,
        )

    def dense(self) -> NDArray[Any]:
        """All values, zeros included, (rows, features)."""
        out = np.zeros((len(self), self.n_features), self.values.dtype)
        out[np.repeat(np.arange(len(self)), np.diff(self.offsets)), self.columns] = self.values
        return out


@dataclass(frozen=True, slots=True, eq=False)
class BagBlock:
    """Bags with their rows and labels; bag i owns rows ``bag_offsets[i]`` to ``[i + 1]``.

    Offsets begin at 0. ``rows`` is an array (rows, features) or :class:`SparseRows`. Labels of a
    bag are sorted; ``row_labels`` has −1 where unknown.
    """

    bag_offsets: I64
    rows: NDArray[Any] | SparseRows
    label_offsets: I64
    label_indices: NDArray[np.int32]
    row_labels: NDArray[np.int32] | None = None
    bag_ids: list[str] | None = None

    def __len__(self) -> int:
        return len(self.bag_offsets) - 1

    @property
    def n_rows(self) -> int:
        """Rows of all its bags."""
        return int(self.bag_offsets[-1])

    @property
    def n_features(self) -> int:
        """Features of a row."""
        rows = self.rows
        return rows.n_features if isinstance(rows, SparseRows) else int(rows.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes that its arrays hold."""
        rows = self.rows
        held: list[NDArray[Any]] = [rows] if not isinstance(rows, SparseRows) else []
        if isinstance(rows, SparseRows):
            held += [rows.offsets, rows.columns, rows.values]
        held += [self.bag_offsets, self.label_offsets, self.label_indices]
        held += [] if self.row_labels is None else [self.row_labels]
        return sum(array.nbytes for array in held)

    def labels_of(self, bag: int) -> NDArray[np.int32]:
        """Labels of one bag."""
        return self.label_indices[self.label_offsets[bag] : self.label_offsets[bag + 1]]

    def rows_of(self, bag: int) -> NDArray[Any]:
        """Rows of one bag, dense."""
        start, stop = int(self.bag_offsets[bag]), int(self.bag_offsets[bag + 1])
        if isinstance(self.rows, SparseRows):
            return self.rows.slice(start, stop).dense()
        return self.rows[start:stop]

    def slice(self, start: int, stop: int) -> BagBlock:
        """Bags ``start`` to ``stop``, sharing memory."""
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
        )

    def take(self, bags: I64) -> BagBlock:
        """Copy these bags, in this order; a bag may come twice."""
        bag_offsets, rows = gather(self.bag_offsets, bags)
        label_offsets, labels = gather(self.label_offsets, bags)
        kept = self.rows.take(rows) if isinstance(self.rows, SparseRows) else self.rows[rows]
        return BagBlock(
            bag_offsets=bag_offsets,
            rows=kept,
            label_offsets=label_offsets,
            label_indices=self.label_indices[labels],
            row_labels=None if self.row_labels is None else self.row_labels[rows],
            bag_ids=None if self.bag_ids is None else [self.bag_ids[i] for i in bags],
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
        """Join dense bags, at least one, each (rows, features), with the labels of each.

        Labels that are no 32-bit integers stay as they are, for the writer to refuse.
        """
        if not len(bags):
            raise StreammimlError("there are no bags to join")
        check_shapes(bags)
        return cls(
            bag_offsets=from_sizes([len(bag) for bag in bags]),
            rows=np.concatenate(bags),
            label_offsets=from_sizes([len(of) for of in labels]),
            label_indices=_int32([i for of in labels for i in sorted(of)]),
            row_labels=None if row_labels is None else _int32([i for of in row_labels for i in of]),
            bag_ids=None if bag_ids is None else list(bag_ids),
        )

    @classmethod
    def join(cls, blocks: Sequence[BagBlock]) -> BagBlock:
        """One block of all bags, in order; at least one block, all of one kind."""
        if len(blocks) == 1:
            return blocks[0]
        rows: NDArray[Any] | SparseRows
        if isinstance(blocks[0].rows, SparseRows):
            parts = [block.rows for block in blocks if isinstance(block.rows, SparseRows)]
            rows = SparseRows.join(parts)
        else:
            rows = np.concatenate([block.rows for block in blocks])
        known = [block.row_labels for block in blocks if block.row_labels is not None]
        ids = [block.bag_ids for block in blocks if block.bag_ids is not None]
        return cls(
            bag_offsets=from_sizes(np.concatenate([np.diff(b.bag_offsets) for b in blocks])),
            rows=rows,
            label_offsets=from_sizes(np.concatenate([np.diff(b.label_offsets) for b in blocks])),
            label_indices=np.concatenate([b.label_indices for b in blocks]),
            row_labels=np.concatenate(known) if known else None,
            bag_ids=[name for of in ids for name in of] if ids else None,
        )
