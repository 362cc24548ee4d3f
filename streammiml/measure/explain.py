"""``explain``: key instances of every bag, and the bags of each sub-concept of each label."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streammiml._base.pool import open_pool
from streammiml._base.pool_interface import Pool
from streammiml.bags.kept_columns import KeptColumn, plain_values
from streammiml.bags.views import Bags
from streammiml.config import check_whole
from streammiml.measure.key_instance_lines import key_instance_lines
from streammiml.measure.output_plan import OutputPlan, part_tasks
from streammiml.measure.predict import model_digest, write_predictions
from streammiml.measure.prediction_folder import PartFolder, atomic_file, write_json
from streammiml.measure.predictions import value_type
from streammiml.measure.scoring import (
    DEFAULTS,
    ModelLike,
    ScoreOptions,
    StoreLike,
    Watch,
    check_fits,
    open_model_and_store,
)
from streammiml.measure.subconcepts import SubconceptSummary, summarize_parts
from streammiml.measure.tasks import all_bags
from streammiml.model import Model

BAGS, TABLE, SUMMARY = "bags", "subconcepts.parquet", "explanation.json"
LINES = "bags.jsonl"


def explain_store(
    model: ModelLike,
    store: StoreLike,
    out: str | os.PathLike[str],
    *,
    typical: int = 10,
    jsonl: bool = False,
    draw: Callable[[Mapping[str, Any], Path], object] | None = None,
    options: ScoreOptions = DEFAULTS,
    watch: Watch = lambda _: None,
) -> dict[str, Any]:
    """Write why each label was predicted, and which bags fall into each sub-concept.

    The folder ``out`` gets ``bags/``, the predictions of every bag with their key instances, as
    :func:`~streammiml.predict` writes them; ``subconcepts.parquet``, with a record for each
    sub-concept; and ``explanation.json``, which is also returned. If a call is interrupted, a
    second call completes the folder.

    A bag falls into the sub-concept that gave a predicted label its score. For each sub-concept,
    the ``typical`` bags with the highest scores are listed with their key rows, and the values of
    kept columns in these rows.

    ``jsonl`` also writes the key instances of every bag as JSON lines, to ``bags.jsonl``. ``draw``
    is called with the explanation and the folder before the folder is marked as complete.
    """
    check_whole("typical", typical, 1)
    model, store = open_model_and_store(model, store)
    check_fits(model, store)
    record = {"model": model_digest(model), "store": store.fingerprint, "typical": typical}
    with (
        open_pool(options) as pool,
        PartFolder(out, record, "explanations") as folder,
    ):
        folder.reopen()
        bags = folder.path / BAGS
        counts = write_predictions(
            pool, model, store, bags, block_bytes=options.block_size, watch=watch
        )
        summary = _summarize(pool, model, store, bags, typical)
        explained = explanation(model, store, summary)
        with atomic_file(folder.path / TABLE) as file:
            pq.write_table(_table(explained, store.kept_columns), file)
        write_json(folder.path / SUMMARY, explained)
        if jsonl:
            with atomic_file(folder.path / LINES) as file:
                file.writelines(key_instance_lines(bags, counts["n_parts"]))
        if draw is not None:
            draw(explained, folder.path)
        folder.finish({"n_bags": summary.n_bags})
    return explained


def _summarize(
    pool: Pool, model: Model, store: Bags, bags: Path, typical: int
) -> SubconceptSummary:
    """Summarize the sub-concepts over all parts of the predictions in the folder ``bags``.

    The predictions are read back instead of being summarized while bags are scored: this call does
    not score the bags of parts that an interrupted call completed.
    """
    plan = OutputPlan.of(store, model.n_labels, store.label_names or model.label_names, None)
    everything = all_bags(store, remote=pool.is_remote)
    tasks = part_tasks(plan, range(plan.n_parts), everything, pool.n_threads)
    shape = model.n_labels, model.subconcepts
    results = pool.map(summarize_parts, tasks, plan, bags.absolute(), shape, typical)
    return reduce(lambda one, other: one.add(other, typical), results)


def explanation(model: Model, store: Bags, summary: SubconceptSummary) -> dict[str, Any]:
    """Turn a summary into plain JSON values, with names of labels and bags."""
    names = store.label_names or model.label_names
    has_labels = store.n_label_entries > 0
    labels = []
    for label in range(model.n_labels):
        n_bags = int(summary.predicted[label].sum())
        subconcepts = [
            _subconcept(store, summary, label, sub, n_bags, has_labels)
            for sub in range(model.subconcepts)
        ]
        labels.append(
            {
                "label": label,
                "name": None if names is None else names[label],
                "n_bags": n_bags,
                "subconcepts": [entry for entry in subconcepts if entry["n_bags"]],
                "empty": [entry["subconcept"] for entry in subconcepts if not entry["n_bags"]],
            }
        )
    return {"n_bags": summary.n_bags, "n_subconcepts": model.subconcepts, "labels": labels}


def _subconcept(
    store: Bags,
    summary: SubconceptSummary,
    label: int,
    sub: int,
    n_bags_of_label: int,
    has_labels: bool,
) -> dict[str, Any]:
    """Entry of a sub-concept in the explanation: counts and typical bags."""
    typical = summary.typical
    cell = typical.at(label * summary.predicted.shape[1] + sub)
    bags, rows, scores = typical.bag[cell], typical.row[cell], typical.score[cell]
    entries = zip(bags.tolist(), rows.tolist(), scores, strict=True)
    n_bags = int(summary.predicted[label, sub])
    return {
        "subconcept": sub,
        "n_bags": n_bags,
        "share": n_bags / max(1, n_bags_of_label),
        "n_bags_with_label": int(summary.right[label, sub]) if has_labels else None,
        "typical": [
            {
                "bag": bag,
                "bag_id": store.bag_ids(bag, bag + 1)[0],
                "row": row,
                "score": float(score),
                **_kept_at(store, bag, row),
            }
            for bag, row, score in entries
        ],
    }


def _kept_at(store: Bags, bag: int, row: int) -> dict[str, Any]:
    """Values of kept columns in a row under the key ``kept``; nothing if there are no columns."""
    if not store.kept_columns:
        return {}
    kept = store.kept(bag, bag + 1)
    return {"kept": {name: plain_values(values[row : row + 1])[0] for name, values in kept.items()}}


def _table(explained: Mapping[str, Any], kept: Sequence[KeptColumn]) -> Any:
    """Arrow table with a record for each sub-concept, with or without bags."""
    records = []
    for label in explained["labels"]:
        empty = [
            {"subconcept": sub, "n_bags": 0, "share": 0.0, "n_bags_with_label": None, "typical": []}
            for sub in label["empty"]
        ]
        subconcepts = [*label["subconcepts"], *empty]
        for subconcept in sorted(subconcepts, key=lambda entry: entry["subconcept"]):
            head = {"label": label["label"], "label_name": label["name"]}
            records.append({**head, **subconcept})
    members = [("bag", pa.int64()), ("bag_id", pa.string())]
    members += [("row", pa.int32()), ("score", pa.float32())]
    if kept:
        members.append(("kept", pa.struct([(column.name, value_type(column)) for column in kept])))
    typical = pa.struct(members)
    fields = [
        ("label", pa.int32()),
        ("label_name", pa.string()),
        ("subconcept", pa.int32()),
        ("n_bags", pa.int64()),
        ("share", pa.float64()),
        ("n_bags_with_label", pa.int64()),
        ("typical", pa.list_(typical)),
    ]
    return pa.Table.from_pylist(records, pa.schema(fields))
