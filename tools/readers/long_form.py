"""Long form, in text or tables: one record for each row; the rows of a bag are consecutive.

A piece of the source is read as a block in which each run of one id is a bag. The first run may
have begun in the piece before, and the last run may continue in the next piece. ``whole_bags``
joins the runs of all pieces to complete bags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml_tools.readers.base import Limits, SourceError
from streammiml_tools.readers.memory_checks import ID_BYTES, HeldBytes, check_bag

I64 = NDArray[np.int64]


class RowRun(NamedTuple):
    """A piece of at least one row, as a block with a bag for each run of one id."""

    block: BagBlock
    locate: Callable[[int], str]
    """Returns the position of a row of the block in the source, as the beginning of a message."""

    @property
    def ids(self) -> list[str]:
        """Ids of the runs."""
        assert self.block.bag_ids is not None
        return self.block.bag_ids

    def after(self, n_bags: int) -> RowRun:
        """The piece without its first ``n_bags`` runs."""
        shift = int(self.block.bag_offsets[n_bags])
        block = self.block.slice(n_bags, len(self.block))
        return RowRun(block, lambda row: self.locate(row + shift))


def run_starts(changes: NDArray[np.bool_]) -> I64:
    """Offsets of runs; ``changes`` tells, from the second row on, whether a row has a new id."""
    inner = np.flatnonzero(changes) + 1
    return np.concatenate([[0], inner, [len(changes) + 1]]).astype(np.int64)


def whole_bags(
    owned: Iterable[RowRun],
    beyond: Callable[[], Iterable[RowRun]],
    before: str | None,
    *,
    group: bool = False,
    where: str = "",
    limits: Limits | None = None,
) -> Iterator[BagBlock]:
    """Yield the bags whose first row is in ``owned``.

    The last bag may end in the pieces of ``beyond``. ``before`` is the id of the row before the
    first: the first rows with this id belong to the previous span. With ``group``, a bag may occur
    again; it is then yielded again, and the converter joins the parts. A bag, or ids, that need
    more memory than ``limits`` are refused; ``where`` names the source in the message.
    """
    seen: set[str] = set()
    open_bag: list[BagBlock] = []
    held = None if limits is None else HeldBytes(where, "ids of bags", limits)
    for piece in owned:
        if before is not None and piece.ids[0] == before:
            piece = piece.after(1)
            if not len(piece.block):
                continue
        before = None
        piece = _continued(open_bag, piece)
        _check_open(open_bag, where, limits)
        if not len(piece.block):
            continue
        if not group:
            _refuse_returning(piece, seen)
            if held is not None:
                held.add(sum(ID_BYTES + len(name) for name in piece.ids))
        *complete, last = (
            _closed(open_bag),
            piece.block.slice(len(piece.block) - 1, len(piece.block)),
        )
        complete += [piece.block.slice(0, len(piece.block) - 1)]
        if any(len(block) for block in complete):
            yield BagBlock.join([block for block in complete if len(block)])
        open_bag = [last]
    if not open_bag:
        return
    for piece in beyond():
        rest = _continued(open_bag, piece)
        _check_open(open_bag, where, limits)
        if len(rest.block):
            break
    yield _closed(open_bag)


def _continued(open_bag: list[BagBlock], piece: RowRun) -> RowRun:
    """Add the first run to the open bag if the ids agree; return the rest of the piece."""
    if not open_bag or open_bag[0].bag_ids != piece.ids[:1]:
        return piece
    if not np.array_equal(open_bag[0].label_indices, piece.block.labels_of(0)):
        raise other_labels(piece.locate(0), piece.ids[0])
    open_bag.append(piece.block.slice(0, 1))
    return piece.after(1)


def _check_open(open_bag: list[BagBlock], where: str, limits: Limits | None) -> None:
    """Refuse an open bag that grows beyond the memory that is allowed."""
    if limits is not None and len(open_bag) > 1:
        name = (open_bag[0].bag_ids or [""])[0]
        n_bytes = sum(block.nbytes for block in open_bag)
        check_bag(f"{where}, bag {name[:40]!r}", n_bytes, limits)


def _closed(open_bag: list[BagBlock]) -> BagBlock:
    """Join the pieces of one bag; an empty block if there are none."""
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


def _refuse_returning(piece: RowRun, seen: set[str]) -> None:
    for bag, name in enumerate(piece.ids):
        if name in seen:
            row = int(piece.block.bag_offsets[bag])
            raise SourceError(
                f"{piece.locate(row)}: bag {name!r} returns after other bags; "
                "--group joins the rows of a bag",
                page="convert",
            )
        seen.add(name)


def other_labels(where: str, bag: str) -> SourceError:
    """The error for rows of one bag with different labels."""
    return SourceError(
        f"{where}: bag {bag!r} has other labels here than in its row before; "
        "all rows of a bag must repeat its labels"
    )
