"""PyTorch: the bags of a store as a dataset for ``DataLoader``, with any number of workers.

>>> from torch.utils.data import DataLoader
>>> from streammiml.torch import BagDataset
>>> loader = DataLoader(BagDataset("corpus.zarr", batch_bags=64), batch_size=None)
>>> for batch in loader:
...     assert len(batch["offsets"]) == len(batch["targets"]) + 1
>>> batch["rows"].shape[1], batch["targets"].shape[1]
(3, 3)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from streammiml._base.shared_epochs import SharedEpochs
from streammiml.bags.block import SparseRows
from streammiml.bags.views import Bags
from streammiml.blocks.loader import BagBatch, BagLoader, StoreLike, open_bags, stream
from streammiml.config import check_whole, parse_size
from streammiml.errors import StreammimlError, unknown

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
    from torch.utils.data._utils.collate import default_collate_fn_map
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise StreammimlError("streammiml.torch needs torch: pip install 'streammiml[torch]'") from None


class BagTensors(dict[str, Any]):
    """Tensors of a batch by name; a dictionary in all respects."""


def _refuse_to_collate(*_: Any, **__: Any) -> None:
    raise StreammimlError(
        "BagDataset delivers whole batches: give the DataLoader batch_size=None, and BagDataset "
        "batch_bags"
    )


# A DataLoader without batch_size=None would join batches to batches of batches.
default_collate_fn_map[BagTensors] = _refuse_to_collate


def with_offsets(batch: BagBatch) -> BagTensors:
    """Rows of all bags one after the other, and their bounds: ``rows``, ``offsets``."""
    rows = batch.rows.dense() if isinstance(batch.rows, SparseRows) else batch.rows
    return BagTensors(rows=torch.from_numpy(rows), offsets=torch.from_numpy(batch.offsets))


def padded(batch: BagBatch) -> BagTensors:
    """``rows`` (bags, most rows, features), padded with zeros, and ``mask`` of the real rows."""
    flat = with_offsets(batch)["rows"]
    sizes = np.diff(batch.offsets)
    longest = int(sizes.max())
    mask = torch.from_numpy(np.arange(longest) < sizes[:, None])
    rows = flat.new_zeros((len(batch), longest, flat.shape[1]))
    rows[mask] = flat
    return BagTensors(rows=rows, mask=mask)


def nested(batch: BagBatch) -> BagTensors:
    """``rows`` as a nested tensor (bags, rows of the bag, features), jagged in the second one."""
    parts = with_offsets(batch)
    rows = torch.nested.nested_tensor_from_jagged(parts["rows"], parts["offsets"])
    return BagTensors(rows=rows)


LAYOUTS: dict[str, Callable[[BagBatch], BagTensors]] = {
    "offsets": with_offsets,
    "padded": padded,
    "nested": nested,
}


class BagDataset(IterableDataset[BagTensors]):
    """Batches of bags for a ``DataLoader`` with ``batch_size=None``.

    Every loop over the ``DataLoader`` is one epoch: it delivers every bag of the store once, or of
    this rank's share. Blocks of bags are dealt out to the workers. The next loop is the next epoch,
    also after a loop that was left early; :meth:`set_epoch` chooses another one. A loop that
    is left before its first batch may or may not count as an epoch. The order depends on the
    store, the options, and the number of ranks and workers, and not on seeds of PyTorch.

    ``StatefulDataLoader`` of torchdata saves the position of every worker and resumes with the
    next batch; it must have the same number of workers then.

    A batch is a dictionary: ``rows`` with ``offsets`` or ``mask`` as the layout says, ``targets``
    (bags, labels) with 1 for each label that a bag carries, ``bag_numbers`` in the store, and
    ``epoch``.

    Parameters
    ----------
    store
        Path or URL of a store, several, or an open store or view. Sparse rows become dense in each
        batch. A URL needs workers that are not forked: ``multiprocessing_context="spawn"``.
    layout
        ``offsets`` joins all rows, ``padded`` pads bags to one length with a mask, ``nested`` makes
        a nested tensor.
    rank, world_size
        Number of this process, and how many train together. By default those of
        ``torch.distributed``, or 0 and 1 if it is not initialised. Shares of ranks can differ by
        some bags, so ranks may have different numbers of batches.
    memory
        Upper limit for what reading holds in all workers of this process together. Not counted are
        batches that the ``DataLoader`` prefetches and copies that a layout makes: padding, and
        dense rows of a sparse store.
    epoch
        First epoch.
    options
        Options of :func:`streammiml.stream`: ``batch_bags``, ``seed``, ``order``, …

    Examples
    --------
    >>> dataset = BagDataset("corpus.zarr", batch_bags=100, layout="padded")
    >>> [tuple(batch["mask"].shape) for batch in dataset][:2]
    [(100, 4), (100, 4)]
    """

    def __init__(
        self,
        store: StoreLike,
        *,
        layout: str = "offsets",
        rank: int | None = None,
        world_size: int | None = None,
        memory: str = "1GiB",
        epoch: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        if layout not in LAYOUTS:
            raise unknown("layout", layout, LAYOUTS)
        if not {"replica", "replicas"}.isdisjoint(options):
            raise StreammimlError("BagDataset takes rank and world_size, not replica and replicas")
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if world_size is None:
            world_size = torch.distributed.get_world_size() if is_distributed else 1
        if rank is None:
            rank = torch.distributed.get_rank() if is_distributed else 0
        check_whole("world_size", world_size, 1)
        check_whole("rank", rank, 0, world_size - 1)
        check_whole("epoch", epoch, 0)
        self._store = open_bags(store)
        self._layout, self._options = layout, options
        self._rank, self._world_size, self._memory = rank, world_size, parse_size(memory)
        self._epochs = SharedEpochs(epoch)
        self._loaded: dict[str, Any] | None = None
        self._is_loaded_in_worker = False
        self._forget()
        # Wrong options are refused here, not in a worker.
        with self._open(0, 1):
            self._n_labels = self._store.n_labels

    def _forget(self) -> None:
        """Begin without a loop; the store was opened in this process."""
        self._opened_in = os.getpid()
        self._begun: dict[str, Any] | None = None
        self._loader: BagLoader | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("_opened_in", "_begun", "_loader"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the epoch of the next loop; persistent workers follow too.

        A state that was loaded takes precedence.
        """
        check_whole("epoch", epoch, 0)
        self._epochs.set_next(epoch)

    def __iter__(self) -> Iterator[BagTensors]:
        """Batches of the next epoch, or of the rest of the epoch of a loaded state."""
        # The loop begins here and not with the first batch: every worker calls this method once in
        # a loop, but may be shut down before it is asked for a batch.
        info = get_worker_info()
        state, self._loaded = self._loaded, None
        worker = None if info is None else info.id
        wanted = None if state is None else state["epoch"]
        if state is not None and info is not None and not self._is_loaded_in_worker:
            raise StreammimlError(
                "a state was loaded into the dataset, but each worker needs its own: load the "
                "state of a StatefulDataLoader into a StatefulDataLoader, or use num_workers=0"
            )
        epoch = self._epochs.begin(worker, epoch=wanted)
        if wanted not in (None, epoch):
            raise StreammimlError(
                f"the state is damaged: one worker is in epoch {wanted}, another in epoch {epoch}"
            )
        self._begun, self._loader = state or self._beginning(epoch), None
        return self._batches(self._begun)

    def _batches(self, begun: dict[str, Any]) -> Iterator[BagTensors]:
        if begun["finished"]:
            return
        arrange = LAYOUTS[self._layout]
        with self._open(*_worker(), epoch=begun["epoch"]) as loader:
            if begun["stream"] is not None:
                loader.load_state_dict(begun["stream"])
            if self._begun is begun:
                self._loader = loader
            for batch in loader:
                tensors = arrange(batch)
                tensors.update(self._facts(batch))
                yield tensors
                # Otherwise this batch would be held while the next one is made.
                del batch, tensors

    def _facts(self, batch: BagBatch) -> dict[str, Any]:
        targets = torch.zeros((len(batch), self._n_labels))
        bags = np.repeat(np.arange(len(batch)), np.diff(batch.label_offsets))
        targets[torch.from_numpy(bags), torch.from_numpy(batch.label_indices).long()] = 1
        return {
            "targets": targets,
            "bag_numbers": torch.from_numpy(batch.bag_numbers),
            "epoch": batch.epoch,
        }

    def _open(self, worker: int, n_workers: int, *, epoch: int = 0) -> BagLoader:
        bags = self._bags()
        try:
            return stream(
                bags,
                memory=_exact_size(self._memory // n_workers),
                replica=self._rank * n_workers + worker,
                replicas=self._world_size * n_workers,
                epoch=epoch,
                **self._options,
            )
        except StreammimlError as error:
            if n_workers == 1:
                raise
            # The DataLoader knows num_workers only, and memory is divided among the workers.
            raise type(error)(
                f"{error} (this is one of num_workers={n_workers} workers of rank {self._rank} of "
                f"{self._world_size}; each has 1/{n_workers} of the memory)"
            ) from None

    def _bags(self) -> Bags:
        """The store; a forked process opens it again, since it cannot use the parent's locks."""
        if self._opened_in != os.getpid():
            self._store, self._opened_in = self._store.reopened(), os.getpid()
        return self._store

    def _beginning(self, epoch: int) -> dict[str, Any]:
        worker, n_workers = _worker()
        return {
            "epoch": epoch,
            "replica": self._rank * n_workers + worker,
            "replicas": self._world_size * n_workers,
            "finished": False,
            "stream": None,
        }

    def state_dict(self) -> dict[str, Any]:
        """Position behind the last batch of the last loop in this process, as plain JSON values.

        With workers, each worker has its own position, which ``StatefulDataLoader`` collects.
        """
        if self._loaded is not None:
            return dict(self._loaded)
        if self._begun is None:
            return self._beginning(self._epochs.next())
        if self._loader is None:
            return dict(self._begun)
        # A loader moves to the next epoch as soon as the last batch is delivered. The share of one
        # worker may end before that of another, so the position stays in the epoch of the loop.
        position = self._loader.state_dict()
        is_finished = position["epoch"] != self._begun["epoch"]
        return {**self._begun, "finished": is_finished, "stream": position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next loop go on from a position that :meth:`state_dict` returned."""
        wanted = self._beginning(0)
        if not isinstance(state, dict) or not wanted.keys() <= state.keys():
            raise StreammimlError(f"this is no state of a BagDataset: {state!r}")
        if state["replicas"] != wanted["replicas"]:
            raise StreammimlError(
                f"the state was saved with {state['replicas']} workers in all ranks, this loop has "
                f"{wanted['replicas']}; resume with the same num_workers and world_size"
            )
        if state["replica"] != wanted["replica"]:
            raise StreammimlError(
                f"the state was saved by worker {state['replica']} of {state['replicas']}, this is "
                f"worker {wanted['replica']}; give each worker and rank its own state"
            )
        check_whole("epoch of the state", state["epoch"], 0)
        position = state["stream"]
        if position is not None:
            with self._open(*_worker()) as loader:
                loader.load_state_dict(position)
            if position["epoch"] != state["epoch"] + bool(state["finished"]):
                raise StreammimlError(
                    f"the state is damaged: its stream is in epoch {position['epoch']}, its loop "
                    f"in epoch {state['epoch']}"
                )
        self._loaded = {name: state[name] for name in wanted}
        self._is_loaded_in_worker = get_worker_info() is not None


def _exact_size(n_bytes: int) -> str:
    """A size that means exactly these bytes, in the largest unit that divides them."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if n_bytes % unit == 0 and n_bytes:
            return f"{n_bytes // unit}{name}"
    return str(n_bytes)


def _worker() -> tuple[int, int]:
    """Number of this worker of a ``DataLoader``, and number of workers; 0 and 1 without workers."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
