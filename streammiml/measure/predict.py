"""``predict``: scores, labels and what made them so, of bags in memory or of a store, to disk."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock, check_shapes
from streammiml.bags.offsets import from_sizes
from streammiml.bags.views import Bags
from streammiml.cluster import Pool, open_pool
from streammiml.config import check_whole
from streammiml.errors import StreammimlError, unknown
from streammiml.measure import marks
from streammiml.measure.folder import PartFolder
from streammiml.measure.outcome import Predictions
from streammiml.measure.parts import OutPlan, Tally, Written, groups
from streammiml.measure.pieces import Piece, whole
from streammiml.measure.scored import (
    BLOCK_BYTES,
    Count,
    ModelLike,
    StoreLike,
    Watch,
    block_size,
    check_finite,
    check_fits,
    opened,
)
from streammiml.model import Model, load_model
from streammiml.scoring import Scorer

InMemory = BagBlock | Sequence[NDArray[Any]] | NDArray[Any]

# Raised when parts of this version would differ from those of the one before.
VERSION = 1
FORMATS = {"parquet": "streammiml.measure.parquet_parts", "zarr": "streammiml.measure.zarr_parts"}


class Part(NamedTuple):
    """The work of one task."""

    number: int
    piece: Piece


@overload
def predict(model: ModelLike, store: InMemory) -> Predictions: ...


@overload
def predict(
    model: ModelLike,
    store: StoreLike,
    out: str | os.PathLike[str],
    *,
    format: Literal["parquet", "zarr"] = ...,
    top_k: int | None = ...,
    threads: int | None = ...,
    workers: int | None = ...,
    scheduler: str | None = ...,
    worker_memory: str | int | None = ...,
    block_bytes: str | int = ...,
    watch: Watch = ...,
) -> dict[str, Any]: ...


def predict(
    model: ModelLike,
    store: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    format: str = "parquet",
    top_k: int | None = None,
    threads: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    worker_memory: str | int | None = None,
    block_bytes: str | int = BLOCK_BYTES,
    watch: Watch = lambda _: None,
) -> Predictions | dict[str, Any]:
    """Score bags: those of a store into a folder, or a few in memory.

    Bags in memory (arrays (rows, features), an array (bags, rows, features), or a block) are scored
    here and now, and come back as :class:`Predictions`. A model that is used again should be the
    same object: it is made ready once.

    The bags of a store are scored on Dask, and written to the folder ``out`` in parts. Run again
    it reads the parts that are there, which takes little beside scoring, and writes those that are
    missing or damaged; the result is the same to the last byte.

    Parameters
    ----------
    model
        A model, or the path of a run folder or model file.
    store
        A store, several, or a view, or their paths; or bags in memory.
    out
        Folder for the predictions, new or begun with the same model, store and settings.
    format
        ``parquet``: a record a bag; ``zarr``: arrays over bags in ``predictions.zarr``.
    top_k
        Keep the scores of so many labels, the highest first, rather than of all.
    threads
        Threads of this process; as many as there are cores unless given.
    workers
        Start a local cluster of as many processes instead.
    scheduler
        Address of a running Dask scheduler to use instead; its workers write to ``out``.
    worker_memory
        What each of the ``workers`` may take; an equal share of the machine's unless given.
    block_bytes
        Bags that a task reads at a time at most, and about a half of what it holds.
    watch
        Called now and then with how far it is.

    Returns
    -------
    Counts: ``n_bags``, ``n_parts``, ``n_parts_kept`` of an earlier run, ``labels_per_bag``,
    ``n_bags_without_label``, ``seconds``, ``bags_per_second`` of those scored now.

    Examples
    --------
    Bags in memory; the first looks like a dog, the second like a car beside a tree:

    >>> import numpy as np
    >>> bags = [np.array([[4.0, 0, 0]]), np.array([[0.0, 4, 0], [0, 0, 4]])]
    >>> found = sm.predict("run", bags)
    >>> [labels.tolist() for labels in found.labels]
    [[0], [1, 2]]
    >>> [rows.tolist() for rows in found.key_instances]
    [[0], [0, 1]]

    Those of a store:

    >>> sm.predict("run", "test.zarr", "predictions")["n_bags"]
    100
    >>> import pyarrow.parquet as pq
    >>> pq.read_table("predictions").num_rows
    100
    """
    if not _is_store(store):
        if out is not None:
            raise StreammimlError("bags in memory are not written; leave out, or name a store")
        return predict_bags(model, store)
    if out is None:
        raise StreammimlError("predictions of a store need a folder: predict(model, store, out)")
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if top_k is not None:
        check_whole("top_k", top_k, 1)
    most = block_size(block_bytes)
    model, store = opened(model, store)
    with open_pool(
        threads=threads, workers=workers, scheduler=scheduler, worker_memory=worker_memory
    ) as pool:
        return write_predictions(
            pool, model, store, out, format=format, top_k=top_k, block_bytes=most, watch=watch
        )


def write_predictions(
    pool: Pool,
    model: Model,
    store: Bags,
    out: str | os.PathLike[str],
    *,
    format: str = "parquet",
    top_k: int | None = None,
    block_bytes: int,
    watch: Watch,
) -> dict[str, Any]:
    """See :func:`predict`, of which this is the part that has everything open."""
    check_fits(model, store)
    plan = OutPlan.of(store, model.n_labels, store.label_names or model.label_names, top_k)
    backend = import_module(FORMATS[format])
    begun = time.monotonic()
    with PartFolder(out, _record(model, store, plan, format), "predictions") as folder:
        path = folder.path.absolute() if pool.is_remote else folder.path
        backend.begin(path, plan)
        kept = _kept(path, plan)
        if len(kept) < plan.n_parts:
            folder.reopen()
        total = _sum(kept.values())
        already = total.n_bags
        count = Count(store.n_bags, pool.dashboard, watch, already)
        work = _missing(plan, kept, whole(store, remote=pool.is_remote))
        scorer = pool.share(Scorer(model))
        results = pool.map(write_part, work, scorer, plan, format, path, block_bytes, seen=count)
        for number, tally in zip(_numbers(plan, kept), results, strict=True):
            if marks.finished(path, number, read=False) is None:
                raise StreammimlError(
                    f"part {number} of {path} was written by a worker and is not there; "
                    "workers must see the same folder"
                )
            total = total.add(tally)
        folder.finish({"n_parts": plan.n_parts, **total._asdict()})
    seconds = time.monotonic() - begun
    return {
        "n_bags": total.n_bags,
        "n_parts": plan.n_parts,
        "n_parts_kept": len(kept),
        "labels_per_bag": total.n_predicted / max(1, total.n_bags),
        "n_bags_without_label": total.n_without,
        "seconds": seconds,
        "bags_per_second": (total.n_bags - already) / max(seconds, 1e-9),
    }


def write_part(
    part: Part, scorer: Scorer, plan: OutPlan, format: str, folder: Path, block_bytes: int
) -> Tally:
    """One task: read, score and write the bags of a part."""
    made = groups(part.piece, scorer, plan, block_bytes)
    written: Written = import_module(FORMATS[format]).write(folder, part.number, plan, made)
    marks.write(folder, part.number, *written)
    return written.tally


def predict_bags(model: ModelLike, bags: InMemory) -> Predictions:
    """Score bags in memory, at once and in this thread."""
    model = model if isinstance(model, Model) else load_model(model)
    block = bags if isinstance(bags, BagBlock) else _block(bags)
    if len(block):
        sparse = not isinstance(block.rows, np.ndarray)
        model.check_store(block.n_features, model.n_labels, sparse=sparse, store="a bag")
    if len(block) and not np.diff(block.bag_offsets).all():
        raise StreammimlError(
            f"bag {int(np.diff(block.bag_offsets).argmin())} has no rows; leave it out"
        )
    scorer = _ready(model)
    found = scorer.scores(block)
    check_finite(found, 0, "bags in memory")
    return Predictions.of(scorer.rule, found)


@lru_cache(4)
def _ready(model: Model) -> Scorer:
    """Laid out once for as long as the same model is asked."""
    return Scorer(model)


def _is_store(store: Any) -> bool:
    """Whether this is something to open, or open, rather than bags in memory; no bags are none."""
    if isinstance(store, list | tuple) and store:
        return all(isinstance(each, str | os.PathLike) for each in store)
    return isinstance(store, str | os.PathLike | Bags)


def _block(bags: Any) -> BagBlock:
    if not isinstance(bags, Sequence) and np.ndim(bags) == 0:
        raise StreammimlError(
            f"{type(bags).__name__} is no store and no bags; expected a store, paths of stores, or "
            "a list of arrays (rows, features)"
        )
    arrays = [_array(bag, number) for number, bag in enumerate(bags)]
    check_shapes(arrays)
    rows = np.concatenate(arrays) if arrays else np.empty((0, 0), np.float32)
    if rows.dtype.kind not in "iuf" or rows.dtype == np.float64 or rows.dtype.itemsize > 4:
        rows = rows.astype(np.float32)
    nothing = np.zeros(len(bags) + 1, np.int64)
    return BagBlock(from_sizes([len(bag) for bag in arrays]), rows, nothing, np.empty(0, np.int32))


def _array(bag: Any, number: int) -> NDArray[Any]:
    """A bag whose values are numbers; objects that are some become such."""
    if not isinstance(bag, np.ndarray):
        raise StreammimlError(
            f"bag {number} is a {type(bag).__name__}, expected an array (rows, features)"
        )
    if bag.dtype == object:
        with suppress(TypeError, ValueError):
            return bag.astype(np.float64)
    if bag.dtype.kind not in "biuf":
        raise StreammimlError(f"bag {number} holds {bag.dtype}, expected numbers")
    return bag


def _record(model: Model, store: Bags, plan: OutPlan, format: str) -> dict[str, Any]:
    """What all parts of a folder have in common."""
    names = "\0".join(plan.label_names or ()).encode()
    return {
        "format": format,
        "top_k": plan.top_k,
        "model": model_digest(model),
        "store": store.fingerprint,
        "label_names": hashlib.blake2b(names, digest_size=16).hexdigest(),
        "has_bag_ids": plan.has_bag_ids,
        "n_bags": plan.n_bags,
        "format_version": VERSION,
        "part_bags": plan.part_bags,
        "group_bags": plan.group_bags,
    }


def model_digest(model: Model) -> str:
    """128 bits over everything that decides scores and predictions."""
    lift, rule = model.lift, model.rule
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((lift.transform, lift.unit, lift.context)).encode())
    digest.update(repr((rule.name, rule.min_labels, rule.r)).encode())
    for array in (
        model.shared,
        model.labels,
        lift.shift,
        lift.scale,
        lift.frequencies,
        lift.phases,
    ):
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _kept(folder: Path, plan: OutPlan) -> dict[int, Tally]:
    """Parts of an earlier run that are whole, with their counts."""
    found = ((number, marks.finished(folder, number)) for number in range(plan.n_parts))
    return {number: tally for number, tally in found if tally is not None}


def _numbers(plan: OutPlan, kept: dict[int, Tally]) -> Iterator[int]:
    return (number for number in range(plan.n_parts) if number not in kept)


def _missing(plan: OutPlan, kept: dict[int, Tally], everything: Piece) -> Iterator[Part]:
    for number in _numbers(plan, kept):
        yield Part(number, everything.cut(*plan.bags_of(number)))


def _sum(tallies: Any) -> Tally:
    total = Tally(0, 0, 0)
    for tally in tallies:
        total = total.add(tally)
    return total
