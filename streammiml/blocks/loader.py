"""``stream``: the bags of a store in mixed batches, for training any model on them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.blocks.budget import Budget, fit
from streammiml.blocks.stream import BagStream, Batch, LeaveOut
from streammiml.config import TrainConfig, check_whole
from streammiml.errors import StreammimlError

I64 = NDArray[np.int64]
StoreLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Bags


@dataclass(frozen=True, slots=True, eq=False)
class BagBatch:
    """Some bags of an epoch; bag i owns rows ``offsets[i]`` to ``offsets[i + 1]``.

    The arrays stay valid as long as they are referenced.
    """

    rows: NDArray[Any] | SparseRows
    """Rows of all bags (rows, features), in the store's dtype."""
    offsets: I64
    """Bounds of the bags in ``rows``; one more than bags, beginning with 0."""
    label_offsets: I64
    """Bounds of the bags in ``label_indices``."""
    label_indices: NDArray[np.int32]
    """Labels of all bags."""
    bag_numbers: I64
    """Numbers of the bags in the store."""
    epoch: int
    place: int
    """Place of the first bag in the epoch."""

    def __len__(self) -> int:
        return len(self.bag_numbers)


def stream(
    store: StoreLike,
    *,
    seed: int = 0,
    memory: str = "1GiB",
    order: str = "blocks",
    mix_blocks: int | None = None,
    block_bags: int | None = None,
    max_vif: float | None = None,
    batch_bags: int | None = None,
    leave_out: ArrayLike | None = None,
    replica: int = 0,
    replicas: int = 1,
    epoch: int = 0,
) -> BagLoader:
    """Stream the bags of a store in mixed batches, reading ahead within ``memory``.

    Iterating gives the batches of one epoch, and iterating again those of the next. The order
    depends on the store and the settings alone, so a loader with the same settings can go on from
    any ``state_dict``. Every byte is checked; a damaged file raises StoreError, naming the file.

    Parameters
    ----------
    store
        Path or URL of a store, several, or an open store or view.
    seed
        Seed of the order.
    memory
        Upper limit for what reading holds: blocks that are mixed, read-ahead, the next batch.
    order
        ``blocks`` mixes blocks of neighbouring bags, ``full`` is a permutation of single bags,
        ``uniform`` draws bags with replacement.
    mix_blocks
        Number of blocks that are mixed at any time; by default 512, or as many as fit.
    block_bags
        Number of bags in a block; by default a block has about 256 KiB.
    max_vif
        Mix so many blocks that :attr:`BagLoader.vif` is at most this.
    batch_bags
        Number of bags in a batch, fewer in the last batch of an epoch; by default a batch has some
        megabytes.
    leave_out
        Numbers of bags that are not delivered.
    replica, replicas
        Deliver only the share of one of several replicas. If all replicas have the same settings,
        every bag is in one share of an epoch, unless the order is ``uniform``.
    epoch
        First epoch.

    Examples
    --------
    >>> with sm.stream("corpus.zarr", batch_bags=64) as bags:
    ...     n_bags = sum(len(batch) for batch in bags)
    >>> n_bags
    500
    """
    opened = open_bags(store)
    check_whole("replicas", replicas, 1)
    check_whole("replica", replica, 0, replicas - 1)
    check_whole("epoch", epoch, 0)
    if batch_bags is not None:
        check_whole("batch_bags", batch_bags, 1)
    if opened.n_bags == 0:
        raise StreammimlError(f"{opened.name} has no bags to stream")
    config = TrainConfig(
        seed=seed,
        memory=memory,
        order=order,
        mix_blocks=mix_blocks,
        block_bags=block_bags,
        max_vif=max_vif,
    )
    left_out = None if leave_out is None else _mask(opened, leave_out)
    fixed = {} if left_out is None else {"left-out bags": opened.n_bags}
    budget = fit(
        opened,
        config,
        fixed,
        replicas=replicas,
        exact=order == "blocks",
        exact_bags=batch_bags,
        subject="streaming",
    )
    plan = replace(budget.plan, replica=replica)
    budget = replace(budget, plan=plan)
    n_shares = plan.n_blocks_of_store if order == "blocks" else opened.n_bags
    if replicas > n_shares:
        unit = f"blocks of {plan.block_bags} bags" if order == "blocks" else "bags"
        raise StreammimlError(
            f"{opened.name} has {n_shares} {unit}, too few for {replicas} replicas; lower "
            "replicas, or block_bags"
        )
    n_bags = batch_bags or budget.read.exact_bags or budget.read.batch_bags
    return BagLoader(opened, budget, n_bags, left_out, epoch)


