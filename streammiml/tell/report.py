"""``report``: one page about one or several runs, from their folders and a scored store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from streammiml._base.atomic import local_path, save_whole
from streammiml.bags.coordinates import coordinate_columns
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.errors import StoreError, StreammimlError
from streammiml.learn.holdout import Holdout
from streammiml.measure.full_evaluation import FullEvaluation, evaluate_fully
from streammiml.measure.registry import METRICS
from streammiml.measure.scoring import ScoreOptions, StoreLike, Watch
from streammiml.model import Model
from streammiml.tell.chart_sections import SCORES, TRAINING, chart_sections
from streammiml.tell.charts import histogram
from streammiml.tell.examples import TYPICAL, Viewer, chosen_bags, examples, subconcepts
from streammiml.tell.explain import image_shape
from streammiml.tell.run_record import RunRecord, read_run
from streammiml.tell.run_summary import RunSummary, ScoredStore, summarize
from streammiml.tell.tables import figure_columns, label_tables, labelled_columns, metric_names

PAGE = "report.html"
MARK = b'<meta name="generator" content="streammiml report">'
"""Line near the beginning of every page; only files that contain it are replaced."""


def report(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] = PAGE,
    *,
    store: StoreLike | None = None,
    image: str | None = None,
    coordinates: str | None = None,
    title: str | None = None,
    others: Mapping[str, Mapping[str, float]] | None = None,
    watch: Watch = lambda _: None,
    **options: Any,
) -> Path:
    """Write a page about one or several runs and return its path; the page needs no network.

    For a run that is not finished, the page shows how far the run got.

    Parameters
    ----------
    runs
        Folder of a run, or several folders, whose runs are then shown side by side.
    out
        Path of the page; a page that an earlier report wrote is replaced.
    store
        Store whose bags are scored by the models of all runs; preferably one that no run was
        trained on. Without it, each run is scored on the bags that it held out for early stopping.
    image
        Size of the images that rows hold, ``28x28`` or ``32x32x3``; the page then shows them.
    coordinates
        Kept columns that say where rows lie: a column of two numbers or of one (a time), two
        columns of one number (``x,y``), or ``none``. The page then shows, for its example bags, the
        row scores where the rows lie. By default: the column ``coords``, ``coordinates`` or ``xy``,
        the only column of two numbers, the columns ``x`` and ``y``, or the column ``time`` or
        ``times``, whichever the store keeps first.
    title
        Title of the page.
    others
        Figures of other methods on the same bags, by method and metric, for comparison.
    watch
        Called with the progress at the start and after each task.
    options
        ``threads``, ``workers``, ``scheduler``, ``client``, ``worker_memory``, ``block_bytes``: as
        in :func:`~streammiml.evaluate`.

    Examples
    --------
    >>> sm.report("run", "page.html", store="test.zarr").name
    'page.html'
    """
    evaluate = partial(
        evaluate_fully, typical=TYPICAL, options=ScoreOptions(**options), watch=watch
    )
    paths = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    if not paths:
        raise StreammimlError("a report needs the folder of a run")
    out = local_path(out, "pages", "file")
    check_replaceable(out)
    page = _page()
    records = [read_run(path) for path in paths]
    common = None if store is None else store if isinstance(store, Bags) else open_store(store)
    if common is not None:
        # Options that do not fit the store are refused before bags are scored.
        coordinate_columns(common, coordinates)
        if image is not None:
            image_shape(image, common.n_features)
    summaries: list[RunSummary] = []
    for name, record in zip(_names(paths), records, strict=True):
        # With a common store, all runs show the bags that were chosen for the first run.
        bags = None
        if common is not None:
            bags = next((run.scored.bags for run in summaries if run.scored.bags), None)
        scored = _score(record, common, image, coordinates, bags, evaluate)
        summaries.append(summarize(name, record, scored))
    labelled_names, labelled_figures = labelled_columns(summaries)
    fingerprints = {run.scored.store.fingerprint for run in summaries if run.scored.store}
    content = {
        "title": title or "Report on " + ", ".join(run.name for run in summaries),
        "version": version("streammiml"),
        "runs": summaries,
        "training_charts": chart_sections(TRAINING, summaries),
        "score_charts": chart_sections(SCORES, summaries),
        "figures": figure_columns(summaries, others or {}),
        "metric_names": metric_names(summaries),
        "labelled_figures": labelled_figures,
        "labelled_names": labelled_names,
        "better": {name: metric.better for name, metric in METRICS.items()},
        "same_bags": len(fingerprints) <= 1,
        "tables": label_tables(summaries),
        "is_image": image is not None,
    }
    save_whole(out, [page.render(content).encode()])
    return out


def check_replaceable(out: Path) -> None:
    """Refuse to replace anything but an earlier page; refuse a path in a missing folder."""
    if out.is_dir():
        raise StreammimlError(f"{out} is a folder; name a file for the page: {out / PAGE}")
    if not out.parent.is_dir():
        raise StreammimlError(
            f"{out.parent} is not a folder, so {out} cannot be written; make the folder"
        )
    if out.exists():
        with out.open("rb") as file:
            if MARK not in file.read(1024):
                raise StreammimlError(
                    f"{out} exists and is not a page of an earlier report; name another file"
                )


def _page() -> Any:
    try:  # Imported here: jinja2 is an optional extra.
        return import_module("streammiml.tell.page")
    except ImportError as error:
        if not (error.name or "").startswith("jinja2"):
            raise
        raise StreammimlError("a page needs jinja2: pip install 'streammiml[report]'") from None


def _names(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Name runs by the last part of their paths, or by more parts where names would be equal."""
    parts = [Path(path).absolute().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names


def _score(
    record: RunRecord,
    common: Bags | None,
    image: str | None,
    coordinates: str | None,
    bags: list[int] | None,
    evaluate: Callable[[Model, Bags], FullEvaluation],
) -> ScoredStore:
    """Score the common store, or else the held-out bags, with the model of a run.

    A common store that does not fit the model is refused. Without a model, or without held-out
    bags, the result has only a note that says why.
    """
    if record.model is None:
        return ScoredStore(
            "This run has no finished model yet, so there are no figures, labels and key "
            "instances. streammiml train with --resume continues the run."
        )
    if common is not None:
        store, note = common, f"All {common.n_bags:,} bags of {common.name}."
    else:
        held_out = _held_out_bags(record)
        if isinstance(held_out, str):
            return ScoredStore(held_out)
        store, note = held_out
    shape = image_shape(image, store.n_features) if image is not None else None
    columns = coordinate_columns(store, coordinates)
    model = record.model.for_labels(store.label_names)
    figures = evaluate(model, store)
    names = store.label_names or record.model.label_names
    viewer = Viewer(store, names or [str(i) for i in range(store.n_labels)], shape, columns)
    bags = bags or chosen_bags(store, figures.subconcepts)
    # Examples come first: they set the range of brightness for all images of the page.
    shown = examples(viewer, model, bags)
    return ScoredStore(
        note,
        store,
        figures,
        histogram(figures.margins),
        subconcepts(viewer, figures.subconcepts),
        shown,
        bags,
        " and ".join(column.name for column in columns),
    )


def _held_out_bags(record: RunRecord) -> tuple[Bags, str] | str:
    """Open the bags that the run held out, with a note about them; or say why there are none."""
    advice = "Give --store to score the bags of a store with this model."
    settings = record.settings
    validation_store = settings.get("validation_store")
    share = settings.get("validation", 0.0)
    if validation_store is None and not share:
        return f"This run held out no bags, so there are none to score. {advice}"
    if validation_store is not None:
        paths, key = validation_store.split(","), "validation_fingerprint"
    elif record.origin is not None:
        paths, key = list(record.origin.stores), "fingerprint"
    else:
        return f"The run does not say where its store is. {advice}"
    try:
        store = open_store(paths)
    except StoreError:
        return f"The store {', '.join(paths)} can no longer be opened. {advice}"
    recorded = settings.get(key)
    if store.fingerprint != recorded:
        return (
            f"The store {store.name} is not what it was when this run began: its fingerprint is "
            f"{store.fingerprint} and not {recorded}. {advice}"
        )
    all_bags = validation_store is not None
    holdout = Holdout.of_all(store.n_bags) if all_bags else Holdout.of(share, store.n_bags)
    view = store.view(holdout.bags)
    return view, (
        f"The {view.n_bags:,} bags of {store.name} that were held out. Early stopping chose the "
        "model by their ranking loss, so figures on these bags are slightly too good; give "
        "--store with other bags for unbiased figures."
    )
