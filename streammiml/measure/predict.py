"""``predict``: scores, labels, key instances and sub-concepts of a store or of bags in memory."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, reduce
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import Pool
from streammiml.bags.block import BagBlock, check_shapes
from streammiml.bags.offsets import from_sizes
from streammiml.bags.views import Bags
from streammiml.config import check_whole
from streammiml.errors import StreammimlError, unknown
from streammiml.measure.output_plan import (
    OutputPlan,
    PredictionCounts,
    WrittenPart,
    scored_groups,
)
from streammiml.measure.part_checksums import complete_part, record_part
from streammiml.measure.prediction_folder import PartFolder
from streammiml.measure.predictions import Predictions
from streammiml.measure.scoring import (
    BLOCK_BYTES,
    BagCounter,
    ModelLike,
    ScoreOptions,
    StoreLike,
    Watch,
    check_finite,
    check_fits,
    open_model_and_store,
)
from streammiml.measure.tasks import BagRange, all_bags
from streammiml.model import Model, load_model
from streammiml.scorer import Scorer

InMemory = BagBlock | Sequence[NDArray[Any]] | NDArray[Any]

VERSION = 1
"""Increase this when the bytes of parts change, so that no folder mixes two versions."""
FORMATS = {"parquet": "streammiml.measure.write_parquet", "zarr": "streammiml.measure.write_zarr"}


class PartTask(NamedTuple):
    """A part that one task scores and writes."""

    number: int
    bags: BagRange


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
    """Predict labels of a store, written to a folder, or of bags in memory, returned as arrays.

    Bags in memory (arrays (rows, features), an array (bags, rows, features), or a block) are scored
    in this thread and returned as :class:`Predictions`. Pass the same model object to repeated
    calls: a model object is prepared for scoring only once.

    The bags of a store are scored on Dask, and written to the folder ``out`` in parts. A second
    call verifies the existing parts, which is fast compared with scoring, and writes parts that are
    missing or damaged; the result is the same to the last byte.

    Parameters
    ----------
    model
        A model, or the path of a run folder or model file.
    store
        One or more stores, or a view, or paths of stores; or bags in memory.
    out
        Folder for the predictions: new, or begun with the same model, store and settings.
    format
        ``parquet``: a record for each bag; ``zarr``: arrays over bags in ``predictions.zarr``.
    top_k
        Keep only this many scores of each bag, the highest first; by default all scores.
    threads
        Threads of this process; by default as many as there are cores.
    workers
        Number of processes of a local cluster, which is used instead of threads.
    scheduler
        Address of a running Dask scheduler, which is used instead of threads; its workers write to
        ``out``.
    worker_memory
        Memory limit of each of the ``workers``; by default an equal share of all memory.
    block_bytes
        Upper limit for the bytes that a task reads at a time; a task holds about twice as much.
    watch
        Called with the progress at the start and after each task.

    Returns
    -------
    Counts: ``n_bags``, ``n_parts``, ``n_parts_kept`` of an earlier run, ``labels_per_bag``,
    ``n_bags_without_label``, ``seconds``, and ``bags_per_second`` of this call.

    Examples
    --------
    Bags in memory; the first looks like a dog, the second like a car beside a tree:

    >>> import numpy as np
    >>> bags = [np.array([[4.0, 0, 0]]), np.array([[0.0, 4, 0], [0, 0, 4]])]
    >>> predictions = sm.predict("run", bags)
    >>> [labels.tolist() for labels in predictions.labels]
    [[0], [1, 2]]
    >>> [rows.tolist() for rows in predictions.key_instances]
    [[0], [0, 1]]

    Bags of a store:

    >>> sm.predict("run", "test.zarr", "predictions")["n_bags"]
    100
    >>> import pyarrow.parquet as pq
    >>> pq.read_table("predictions").num_rows
    100
    """
    if not _is_store(store):
        if out is not None:
            raise StreammimlError(
                "predictions of bags in memory are not written to a folder; "
                "omit the argument out, or pass a store"
            )
        return predict_bags(model, store)
    if out is None:
        raise StreammimlError("predictions of a store need a folder: predict(model, store, out)")
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if top_k is not None:
        check_whole("top_k", top_k, 1)
    options = ScoreOptions(
        threads=threads,
        workers=workers,
        scheduler=scheduler,
        worker_memory=worker_memory,
        block_bytes=block_bytes,
    )
    model, store = open_model_and_store(model, store)
    with open_pool(options) as pool:
        return write_predictions(
            pool,
            model,
            store,
            out,
            format=format,
            top_k=top_k,
            block_bytes=options.block_size,
            watch=watch,
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
    """Write predictions to a folder, with an open pool; options are those of :func:`predict`."""
    check_fits(model, store)
    plan = OutputPlan.of(store, model.n_labels, store.label_names or model.label_names, top_k)
    backend = import_module(FORMATS[format])
    begun = time.monotonic()
    with PartFolder(out, _record(model, store, plan, format), "predictions") as folder:
        path = folder.path.absolute() if pool.is_remote else folder.path
        backend.begin(path, plan)
        kept = _complete_parts(path, plan)
        if len(kept) < plan.n_parts:
            folder.reopen()
        total = _sum(kept.values())
        n_kept_bags = total.n_bags
        counter = BagCounter(store.n_bags, pool.dashboard, watch, n_kept_bags)
        tasks = _missing_parts(plan, kept, all_bags(store, remote=pool.is_remote))
        scorer = pool.share(Scorer(model))
        results = pool.map(write_part, tasks, scorer, plan, format, path, block_bytes, seen=counter)
        for number, counts in zip(_missing_numbers(plan, kept), results, strict=True):
            if complete_part(path, number, read_files=False) is None:
                raise StreammimlError(
                    f"a worker has written part {number} of {path}, and its files are not there; "
                    "workers must see the same folder"
                )
            total = total.add(counts)
        folder.finish({"n_parts": plan.n_parts, **total._asdict()})
    seconds = time.monotonic() - begun
    return {
        "n_bags": total.n_bags,
        "n_parts": plan.n_parts,
        "n_parts_kept": len(kept),
        "labels_per_bag": total.n_predicted / max(1, total.n_bags),
        "n_bags_without_label": total.n_without,
        "seconds": seconds,
        "bags_per_second": (total.n_bags - n_kept_bags) / max(seconds, 1e-9),
    }


def write_part(
    part: PartTask, scorer: Scorer, plan: OutputPlan, format: str, folder: Path, block_bytes: int
) -> PredictionCounts:
    """Read, score and write the bags of a part: the work of one task."""
    groups = scored_groups(part.bags, scorer, plan, block_bytes)
    written: WrittenPart = import_module(FORMATS[format]).write(folder, part.number, plan, groups)
    record_part(folder, part.number, written.counts, written.files)
    return written.counts


def predict_bags(model: ModelLike, bags: InMemory) -> Predictions:
    """Score bags in memory, in this thread."""
    model = model if isinstance(model, Model) else load_model(model)
    block = bags if isinstance(bags, BagBlock) else _block(bags)
    if len(block):
        sparse = not isinstance(block.rows, np.ndarray)
        model.check_store(block.n_features, model.n_labels, sparse=sparse, store="a bag")
    if len(block) and not np.diff(block.bag_offsets).all():
        raise StreammimlError(
            f"bag {int(np.diff(block.bag_offsets).argmin())} has no rows; leave it out"
        )
    scorer = _scorer(model)
    scores = scorer.scores(block)
    check_finite(scores, 0, "bags in memory")
    return Predictions.of(scorer.rule, scores)


@lru_cache(4)
def _scorer(model: Model) -> Scorer:
    """Return a cached scorer, so that repeated calls prepare a model's arrays only once."""
    return Scorer(model)


