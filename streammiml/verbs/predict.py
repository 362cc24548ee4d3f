"""``streammiml predict``: scores, labels and key instances of the bags of a store, in a folder."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from streammiml.measure.predict import predict as predict_store
from streammiml.verbs.pool import PoolOptions, given
from streammiml.verbs.show import Show


def predict(
    model: str,
    store: str,
    out: str,
    /,
    *,
    format: Literal["parquet", "zarr"] = "parquet",
    top_k: int | None = None,
    json: bool = False,
    pool: Annotated[PoolOptions | None, Parameter(name="*")] = None,
) -> None:
    """Score every bag of a store and write what is predicted; run again, it goes on.

    Parameters
    ----------
    model
        Run folder or model file.
    store
        Folder or URL.
    out
        Folder for the predictions.
    format
        A record a bag, or arrays over bags.
    top_k
        Keep the scores of so many labels, the highest first, rather than of all.
    json
        Print the summary as one JSON object, for machines.
    """
    with Show() as show:
        summary = predict_store(
            model,
            store,
            out,
            format=format,
            top_k=top_k,
            **given(pool),
            watch=show,
        )
    if json:
        print(json_format.dumps(summary))
        return
    for line in readable(out, summary):
        print(line)


def readable(out: str, summary: Mapping[str, Any]) -> Iterator[str]:
    """Lines that sum it up."""
    kept = summary["n_parts_kept"]
    bags, parts = (_counted(summary[f"n_{what}s"], what) for what in ("bag", "part"))
    found = f"{out}: {bags} in {parts}"
    yield found + (f", {kept:,} of them there already" if kept else "")
    yield f"labels per bag           {summary['labels_per_bag']:.3f}"
    yield f"bags without a label     {summary['n_bags_without_label']:,}"
    if kept < summary["n_parts"]:
        yield f"bags per second          {summary['bags_per_second']:,.0f}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")
