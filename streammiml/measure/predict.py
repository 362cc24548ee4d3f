"""``predict``: scores, labels, key instances and sub-concepts of a store or of bags in memory."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, reduce
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from streammiml._base.display import shown
from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import Pool
from streammiml.bags.given_bags import GivenBags, given_block
from streammiml.bags.views import Bags
from streammiml.config import check_whole
from streammiml.errors import StreammimlError, unknown
from streammiml.measure.label_choice import Labels
from streammiml.measure.output_plan import (
    OutputPlan,
    PartTask,
    PredictionCounts,
    WrittenPart,
    part_tasks,
    scored_groups,
)
from streammiml.measure.part_checksums import complete_part, record_part
from streammiml.measure.prediction_folder import PartFolder
from streammiml.measure.predictions import Predictions
from streammiml.measure.score_display import ScoreDisplay
from streammiml.measure.scoring import (
    BLOCK_BYTES,
    BagCounter,
    ModelLike,
    ScoreOptions,
    StoreLike,
    Watch,
    check_finite,
    check_fits,
    check_given,
    is_store,
    open_model_and_store,
)
from streammiml.measure.tasks import all_bags
from streammiml.measure.write_rows import RowOutput, count_records, open_row_part
from streammiml.model import Model, load_model
from streammiml.scorer import Scorer

VERSION = 1
"""Increase this when the bytes of parts change, so that no folder mixes two versions."""
_LOG = logging.getLogger("streammiml.predict")
FORMATS = {"parquet": "streammiml.measure.write_parquet", "zarr": "streammiml.measure.write_zarr"}


class TaskCounts(NamedTuple):
    """Counts of each part of a task."""

    parts: tuple[PredictionCounts, ...]

    @property
    def n_bags(self) -> int:
        """Number of bags that the task scored."""
        return sum(counts.n_bags for counts in self.parts)


@overload
def predict(model: ModelLike, store: GivenBags) -> Predictions: ...


@overload
def predict(
    model: ModelLike,
    store: StoreLike,
    out: str | os.PathLike[str],
    *,
    format: Literal["parquet", "zarr"] = ...,
    top_k: int | None = ...,
    rows: str | None = ...,
    labels: Labels | None = ...,
    threads: int | None = ...,
    workers: int | None = ...,
    scheduler: str | None = ...,
    client: Any = ...,
    worker_memory: str | int | None = ...,
    block_bytes: str | int = ...,
    watch: Watch = ...,
    progress: bool = ...,
) -> dict[str, Any]: ...


def predict(
    model: ModelLike,
    store: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    format: str = "parquet",
    top_k: int | None = None,
    rows: str | None = None,
    labels: Labels | None = None,
    threads: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    client: Any = None,
    worker_memory: str | int | None = None,
    block_bytes: str | int = BLOCK_BYTES,
    watch: Watch = lambda _: None,
    progress: bool = False,
) -> Predictions | dict[str, Any]:
    """Predict labels of a store, written to a folder, or of bags in memory, returned as arrays.

    Bags in memory are a list in which each bag is an array (rows, features), a SciPy sparse matrix,
    a DataFrame of pandas or Polars, or an Arrow table; or one such bag; or an array (bags, rows,
    features); or a block. An array of two dimensions is one bag: for bags of one row each, give
    ``array[:, None]``. Tables have a column for each feature, in the order of the first table;
    columns of the other tables are matched by name. The bags are scored in this thread and returned
    as :class:`Predictions`, which ``to_pandas()``, ``to_polars()`` and ``to_arrow()`` turn into a
    table. Pass the same model object to repeated calls: a model object is
    prepared for scoring only once.

    If the store has kept columns, their values at the key instances are written too, as columns
    ``kept_NAME``; of bags in memory, they are ``Predictions.kept``.

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
    rows
        Also write the scores of single rows, as a Parquet folder ``_rows`` in ``out`` with a record
        for each row and label: ``bag``, ``bag_id``, ``row``, ``label``, ``label_name``, ``score``,
        ``subconcept`` and ``above_dummy``, whether the row scores above the dummy's score of its
        bag. ``all``: every row, sorted by bag, row and label; ``top:N``: the N rows of each bag and
        label with the highest scores, sorted by bag, label and descending score.
    labels
        Labels of ``rows``: names or numbers, or ``all``. By default each bag has the labels that
        are predicted for it and the labels that it carries in the store.
    threads
        Threads of this process; by default as many as there are cores.
    workers
        Number of processes of a local cluster, which is used instead of threads.
    scheduler
        Address of a running Dask scheduler, which is used instead of threads; its workers write to
        ``out``.
    client
        A ``distributed.Client``, which is used and stays open, a Dask cluster object such as
        ``LocalCluster``, or ``"active"``, the client that Dask uses by default; its workers are
        used instead of threads.
    worker_memory
        Memory limit of each of the ``workers``; by default an equal share of all memory.
    block_bytes
        Upper limit for the bytes that a task reads at a time; a task holds about twice as much.
    watch
        Called with the progress at the start and after each task.
    progress
        Show the progress: a live line in a terminal or a notebook, a line every few seconds
        elsewhere.

    Returns
    -------
    Counts: ``n_bags``, ``n_parts``, ``n_parts_kept`` of an earlier run, ``labels_per_bag``,
    ``n_bags_without_label``, ``seconds``, and ``bags_per_second`` of this call; with ``rows`` also
    ``n_row_scores``.

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
    >>> predictions.to_pandas()["label_names"].map(list).tolist()
    [['dog'], ['car', 'tree']]

    Bags of a store:

    >>> sm.predict("run", "test.zarr", "predictions")["n_bags"]
    100
    >>> import pyarrow.parquet as pq
    >>> pq.read_table("predictions").num_rows
    100

    The three rows of each bag that look most like a dog, whether or not the bag has one:

    >>> sm.predict("run", "test.zarr", "dogs", rows="top:3", labels="dog")["n_row_scores"]
    300
    >>> pq.read_table("dogs/_rows").column_names[:6]
    ['bag', 'bag_id', 'row', 'label', 'label_name', 'score']
    """
    if not is_store(store):
        if out is not None:
            raise StreammimlError(
                "predictions of bags in memory are not written to a folder; "
                "omit the argument out, or pass a store"
            )
        if rows is not None or labels is not None:
            raise StreammimlError(
                "rows and labels are for predictions in a folder; for bags in memory call "
                "row_scores(model, bags, labels)"
            )
        return predict_bags(model, store)
    if out is None:
        raise StreammimlError("predictions of a store need a folder: predict(model, store, out)")
    _check_options(format, top_k, rows, labels)
    options = ScoreOptions(
        threads=threads,
        workers=workers,
        scheduler=scheduler,
        client=client,
        worker_memory=worker_memory,
        block_bytes=block_bytes,
    )
    model, store = open_model_and_store(model, store)
    with shown(ScoreDisplay, watch, progress=progress) as watch, open_pool(options) as pool:
        return write_predictions(
            pool,
            model,
            store,
            out,
            format=format,
            top_k=top_k,
            rows=rows,
            labels=labels,
            block_bytes=options.block_size,
            watch=watch,
        )


def _check_options(format: str, top_k: int | None, rows: str | None, labels: object) -> None:
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if top_k is not None:
        check_whole("top_k", top_k, 1)
    if labels is not None and rows is None:
        raise StreammimlError(
            "labels says which row scores are written; give rows too, such as rows top:20"
        )


class WantedPredictions(NamedTuple):
    """Everything that decides the predictions of a store, checked before any row is read."""

    model: Model
    store: Bags
    plan: OutputPlan
    output: RowOutput | None
    record: dict[str, Any]


def checked_for_prediction(
    model: ModelLike,
    store: StoreLike,
    *,
    format: str,
    top_k: int | None,
    rows: str | None,
    labels: Labels | None,
) -> WantedPredictions:
    """Open a model and a store and plan the output; refuse what does not fit."""
    _check_options(format, top_k, rows, labels)
    model, store = open_model_and_store(model, store)
    check_fits(model, store)
    plan = OutputPlan.of(
        store,
        model.n_labels,
        store.label_names or model.label_names,
        top_k,
        has_probabilities=model.calibration is not None,
    )
    output = None
    if rows is not None:
        output = RowOutput.of(model, plan.label_names, rows, labels)
    record = _record(model, store, plan, format, output)
    return WantedPredictions(model, store, plan, output, record)


def write_predictions(
    pool: Pool,
    model: Model,
    store: Bags,
    out: str | os.PathLike[str],
    *,
    format: str = "parquet",
    top_k: int | None = None,
    rows: str | None = None,
    labels: Labels | None = None,
    block_bytes: int,
    watch: Watch,
) -> dict[str, Any]:
    """Write predictions to a folder, with an open pool; options are those of :func:`predict`."""
    wanted = checked_for_prediction(
        model, store, format=format, top_k=top_k, rows=rows, labels=labels
    )
    model, store, plan, output, record = wanted
    backend = import_module(FORMATS[format])
    begun = time.monotonic()
    with PartFolder(out, record, "predictions") as folder:
        path = folder.path.absolute() if pool.is_remote else folder.path
        backend.begin(path, plan)
        kept = _complete_parts(path, plan)
        if len(kept) < plan.n_parts:
            folder.reopen()
        total = _sum(kept.values())
        n_kept_bags = total.n_bags
        counter = BagCounter(store.n_bags, pool.dashboard, watch, n_kept_bags)
        _LOG.info(
            "predict begins: %s bags of %s in %d parts, %d of them there already",
            *(f"{store.n_bags:,}", store.name, plan.n_parts, len(kept)),
        )
        missing = [number for number in range(plan.n_parts) if number not in kept]
        everything = all_bags(store, remote=pool.is_remote)
        tasks = part_tasks(plan, missing, everything, pool.n_threads)
        shared: tuple[Any, ...] = pool.share(Scorer(model)), plan, format, path, block_bytes
        if output is not None:
            shared = *shared, pool.share(output)
        results = pool.map(write_task, tasks, *shared, seen=counter)
        written = (counts for result in results for counts in result.parts)
        for number, counts in zip(missing, written, strict=True):
            if complete_part(path, number, read_files=False) is None:
                raise StreammimlError(
                    f"a worker has written part {number} of {path}, and its files are not there; "
                    "workers must see the same folder"
                )
            total = total.add(counts)
        folder.finish({"n_parts": plan.n_parts, **total._asdict()})
        _LOG.info("predict ends: %s, %.1f s", folder.path, time.monotonic() - begun)
        n_row_scores = None if output is None else count_records(path, plan.n_parts)
    seconds = time.monotonic() - begun
    return {
        "n_bags": total.n_bags,
        "n_parts": plan.n_parts,
        "n_parts_kept": len(kept),
        "labels_per_bag": total.n_predicted / max(1, total.n_bags),
        "n_bags_without_label": total.n_without,
        "seconds": seconds,
        "bags_per_second": (total.n_bags - n_kept_bags) / max(seconds, 1e-9),
        **({} if n_row_scores is None else {"n_row_scores": n_row_scores}),
    }


def write_task(
    task: PartTask,
    scorer: Scorer,
    plan: OutputPlan,
    format: str,
    folder: Path,
    block_bytes: int,
    output: RowOutput | None = None,
) -> TaskCounts:
    """Read, score and write the bags of each part of a task; a kill loses one part at most."""
    backend = import_module(FORMATS[format])
    counts = []
    for number, bags in task.parts(plan):
        with ExitStack() as stack:
            seen, row_files = None, []
            if output is not None:
                part = stack.enter_context(
                    open_row_part(output, folder, number, block_bytes, plan.kept)
                )
                seen, row_files = part.add, [part.path]
            groups = scored_groups(bags, scorer, plan, block_bytes, seen)
            written: WrittenPart = backend.write(folder, number, plan, groups)
        record_part(folder, number, written.counts, [*written.files, *row_files])
        counts.append(written.counts)
    return TaskCounts(tuple(counts))


def predict_bags(model: ModelLike, bags: GivenBags) -> Predictions:
    """Score bags in memory, in this thread."""
    model = model if isinstance(model, Model) else load_model(model)
    block = given_block(bags)
    check_given(model, block)
    scorer = _scorer(model)
    scores = scorer.scores(block)
    check_finite(scores, 0, "bags in memory")
    predictions = Predictions.of(scorer.rule, scores, block=block, calibration=scorer.calibration)
    return replace(predictions, label_names=model.label_names)


@lru_cache(4)
def _scorer(model: Model) -> Scorer:
    """Return a cached scorer, so that repeated calls prepare a model's arrays only once."""
    return Scorer(model)