def _is_store(store: Any) -> bool:
    """Whether this is a store or paths of stores; an empty list means zero bags in memory."""
    if isinstance(store, list | tuple) and store:
        return all(isinstance(path, str | os.PathLike) for path in store)
    return isinstance(store, str | os.PathLike | Bags)


def _block(bags: Any) -> BagBlock:
    if not isinstance(bags, Sequence) and np.ndim(bags) == 0:
        raise StreammimlError(
            f"{type(bags).__name__} is neither a store nor bags; expected a store, paths of stores,"
            " or a list of arrays (rows, features)"
        )
    arrays = [_array(bag, number) for number, bag in enumerate(bags)]
    check_shapes(arrays)
    rows = np.concatenate(arrays) if arrays else np.empty((0, 0), np.float32)
    if rows.dtype.kind not in "iuf" or rows.dtype == np.float64 or rows.dtype.itemsize > 4:
        rows = rows.astype(np.float32)
    no_labels = np.zeros(len(bags) + 1, np.int64), np.empty(0, np.int32)
    return BagBlock(from_sizes([len(bag) for bag in arrays]), rows, *no_labels)


def _array(bag: Any, number: int) -> NDArray[Any]:
    """Check that a bag holds numbers; arrays of Python numbers are converted."""
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


def _record(model: Model, store: Bags, plan: OutputPlan, format: str) -> dict[str, Any]:
    """Content of the folder's record: everything that decides the bytes of its parts."""
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
    """128-bit digest of everything that decides scores and predictions."""
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


def _complete_parts(folder: Path, plan: OutputPlan) -> dict[int, PredictionCounts]:
    """Counts of the complete parts that an earlier run left, by number."""
    counts = ((number, complete_part(folder, number)) for number in range(plan.n_parts))
    return {number: part_counts for number, part_counts in counts if part_counts is not None}


def _missing_numbers(plan: OutputPlan, kept: dict[int, PredictionCounts]) -> Iterator[int]:
    """Numbers of the parts that must be written, ascending."""
    return (number for number in range(plan.n_parts) if number not in kept)


def _missing_parts(
    plan: OutputPlan, kept: dict[int, PredictionCounts], everything: BagRange
) -> Iterator[PartTask]:
    for number in _missing_numbers(plan, kept):
        yield PartTask(number, everything.cut(*plan.bags_of(number)))


def _sum(counts: Iterable[PredictionCounts]) -> PredictionCounts:
    return reduce(PredictionCounts.add, counts, PredictionCounts(0, 0, 0))
