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
"""Each line has a label, the number of its bags, and their mean score."""


def with_pandas(folder: str) -> Iterator[Line]:
    """Use pandas, whose ``explode`` makes a line of each element of a list."""
    import pandas as pd  # type: ignore[import,unused-ignore]  # noqa: PLC0415

    bags = pd.read_parquet(folder, columns=["bag", "scores", "labels", "label_names"])
    pairs = bags.explode(["labels", "label_names"]).dropna(subset=["labels"])
    pairs["score"] = [
        float(scores[label]) for scores, label in zip(pairs.scores, pairs.labels, strict=True)
    ]
    by_name = pairs.groupby("label_names").score.agg(["size", "mean"])
    yield from ((name, int(size), mean) for name, size, mean in by_name.itertuples())


def with_polars(folder: str) -> Iterator[Line]:
    """Use Polars lazily, so that only the needed columns are read."""
    import polars as pl  # type: ignore[import,unused-ignore]  # noqa: PLC0415

    pairs = (
        pl.scan_parquet(f"{folder}/*.parquet")
        .select("scores", "labels", "label_names")
        .explode("labels", "label_names")
        .drop_nulls("labels")
        .with_columns(pl.col("scores").list.get(pl.col("labels")).cast(pl.Float64).alias("score"))
    )
    by_name = pairs.group_by("label_names").agg(pl.len(), pl.col("score").mean())
    yield from by_name.collect().iter_rows()


def with_duckdb(folder: str) -> Iterator[Line]:
    """Use SQL, where the first element of a list has the number 1."""
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
    """Use pyarrow, which streammiml needs anyway."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    by_name: dict[str, list[float]] = {}
    for bag in pq.read_table(folder, columns=["scores", "labels", "label_names"]).to_pylist():
        for label, name in zip(bag["labels"], bag["label_names"], strict=True):
            by_name.setdefault(name, []).append(bag["scores"][label])
    yield from ((name, len(scores), sum(scores) / len(scores)) for name, scores in by_name.items())


WAYS: dict[str, Callable[[str], Iterator[Line]]] = {
    "pandas": with_pandas,
    "polars": with_polars,
    "duckdb": with_duckdb,
    "pyarrow": with_pyarrow,
}


def main(folder: str, way: Literal["pyarrow", "pandas", "polars", "duckdb"] = "pyarrow") -> Any:
    """Print the table, sorted by label; the chosen package must be installed."""
    for name, count, mean in sorted(WAYS[way](folder)):
        print(f"{name:<20} {count:>6} {mean:>9.3f}")


if __name__ == "__main__":
    cyclopts.run(main)
