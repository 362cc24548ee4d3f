"""``streammiml report``: one page on one run or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from streammiml.measure.scored import BLOCK_BYTES
from streammiml.tell.report import PAGE
from streammiml.tell.report import report as write_report
from streammiml.verbs.show import Show


def report(
    *runs: Annotated[str, Parameter(name="RUN...", negative="")],
    out: Path = Path(PAGE),
    store: Annotated[list[str] | None, Parameter(negative="")] = None,
    image: str | None = None,
    title: str | None = None,
    threads: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    worker_memory: str | None = None,
    block_bytes: str = BLOCK_BYTES,
) -> None:
    """Write one page that opens without a network: figures, curves, labels, key instances.

    Parameters
    ----------
    runs
        Folder of a run; several stand side by side.
    out
        The page; one that an earlier report wrote is replaced.
    store
        Store to score with every run, best one that none has seen; may be given several times. The
        held-out bags of each run unless given.
    image
        Rows are images of this size, 28x28 or 32x32x3: show them.
    title
        Of the page.
    threads
        Threads of this process; one a core unless given.
    workers
        Processes of a local cluster to start instead.
    scheduler
        Address of a running Dask scheduler to use instead.
    worker_memory
        What each of the --workers may take; an equal share of the machine's unless given.
    block_bytes
        What a task reads at a time at most, and about a half of what it holds.
    """
    with Show() as show:
        path = write_report(
            runs,
            out,
            store=store,
            image=image,
            title=title,
            threads=threads,
            workers=workers,
            scheduler=scheduler,
            worker_memory=worker_memory,
            block_bytes=block_bytes,
            watch=show,
        )
    print(path)