def open_bags(store: StoreLike) -> Bags:
    """Open a store or several; bags that are open stay as they are."""
    return store if isinstance(store, Bags) else open_store(store)


def _mask(store: Bags, leave_out: ArrayLike) -> NDArray[np.bool_]:
    """Turn numbers of bags into a mask; refuse numbers that the store does not have."""
    numbers = np.asarray(leave_out)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise StreammimlError(f"leave_out must hold whole numbers of bags, got {numbers.dtype}")
    mask = np.zeros(store.n_bags, bool)
    if numbers.size:
        if numbers.min() < 0 or numbers.max() >= store.n_bags:
            raise StreammimlError(
                f"leave_out has bags {numbers.min()} to {numbers.max()}; {store.name} has bags 0 "
                f"to {store.n_bags - 1}"
            )
        mask[numbers] = True
    return mask


class BagLoader:
    """Iterable of :class:`BagBatch`; leaving the context ends the reading threads.

    An iteration delivers the rest of the current epoch. If it is left early, the next iteration
    goes on with the next batch.
    """

    def __init__(
        self,
        store: Bags,
        budget: Budget,
        batch_bags: int,
        left_out: NDArray[np.bool_] | None,
        epoch: int,
    ) -> None:
        self._store, self._budget, self.batch_bags = store, budget, batch_bags
        self._left_out = left_out
        self.epoch = epoch
        """Epoch of the next batch."""
        self._place = self._n_delivered = 0
        self._n_bags = self._count(epoch)
        self._stream: BagStream | None = None
        self._pieces: list[Batch] = []
        """Batches of the stream that wait to be delivered; the first may be partly delivered."""
        self._is_closed = False

    @property
    def vif(self) -> float:
        """How unevenly labels are mixed in the worst case, a store sorted by label.

        This is the variance of the label counts of 256 successive bags, divided by the variance
        that a full shuffle would give.
        """
        return self._budget.plan.vif

    @property
    def held(self) -> dict[str, int]:
        """Bytes that reading holds at most, by what they are held for."""
        return dict(self._budget.held)

    def __len__(self) -> int:
        """Number of batches in the rest of the current epoch."""
        return -(-(self._n_bags - self._n_delivered) // self.batch_bags)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_stream", None) is not None:
            self._drop_stream()

    def close(self) -> None:
        """End the reading threads; the loader cannot be used any more."""
        self._is_closed = True
        self._drop_stream()

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream, self._pieces = None, []

    def __iter__(self) -> Iterator[BagBatch]:
        epoch = self.epoch
        while self.epoch == epoch:
            batch = self._next()
            if batch is None:
                return
            yield batch
            # Otherwise the last batch would be held while the next one is made.
            del batch

    def _next(self) -> BagBatch | None:
        """Read the next batch and move behind it; None if the epoch has no bag left."""
        if self._is_closed:
            raise StreammimlError("the stream is closed; call sm.stream again")
        n_left = self._n_bags - self._n_delivered
        if n_left == 0:
            self._begin_epoch(self.epoch + 1)
            return None
        try:
            batch, end = self._collect(min(self.batch_bags, n_left))
        except BaseException:
            # The next iteration opens the stream again, at the same place.
            self._drop_stream()
            raise
        if n_left > len(batch):
            self._place, self._n_delivered = end, self._n_delivered + len(batch)
        else:
            self._begin_epoch(self.epoch + 1)
        return batch

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch, self._place, self._n_delivered = epoch, 0, 0
        self._n_bags = self._count(epoch)

    def _collect(self, n_bags: int) -> tuple[BagBatch, int]:
        """Take ``n_bags`` from the stream; also returns the place behind the last of them."""
        if self._stream is None:
            self._stream = BagStream(
                self._store,
                self._budget.plan,
                epoch=self.epoch,
                place=self._place,
                read=self._budget.read,
                leave_out=_leaver(self._left_out),
            )
            self._batches = iter(self._stream)
        n_waiting = sum(len(piece.numbers) for piece in self._pieces)
        while n_waiting < n_bags:
            self._pieces.append(next(self._batches))
            n_waiting += len(self._pieces[-1].numbers)
        parts, n_missing = [], n_bags
        while n_missing:
            piece = self._pieces.pop(0)
            if len(piece.numbers) > n_missing:
                self._pieces.insert(0, _cut(piece, n_missing, len(piece.numbers)))
                piece = _cut(piece, 0, n_missing)
            parts.append(piece)
            n_missing -= len(piece.numbers)
        if parts[-1].epoch != self.epoch:
            raise StreammimlError(
                f"the state is damaged: epoch {self.epoch} has fewer bags after place {self._place}"
            )
        # Bags in memory are copied: a batch that its owner changes must not change the store.
        is_shared = self._store.at_hand() is not None
        block = BagBlock.join([_visited(part, copied=is_shared) for part in parts])
        batch = BagBatch(
            rows=block.rows,
            offsets=block.bag_offsets,
            label_offsets=block.label_offsets,
            label_indices=block.label_indices,
            bag_numbers=_joined([part.numbers for part in parts]),
            epoch=self.epoch,
            place=int(parts[0].places[0]),
        )
        return batch, int(parts[-1].places[-1]) + 1

    def _count(self, epoch: int) -> int:
        """Number of bags that an epoch delivers."""
        plan, left_out = self._budget.plan, self._left_out
        if left_out is None:
            return plan.n_places(epoch)
        if plan.replicas == 1 and plan.order != "uniform":
            return plan.n_bags - int(np.count_nonzero(left_out))
        return sum(int(np.count_nonzero(~left_out[bags])) for bags in plan.bags_in(epoch))

    def _settings(self) -> dict[str, Any]:
        """Everything that decides about the order, and so must be equal to go on."""
        plan, left_out = self._budget.plan, self._left_out
        return {
            "fingerprint": self._store.fingerprint,
            "seed": plan.seed,
            "order": plan.order,
            "block_bags": plan.block_bags,
            "mix_blocks": plan.mix_blocks,
            "batch_bags": self.batch_bags,
            "leave_out": None if left_out is None else zlib.crc32(np.packbits(left_out).tobytes()),
            "replica": plan.replica,
            "replicas": plan.replicas,
        }

    def state_dict(self) -> dict[str, Any]:
        """Position behind the last delivered batch, as plain JSON values."""
        position = {"epoch": self.epoch, "place": self._place, "delivered": self._n_delivered}
        return {**self._settings(), **position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position that :meth:`state_dict` returned, maybe in another process.

        The store and the settings must be those of the state. ``memory`` may differ if the numbers
        that it decides (``block_bags``, ``mix_blocks``, ``batch_bags``) are given.
        """
        if not isinstance(state, dict):
            raise StreammimlError(f"this is no state of a stream: {state!r}")
        for name, value in self._settings().items():
            if name not in state:
                raise StreammimlError(f"this is no state of a stream: it has no {name!r}")
            if state[name] != value:
                what = "store" if name == "fingerprint" else name
                raise StreammimlError(
                    f"the state belongs to another {what}: {state[name]!r}, this stream has "
                    f"{value!r}; open the stream with the {what} of the state"
                )
        epoch, place, n_delivered = (
            _whole(f"{name} of the state", state.get(name))
            for name in ("epoch", "place", "delivered")
        )
        n_bags, n_places = self._count(epoch), self._budget.plan.n_places(epoch)
        is_exact = self._left_out is not None or place == n_delivered
        begins = place == n_delivered == 0
        fits = n_delivered <= place < n_places and n_delivered < n_bags and is_exact
        if not (begins or fits):
            raise StreammimlError(
                f"the state is damaged: {n_delivered} bags cannot be delivered at place {place} of "
                f"an epoch of {n_bags} bags"
            )
        self._drop_stream()
        self.epoch, self._place, self._n_delivered, self._n_bags = epoch, place, n_delivered, n_bags


def _whole(name: str, value: Any) -> int:
    check_whole(name, value, 0)
    return int(value)


def _leaver(left_out: NDArray[np.bool_] | None) -> LeaveOut | None:
    """Function for the stream; it must not refer to the loader, which it would keep alive."""
    return None if left_out is None else lambda _, bags: left_out[bags]


def _joined(arrays: Sequence[I64]) -> I64:
    """Concatenate arrays; a single array is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _cut(batch: Batch, start: int, stop: int) -> Batch:
    """Visits ``start`` to ``stop`` of a batch."""
    at = slice(start, stop)
    return Batch(batch.epoch, batch.bags, batch.visit[at], batch.numbers[at], batch.places[at])


def _visited(batch: Batch, *, copied: bool) -> BagBlock:
    """Bags in the order of their visit.

    Bags of a store on disk lie in that order; others are ``copied``.
    """
    visit, bags = batch.visit, batch.bags
    if copied:
        bags = bags.take(visit)
    elif len(visit) < len(bags):
        first = int(visit[0])
        bags = bags.slice(first, first + len(visit))
    return BagBlock(bags.bag_offsets, bags.rows, bags.label_offsets, bags.label_indices)
