"""PyTorch: the bags of a store as a dataset, in any process of a ``DataLoader``.

>>> from torch.utils.data import DataLoader
>>> from streammiml.torch import BagDataset
>>> dataset = BagDataset("corpus.zarr", batch_bags=64)
>>> for batch in DataLoader(dataset, batch_size=None, num_workers=2):
...     loss = train_on(batch["rows"], batch["offsets"], batch["targets"])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from streammiml.bags.block import SparseRows
from streammiml.blocks.loader import BagBatch, BagLoader, StoreLike, open_bags, stream
from streammiml.config import parse_size
from streammiml.errors import unknown

Tensors = dict[str, Any]
"""Tensors of a batch by name."""


def with_offsets(batch: BagBatch) -> Tensors:
    """Rows of all bags one after the other, and their bounds: ``rows``, ``offsets``."""
    rows = batch.rows.dense() if isinstance(batch.rows, SparseRows) else batch.rows
    return {"rows": torch.from_numpy(rows), "offsets": torch.from_numpy(batch.offsets)}


def padded(batch: BagBatch) -> Tensors:
    """``rows`` (bags, most rows, features), padded with zeros, and ``mask`` of the real rows."""
    flat = with_offsets(batch)["rows"]
    sizes = np.diff(batch.offsets)
    longest = int(sizes.max())
    mask = torch.from_numpy(np.arange(longest) < sizes[:, None])
    rows = flat.new_zeros((len(batch), longest, flat.shape[1]))
    rows[mask] = flat
    return {"rows": rows, "mask": mask}


def nested(batch: BagBatch) -> Tensors:
    """``rows`` as a nested tensor, jagged in its second dimension."""
    parts = with_offsets(batch)
    return {"rows": torch.nested.nested_tensor_from_jagged(parts["rows"], parts["offsets"])}


LAYOUTS: dict[str, Callable[[BagBatch], Tensors]] = {
    "offsets": with_offsets,
    "padded": padded,
    "nested": nested,
}


class BagDataset(IterableDataset[Tensors]):
    """Batches of bags for a ``DataLoader`` with ``batch_size=None``.

    The blocks of the store are dealt out to the workers of the ``DataLoader`` and to the ranks of
    distributed training, so that every bag is delivered once in an epoch. Each iteration is the
    next epoch. An iteration that is left early delivers the same epoch again, unless
    ``load_state_dict`` sets a position. ``StatefulDataLoader`` of torchdata saves and restores the
    position of each worker.

    A batch is a dictionary: ``rows`` with ``offsets`` or ``mask`` as the layout says, ``targets``
    (bags, labels) with 1 for each label that a bag carries, ``bag_numbers`` in the store, and
    ``epoch``.

    Parameters
    ----------
    store
        Path or URL of a store, several, or an open store or view.
    layout
        ``offsets`` joins all rows, ``padded`` pads bags to one length with a mask, ``nested`` makes
        a nested tensor.
    rank, world_size
        Number of this process, and how many train together. By default those of
        ``torch.distributed``, or 0 and 1 if it is not initialised.
    memory
        Upper limit for what reading holds in all workers of this process.
    options
        Options of :func:`streammiml.stream`: ``seed``, ``batch_bags``, ``order``, …
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
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if rank is None:
            rank = torch.distributed.get_rank() if is_distributed else 0
        if world_size is None:
            world_size = torch.distributed.get_world_size() if is_distributed else 1
        self._store, self._layout, self._options = store, layout, options
        self._rank, self._world_size, self._memory = rank, world_size, parse_size(memory)
        self._n_labels = open_bags(store).n_labels
        # Workers of a DataLoader are other processes, which end with each epoch. The number of the
        # next epoch is in shared memory, so that the next workers know it.
        self._next_epoch = torch.tensor([epoch]).share_memory_()
        self._state: dict[str, Any] | None = None
        self._loader: BagLoader | None = None
        # Wrong options are refused here, not in a worker.
        self._open(0, 1).close()

    def _open(self, worker: int, n_workers: int) -> BagLoader:
        return stream(
            self._store,
            memory=str(self._memory // n_workers),
            replica=self._rank * n_workers + worker,
            replicas=self._world_size * n_workers,
            epoch=int(self._next_epoch[0]),
            **self._options,
        )

    def __iter__(self) -> Iterator[Tensors]:
        """Batches of the next epoch, or of the rest of the epoch of a loaded state."""
        info = get_worker_info()
        worker, n_workers = (0, 1) if info is None else (info.id, info.num_workers)
        arrange = LAYOUTS[self._layout]
        with self._open(worker, n_workers) as loader:
            if self._state is not None:
                loader.load_state_dict(self._state)
            self._loader, self._state = loader, None
            for batch in loader:
                yield {**arrange(batch), **self._facts(batch)}
            if worker == 0:
                self._next_epoch[0] = loader.epoch

    def _facts(self, batch: BagBatch) -> Tensors:
        targets = torch.zeros((len(batch), self._n_labels))
        bags = np.repeat(np.arange(len(batch)), np.diff(batch.label_offsets))
        targets[torch.from_numpy(bags), torch.from_numpy(batch.label_indices).long()] = 1
        return {
            "targets": targets,
            "bag_numbers": torch.from_numpy(batch.bag_numbers),
            "epoch": batch.epoch,
        }

    def state_dict(self) -> dict[str, Any]:
        """Position behind the last batch that this process delivered."""
        if self._state is not None or self._loader is None:
            return dict(self._state or {})
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on from a position; an empty state changes nothing."""
        self._state = dict(state) or None
