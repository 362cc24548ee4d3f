"""Long form: a record a row, the rows of a bag one after the other, in text or in tables.

A piece of such a source is read as a block in which each run of one id is a bag. The first and the
last run may go on in the pieces before and after; here runs become whole bags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml_tools.readers.base import SourceError

I64 = NDArray[np.int64]


class Piece(NamedTuple):
    """Consecutive rows, a bag for each run of one id; at least one."""

    block: BagBlock
    locate: Callable[[int], str]
    """Where a row of the block stands in the source: how a message begins."""

    @property
    def ids(self) -> list[str]:
        """Ids of its runs."""
        assert self.block.bag_ids is not None
        return self.block.bag_ids

    def after(self, n_bags: int) -> Piece:
        """The piece without its first runs."""
        shift = int(self.block.bag_offsets[n_bags])
        block = self.block.slice(n_bags, len(self.block))
        return Piece(block, lambda row: self.locate(row + shift))


def run_starts(changes: NDArray[np.bool_]) -> I64:
    """Offsets of runs, given for each row but the first whether it differs from the one before."""
    inner = np.flatnonzero(changes) + 1
    return np.concatenate([[0], inner, [len(changes) + 1]]).astype(np.int64)


def whole_bags(
    owned: Iterable[Piece],
    beyond: Callable[[], Iterable[Piece]],
    before: str | None,
    *,
    group: bool = False,
) -> Iterator[BagBlock]:
    """Bags whose first row is in ``owned``; the last of them may end in what ``beyond`` gives.

    ``before`` is the id of the row before the first one: its bag belongs to the span before.
    ``group``: a bag may return, and then comes again; the converter joins what it gives.
    """
    seen: set[str] = set()
    open_bag: list[BagBlock] = []
    for piece in owned:
        if before is not None and piece.ids[0] == before:
            piece = piece.after(1)
            if not len(piece.block):
                continue
        before = None
        piece = _continued(open_bag, piece)
        if not len(piece.block):
            continue
        if not group:
            _refuse_returning(piece, seen)
        *whole, last = _closed(open_bag), piece.block.slice(len(piece.block) - 1, len(piece.block))
        whole += [piece.block.slice(0, len(piece.block) - 1)]
        if any(len(block) for block in whole):
            yield BagBlock.join([block for block in whole if len(block)])
        open_bag = [last]
    if not open_bag:
        return
    for piece in beyond():
        rest = _continued(open_bag, piece)
        if len(rest.block):
            break
    yield _closed(open_bag)


def _continued(open_bag: list[BagBlock], piece: Piece) -> Piece:
    """Add the first run to the open bag if it is its; what is left of the piece."""
    if not open_bag or open_bag[0].bag_ids != piece.ids[:1]:
        return piece
    if not np.array_equal(open_bag[0].label_indices, piece.block.labels_of(0)):
        raise other_labels(piece.locate(0), piece.ids[0])
    open_bag.append(piece.block.slice(0, 1))
    return piece.after(1)


def _closed(open_bag: list[BagBlock]) -> BagBlock:
    """The pieces of one bag as a bag; an empty block if there is none."""
    if len(open_bag) < 2:
        return open_bag[0] if open_bag else EMPTY
    rows = BagBlock.join(open_bag)
    first = open_bag[0]
    return replace(
        rows,
        bag_offsets=rows.bag_offsets[[0, -1]],
        label_offsets=first.label_offsets,
        label_indices=first.label_indices,
        bag_ids=first.bag_ids,
    )


EMPTY = BagBlock(
    np.zeros(1, np.int64), np.empty((0, 0)), np.zeros(1, np.int64), np.empty(0, np.int32)
)


def _refuse_returning(piece: Piece, seen: set[str]) -> None:
    for bag, name in enumerate(piece.ids):
        if name in seen:
            row = int(piece.block.bag_offsets[bag])
            raise SourceError(
                f"{piece.locate(row)}: bag {name!r} returns after other bags; "
                "--group brings the rows of a bag together"
            )
        seen.add(name)


def other_labels(where: str, bag: str) -> SourceError:
    """The refusal of rows of one bag that disagree."""
    return SourceError(
        f"{where}: bag {bag!r} has other labels here than in its row before; "
        "all rows of a bag must repeat its labels"
    )
