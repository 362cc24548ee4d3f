"""``report``: one page on one run or several, made of what their folders and a store say."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.errors import StoreError, StreammimlError
from streammiml.learn.holdout import Holdout
from streammiml.measure.registry import METRICS
from streammiml.measure.scored import StoreLike
from streammiml.measure.survey import survey
from streammiml.model import write_whole
from streammiml.tell.charts import histogram
from streammiml.tell.examples import TYPICAL, Viewer, chosen_bags, examples, subconcepts
from streammiml.tell.explain import image_shape
from streammiml.tell.figures import figures, label_tables, learning_curves, metric_names
from streammiml.tell.runs import RunRecord, read_run
from streammiml.tell.telling import Seen, Told, tell

PAGE = "report.html"
MARK = b'<meta name="generator" content="streammiml report">'


def report(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] = PAGE,
    *,
    store: StoreLike | None = None,
    image: str | None = None,
    title: str | None = None,
    others: Mapping[str, Mapping[str, float]] | None = None,
    **options: Any,
) -> Path:
    """Write one page that needs no network on one run or several, and return its path.

    A run that is still going on, or was killed, is told as far as it got.

    Parameters
    ----------
    runs
        Folder of a run, or several to stand side by side.
    out
        The page; one that an earlier report wrote is replaced.
    store
        Store whose bags are scored, the same for all runs; best one that no run has seen. Unless
        given, each run is scored on the bags that its early stopping looked at, if they are found.
    image
        Rows are images of this size, ``28x28`` or ``32x32x3``: show them.
    title
        Of the page.
    others
        Figures of other methods on the same bags, by name, to stand beside those of the runs.
    options
        ``threads``, ``workers``, ``scheduler``, ``worker_memory``, ``block_bytes``, ``watch``: as
        in :func:`~streammiml.evaluate`.

    Examples
    --------
    >>> sm.report("run", "page.html", store="test.zarr").name
    'page.html'
    """
    paths = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    if not paths:
        raise StreammimlError("a report needs the folder of a run")
    out = Path(out)
    check_replaceable(out)
    page = _page()
    records = [read_run(path) for path in paths]
    common = None if store is None else store if isinstance(store, Bags) else open_store(store)
    if common is not None and image is not None:
        image_shape(image, common.n_features)
    told: list[Told] = []
    for name, record in zip(_names(paths), records, strict=True):
        # Of a common store, runs show the bags that the first of them chose.
        shown = next(
            (each.seen.bags for each in told if common is not None and each.seen.bags), None
        )
        told.append(tell(name, record, _look(record, common, image, shown, options)))
    content = {
        "title": title or "Report on " + ", ".join(each.name for each in told),
        "version": version("streammiml"),
        "runs": told,
        "charts": learning_curves(told),
        "figures": figures(told, others or {}),
        "metric_names": metric_names(told),
        "better": {name: metric.better for name, metric in METRICS.items()},
        "same_bags": len({each.seen.store.fingerprint for each in told if each.seen.store}) <= 1,
        "tables": label_tables(told),
        "is_image": image is not None,
    }
    write_whole(out, [page.render(content).encode()])
    return out


def check_replaceable(out: Path) -> None:
    """Refuse to write over anything but an earlier page, and where nothing can be written."""
    if out.is_dir():
        raise StreammimlError(f"{out} is a folder; name a file for the page: {out / PAGE}")
    if not out.parent.is_dir():
        raise StreammimlError(f"{out.parent} is no folder, so {out} cannot be written; make it")
    if out.exists():
        with out.open("rb") as file:
            if MARK not in file.read(1024):
                raise StreammimlError(
                    f"{out} exists and is no page of an earlier report; name another file"
                )


def _page() -> Any:
    try:  # Loaded late: an extra that only pages need.
        return import_module("streammiml.tell.page")
    except ImportError as error:
        if not (error.name or "").startswith("jinja2"):
            raise
        raise StreammimlError("a page needs jinja2: pip install 'streammiml[report]'") from None


def _names(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Last parts of the paths, or as much of their ends as tells them apart."""
    parts = [Path(path).absolute().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names


def _look(
    record: RunRecord,
    common: Bags | None,
    image: str | None,
    bags: list[int] | None,
    options: Mapping[str, Any],
) -> Seen:
    """Score a store with the run's model; the common one must fit, another may be gone."""
    if record.model is None:
        return Seen(
            "This run has no finished model yet: figures, labels and key instances come with it. "
            "streammiml train with --resume goes on."
        )
    if common is not None:
        store, what = common, f"All {common.n_bags:,} bags of {common.name}."
    else:
        found = _own_bags(record)
        if isinstance(found, str):
            return Seen(found)
        store, what = found
    shape = image_shape(image, store.n_features) if image is not None else None
    made = survey(record.model, store, typical=TYPICAL, **options)
    names = store.label_names or record.model.label_names
    viewer = Viewer(store, names or [str(i) for i in range(store.n_labels)], shape)
    bags = bags or chosen_bags(store, made.concepts)
    # First, since they settle how dark pictures are.
    shown = examples(viewer, record.model, bags)
    return Seen(
        what,
        store,
        made,
        histogram(made.margins),
        subconcepts(viewer, made.concepts),
        shown,
        bags,
    )


def _own_bags(record: RunRecord) -> tuple[Bags, str] | str:
    """The bags that early stopping looked at, in words too; or why there are none."""
    way_out = "Give --store to score the bags of a store with this model."
    settings = record.settings
    apart = settings.get("validation_store")
    share = settings.get("validation", 0.0)
    if apart is None and not share:
        return f"This run held out no bags, so there are none to score. {way_out}"
    if apart is None and record.origin is None:
        return f"The run does not say where its store is. {way_out}"
    places = apart.split(",") if apart is not None else list(record.origin.stores)  # type: ignore[union-attr]
    try:
        store = open_store(places)
    except StoreError:
        return f"The store {', '.join(places)} cannot be opened any more. {way_out}"
    wanted = settings.get("fingerprint" if apart is None else "validation_fingerprint")
    if store.fingerprint != wanted:
        return (
            f"The store {store.name} is not what it was when this run began: its fingerprint is "
            f"{store.fingerprint} and not {wanted}. {way_out}"
        )
    held = Holdout.of_all(store.n_bags) if apart is not None else Holdout.of(share, store.n_bags)
    view = store.view(held.bags)
    return view, (
        f"The {view.n_bags:,} bags of {store.name} that were held out. Early stopping chose the "
        "model by their ranking loss, so it flatters slightly; bags of another store (--store) "
        "do not."
    )
