"""``streammiml report``: one page about one or several runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from streammiml.measure.score_display import ScoreDisplay
from streammiml.measure.scoring import DEFAULTS, ScoreOptions
from streammiml.tell.report import PAGE
from streammiml.tell.report import report as write_report
from streammiml.verbs.options import FLAT, Coordinates, ImageSize


def report(
    *runs: Annotated[str, Parameter(name="RUN...", negative="")],
    out: str = PAGE,
    store: Annotated[list[str] | None, Parameter(negative="")] = None,
    image: ImageSize = None,
    coordinates: Coordinates = None,
    title: str | None = None,
    scoring: Annotated[ScoreOptions, FLAT] = DEFAULTS,
) -> None:
    """Write one page that needs no network: figures, curves, labels, key instances.

    Parameters
    ----------
    runs
        Folder of a run; several runs are shown side by side.
    out
        File for the page; a page of an earlier report is replaced.
    store
        Store to score with the models of all runs, preferably one that no run was trained on; may
        be given several times. By default, each run is scored on the bags that it held out.
    title
        Title of the page.
    """
    with ScoreDisplay() as display:
        path = write_report(
            runs,
            out,
            store=store,
            image=image,
            coordinates=coordinates,
            title=title,
            **asdict(scoring),
            watch=display,
        )
    print(path)
