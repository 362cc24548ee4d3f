"""``streammiml predict``: scores, labels and key instances of the bags of a store, in a folder."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from streammiml.measure.dry_run import dry_predict
from streammiml.measure.predict import predict as predict_store
from streammiml.measure.score_display import ScoreDisplay
from streammiml.measure.scoring import DEFAULTS, ScoreOptions
from streammiml.measure.write_rows import FOLDER
from streammiml.verbs.options import FLAT, AsJson, Flag, ModelPath, StorePath
from streammiml.verbs.score_dry_run import print_dry_run


def predict(
    model: ModelPath,
    store: StorePath,
    out: str,
    /,
    *,
    format: Literal["parquet", "zarr"] = "parquet",
    top_k: int | None = None,
    rows: str | None = None,
    labels: str | None = None,
    dry_run: Flag = False,
    json: AsJson = False,
    scoring: Annotated[ScoreOptions, FLAT] = DEFAULTS,
) -> None:
    """Score every bag of a store and write its predictions to a folder.

    Parameters
    ----------
    out
        Folder for the predictions. After an interruption, the same command completes it.
    format
        parquet: one record for each bag; zarr: arrays over bags.
    top_k
        Keep only this many scores of each bag, the highest first; by default all.
    rows
        Also write scores of single rows, to the Parquet folder OUT/_rows: all, or top:N for the N
        highest rows of each bag and label.
    labels
        Labels of --rows: names joined by commas, numbers, or all; by default the labels that are
        predicted for a bag or that it carries in the store.
    dry_run
        Read and score bags for a second; print the number of tasks, and about how much memory,
        reading and time the whole store needs. Nothing is written.
    """
    if dry_run:
        planned = dry_predict(
            model,
            store,
            out,
            format=format,
            top_k=top_k,
            rows=rows,
            labels=labels,
            options=scoring,
        )
        print_dry_run(planned, json=json)
        return
    with ScoreDisplay() as display:
        summary = predict_store(
            model,
            store,
            out,
            format=format,
            top_k=top_k,
            rows=rows,
            labels=labels,
            **asdict(scoring),
            watch=display,
        )
    if json:
        print(json_format.dumps(summary))
        return
    for line in readable(out, summary):
        print(line)


def readable(out: str, summary: Mapping[str, Any]) -> Iterator[str]:
    """Lines of the summary."""
    kept = summary["n_parts_kept"]
    bags, parts = (_counted(summary[f"n_{noun}s"], noun) for noun in ("bag", "part"))
    already = f", {kept:,} of them there already" if kept else ""
    yield f"{out}: {bags} in {parts}{already}"
    yield f"labels per bag           {summary['labels_per_bag']:.3f}"
    yield f"bags without a label     {summary['n_bags_without_label']:,}"
    if "n_row_scores" in summary:
        yield f"row scores in {FOLDER}     {summary['n_row_scores']:,}"
    if kept < summary["n_parts"]:
        yield f"bags per second          {summary['bags_per_second']:,.0f}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
