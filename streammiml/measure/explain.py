"""``explain``: key instances of every bag, and what falls into each sub-concept of each label."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streammiml.bags.views import Bags
from streammiml.cluster import Pool, open_pool
from streammiml.config import check_whole
from streammiml.measure.concepts import Concepts, concepts_of_part
from streammiml.measure.folder import PartFolder, as_json, written_whole
from streammiml.measure.lines import bag_lines
from streammiml.measure.parts import OutPlan
from streammiml.measure.pieces import whole
from streammiml.measure.predict import model_digest, write_predictions
from streammiml.measure.scored import (
    BLOCK_BYTES,
    ModelLike,
    StoreLike,
    Watch,
    block_size,
    check_fits,
    opened,
)
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
    draw: Callable[[Mapping[str, Any], Path], object] = lambda *_: None,
    threads: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    worker_memory: str | int | None = None,
    block_bytes: str | int = BLOCK_BYTES,
    watch: Watch = lambda _: None,
) -> dict[str, Any]:
    """Write why each label was predicted, and say what the sub-concepts of each hold.

    The folder gets ``bags/``, the predictions of every bag with their key instances, as
    :func:`~streammiml.predict` writes them; ``subconcepts.parquet``, a record a sub-concept; and
    ``explanation.json``, which is also what is returned. Run again it goes on.

    A sub-concept of a label holds the bags that are predicted the label because of it. ``typical``
    bags of each, with their key rows, are named: those of the highest scores.

    ``jsonl``: the key instances of every bag as JSON lines too, in ``bags.jsonl``. ``draw`` is
    called with what was found and the folder, before the folder counts as complete.
    """
    check_whole("typical", typical, 1)
    most = block_size(block_bytes)
    model, store = opened(model, store)
    check_fits(model, store)
    record = {"model": model_digest(model), "store": store.fingerprint, "typical": typical}
    with (
        open_pool(
            threads=threads, workers=workers, scheduler=scheduler, worker_memory=worker_memory
        ) as pool,
        PartFolder(out, record, "explanations") as folder,
    ):
        folder.reopen()
        bags = folder.path / BAGS
        counts = write_predictions(pool, model, store, bags, block_bytes=most, watch=watch)
        found = _concepts(pool, model, store, bags, typical)
        said = explanation(model, store, found)
        with written_whole(folder.path / TABLE) as file:
            pq.write_table(_table(said), file)
        with written_whole(folder.path / SUMMARY) as file:
            file.write(as_json(said))
        if jsonl:
            with written_whole(folder.path / LINES) as file:
                file.writelines(bag_lines(bags, counts["n_parts"]))
        draw(said, folder.path)
        folder.finish({"n_bags": found.n_bags})
    return said


def _concepts(pool: Pool, model: Model, store: Bags, bags: Path, typical: int) -> Concepts:
    """Added up over the parts of the predictions."""
    plan = OutPlan.of(store, model.n_labels, store.label_names or model.label_names, None)
    everything = whole(store, remote=pool.is_remote)
    work = ((n, everything.cut(*plan.bags_of(n))) for n in range(plan.n_parts))
    shape = model.n_labels, model.subconcepts
    total = None
    for found in pool.map(concepts_of_part, work, bags.absolute(), shape, typical):
        total = found if total is None else total.add(found, typical)
    assert total is not None, "a store has bags"
    return total


def explanation(model: Model, store: Bags, found: Concepts) -> dict[str, Any]:
    """What was found, with names, as plain JSON values."""
    names = store.label_names or model.label_names
    has_labels = store.n_label_entries > 0
    labels = []
    for label in range(model.n_labels):
        n_bags = int(found.predicted[label].sum())
        concepts = [
            _concept(store, found, label, sub, n_bags, has_labels)
            for sub in range(model.subconcepts)
        ]
        labels.append(
            {
                "label": label,
                "name": None if names is None else names[label],
                "n_bags": n_bags,
                "subconcepts": [each for each in concepts if each["n_bags"]],
                "empty": [each["subconcept"] for each in concepts if not each["n_bags"]],
            }
        )
    return {"n_bags": found.n_bags, "n_subconcepts": model.subconcepts, "labels": labels}


def _concept(
    store: Bags, found: Concepts, label: int, sub: int, of: int, has_labels: bool
) -> dict[str, Any]:
    best = found.typical
    here = best.at(label * found.predicted.shape[1] + sub)
    entries = zip(best.bag[here].tolist(), best.row[here].tolist(), best.score[here], strict=True)
    n_bags = int(found.predicted[label, sub])
    return {
        "subconcept": sub,
        "n_bags": n_bags,
        "share": n_bags / max(1, of),
        "n_bags_with_label": int(found.right[label, sub]) if has_labels else None,
        "typical": [
            {
                "bag": bag,
                "bag_id": store.bag_ids(bag, bag + 1)[0],
                "row": row,
                "score": float(score),
            }
            for bag, row, score in entries
        ],
    }


def _table(said: Mapping[str, Any]) -> Any:
    """A record a sub-concept that holds bags, or holds none."""
    records = []
    for label in said["labels"]:
        empty = [
            {"subconcept": sub, "n_bags": 0, "share": 0.0, "n_bags_with_label": None, "typical": []}
            for sub in label["empty"]
        ]
        for each in sorted([*label["subconcepts"], *empty], key=lambda one: one["subconcept"]):
            head = {"label": label["label"], "label_name": label["name"]}
            records.append({**head, **each})
    typical = pa.struct(
        [("bag", pa.int64()), ("bag_id", pa.string()), ("row", pa.int32()), ("score", pa.float32())]
    )
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
