"""Predictions in pandas, Polars or DuckDB: which labels were predicted how often, and why.

    python tools/examples/read_predictions.py PREDICTIONS pandas|polars|duckdb|pyarrow

PREDICTIONS is the folder that ``streammiml predict`` wrote: a record a bag, with lists. Each of the
four gives the same table: a line a label, how many bags were predicted it, and their mean score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import cyclopts

Line = tuple[str, int, float]
"""A label, its bags, and their mean score."""


def with_pandas(folder: str) -> Iterator[Line]:
    """Lists become lines by ``explode``."""
    import pandas as pd  # type: ignore[import,unused-ignore]  # noqa: PLC0415

    bags = pd.read_parquet(folder, columns=["bag", "scores", "labels", "label_names"])
    pairs = bags.explode(["labels", "label_names"]).dropna(subset=["labels"])
    pairs["score"] = [
        float(scores[label]) for scores, label in zip(pairs.scores, pairs.labels, strict=True)
    ]
    found = pairs.groupby("label_names").score.agg(["size", "mean"])
    yield from ((name, int(size), mean) for name, size, mean in found.itertuples())


def with_polars(folder: str) -> Iterator[Line]:
    """Lazily: only the columns that are asked for are read."""
    import polars as pl  # type: ignore[import,unused-ignore]  # noqa: PLC0415

    pairs = (
        pl.scan_parquet(f"{folder}/*.parquet")
        .select("scores", "labels", "label_names")
        .explode("labels", "label_names")
        .drop_nulls("labels")
        .with_columns(pl.col("scores").list.get(pl.col("labels")).cast(pl.Float64).alias("score"))
    )
    found = pairs.group_by("label_names").agg(pl.len(), pl.col("score").mean())
    yield from found.collect().iter_rows()


def with_duckdb(folder: str) -> Iterator[Line]:
    """In SQL; lists are counted from 1 there."""
    import duckdb  # type: ignore[import,unused-ignore]  # noqa: PLC0415

    question = """
        with pairs as (
            select unnest(labels) as label, unnest(label_names) as name, scores
            from read_parquet(?)
        )
        select name, count(*), avg(scores[label + 1]::double) from pairs group by name
    """
    yield from duckdb.execute(question, [f"{folder}/*.parquet"]).fetchall()


def with_pyarrow(folder: str) -> Iterator[Line]:
    """With nothing but what streammiml itself needs."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    found: dict[str, list[float]] = {}
    for bag in pq.read_table(folder, columns=["scores", "labels", "label_names"]).to_pylist():
        for label, name in zip(bag["labels"], bag["label_names"], strict=True):
            found.setdefault(name, []).append(bag["scores"][label])
    yield from ((name, len(of), sum(of) / len(of)) for name, of in found.items())


WAYS: dict[str, Callable[[str], Iterator[Line]]] = {
    "pandas": with_pandas,
    "polars": with_polars,
    "duckdb": with_duckdb,
    "pyarrow": with_pyarrow,
}


def main(folder: str, way: Literal["pyarrow", "pandas", "polars", "duckdb"] = "pyarrow") -> Any:
    """Print the table, labels in order; the way must be installed."""
    for name, count, mean in sorted(WAYS[way](folder)):
        print(f"{name:<20} {count:>6} {mean:>9.3f}")


if __name__ == "__main__":
    cyclopts.run(main)