def _record(
    model: Model, store: Bags, plan: OutputPlan, format: str, output: RowOutput | None
) -> dict[str, Any]:
    """Content of the folder's record: everything that decides the bytes of its parts."""
    names = "\0".join(plan.label_names or ()).encode()
    # Without kept columns, the record is that of versions that had none.
    kept: dict[str, Any] = {}
    if plan.kept:
        kept["kept"] = [list(column) for column in plan.kept]
        kept["kept_values"] = store.kept_digest
    return {
        "format": format,
        "top_k": plan.top_k,
        # Records of folders without row scores are the same as before there were row scores.
        **({} if output is None else {"rows": output.record()}),
        "model": model_digest(model),
        "store": store.fingerprint,
        "label_names": hashlib.blake2b(names, digest_size=16).hexdigest(),
        "has_bag_ids": plan.has_bag_ids,
        "n_bags": plan.n_bags,
        "format_version": VERSION,
        "part_bags": plan.part_bags,
        "group_bags": plan.group_bags,
        **kept,
    }


def model_digest(model: Model) -> str:
    """128-bit digest of everything that decides scores and predictions."""
    lift, rule = model.lift, model.rule
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((lift.transform, lift.unit, lift.context)).encode())
    # Without an offset, the digest is that of versions that had none.
    offset = (rule.offset,) if rule.offset else ()
    if model.restarts > 1:
        digest.update(repr(model.restarts).encode())
    digest.update(repr((rule.name, rule.min_labels, rule.r, *offset)).encode())
    for array in (
        model.shared,
        model.labels,
        lift.shift,
        lift.scale,
        lift.frequencies,
        lift.phases,
        *(model.calibration.tensors().values() if model.calibration is not None else ()),
    ):
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _complete_parts(folder: Path, plan: OutputPlan) -> dict[int, PredictionCounts]:
    """Counts of the complete parts that an earlier run left, by number."""
    counts = ((number, complete_part(folder, number)) for number in range(plan.n_parts))
    return {number: part_counts for number, part_counts in counts if part_counts is not None}


def _sum(counts: Iterable[PredictionCounts]) -> PredictionCounts:
    return reduce(PredictionCounts.add, counts, PredictionCounts(0, 0, 0))
