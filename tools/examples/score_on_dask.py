"""Score a store on a Dask cluster: yours, or one that is started here.

    python tools/examples/score_on_dask.py RUN STORE OUT [tcp://scheduler:8786]

Workers must see STORE and OUT under the same names. The figures are those of a single thread, to
the last bit; a worker that dies costs time and nothing else.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import cyclopts
from distributed import LocalCluster

import streammiml as sm


def main(run: str, store: str, out: str, scheduler: str | None = None) -> None:
    """Evaluate and predict, on the cluster and for comparison in this process."""
    with ExitStack() as stack:
        if scheduler is None:
            cluster = stack.enter_context(LocalCluster(n_workers=2, threads_per_worker=1))  # type: ignore[no-untyped-call]
            scheduler = str(cluster.scheduler_address)
        print(f"scoring at {scheduler}")
        figures = sm.evaluate(run, store, scheduler=scheduler)
        alone = sm.evaluate(run, store, threads=1)
        print(f"ranking loss {figures['ranking_loss']!r}, the same alone: {figures == alone}")
        done = sm.predict(run, store, Path(out) / "predictions", scheduler=scheduler)
        print(f"{done['n_bags']} bags in {done['n_parts']} files")


if __name__ == "__main__":
    cyclopts.run(main)
