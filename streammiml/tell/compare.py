"""``compare``: how MIMLfast and other methods do on the bags of one store, as table and page."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from streammiml._base.display import shown
from streammiml.bags.views import Bags
from streammiml.config import TrainConfig
from streammiml.errors import unknown
from streammiml.measure.prediction_folder import atomic_file
from streammiml.measure.registry import spoken
from streammiml.measure.scoring import StoreLike
from streammiml.rivals.registry import Method
from streammiml.search.comparison import CompareOptions, CompareProgress, run_comparison
from streammiml.search.comparison_table import MethodComparison, arrow, mean_seconds, with_spread
from streammiml.search.search_display import CompareDisplay
from streammiml.tell.report import PAGE


def compare(
    store: StoreLike,
    out: str | os.PathLike[str],
    config: TrainConfig | None = None,
    *,
    methods: str | Sequence[str | Method] = "all",
    watch: Callable[[CompareProgress], None] = lambda _: None,
    progress: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Compare MIMLfast with other methods on random splits of a store.

    All methods have the same splits, and choose their settings by the same cross validation within
    the training bags. Each method on each split is a cell. It runs in a process of its own, with
    one thread for arithmetic, and ends at the time limit. Cells that exceed the time limit or the
    memory, or lack a package, have no figures, and the reason is reported.

    The folder ``out`` gets ``cells/``, with one file for each finished cell, so that a killed
    comparison can resume; ``cells.jsonl`` with all of them; ``table.md`` with means, standard
    deviations and tests; ``settings.toml``; and ``report.html``, which needs jinja2. Figures do
    not depend on the number of threads or workers. More methods, splits and sizes can be added
    later.

    Parameters
    ----------
    store
        A store, several stores, a view, or their paths.
    out
        Folder of the comparison, new or begun with the same store, seed, folds and limits.
    config
        Settings of MIMLfast that its search does not vary.
    methods
        Names of methods, as a list or joined by commas, or ``all``. ``mimlfast`` has default
        settings, ``mimlfast-best`` those of ``tune`` with the grid *best*; the others are in
        ``streammiml.rivals``. A list may also hold objects of ``rivals.registry.Method``.
    watch
        Called with the progress at the start and after each cell.
    progress
        Print a line for each cell.
    options
        ``splits`` (10), ``folds`` (3), ``time_limit`` ("10min"), ``memory`` ("4GiB"), ``sizes``
        (numbers of training bags, joined by commas, for a chart of time against bags), ``seed``
        (0); and ``threads`` (cells at a time, by default one for each core), ``workers``,
        ``scheduler``, ``client``, ``worker_memory``, as in :func:`~streammiml.evaluate`.

    Returns
    -------
    ``methods``, titles by name; ``reference``, the mode of MIMLfast that the others are tested
    against; ``table``, with ``mean``, ``std``, ``splits`` and ``mark`` of each method by criterion
    and method; ``cells``, a list with the results of all cells; and ``not_available``, sentences
    that say why figures are missing.

    Examples
    --------
    >>> config = sm.TrainConfig(shared_dim=10, epochs=3)
    >>> result = sm.compare("corpus.zarr", "compared", config, methods="mimlfast", splits=2)
    >>> result["table"]["ranking_loss"]["mimlfast"]["splits"]
    2
    """
    known = [field.name for field in fields(CompareOptions)]
    for name in options:
        if name not in known:
            raise unknown("option of compare", name, known)
    with shown(CompareDisplay, watch, progress=progress) as watch:
        comparison = run_comparison(
            store,
            out,
            methods,
            config,
            CompareOptions(**options),
            watch=watch,
            finish=_write_page,
        )
    return summary(comparison)


def summary(comparison: MethodComparison) -> dict[str, Any]:
    """What :func:`compare` returns."""
    return {
        "methods": dict(comparison.methods),
        "reference": comparison.reference,
        "table": {
            figure: {method: comparison.entry(method, figure) for method in comparison.methods}
            for figure in comparison.criteria
        },
        "cells": [result.line() for result in comparison.cells],
        "not_available": comparison.missing(),
    }


def has_pages() -> bool:
    """Whether pages can be written: jinja2 is an optional package."""
    return find_spec("jinja2") is not None


def _write_page(folder: Path, store: Bags, comparison: MethodComparison) -> None:
    if has_pages():
        with atomic_file(folder / PAGE) as file:
            file.write(page(store, comparison).encode())


def page(store: Bags, comparison: MethodComparison) -> str:
    """The page of a comparison."""
    # Loaded late: these modules need jinja2.
    charts = import_module("streammiml.tell.comparison_charts")
    pages = import_module("streammiml.tell.page")
    makers = (charts.criteria_section, charts.rank_section, charts.time_section)
    sections = [section for make in makers if (section := make(comparison)).charts]
    names = list(comparison.methods)
    rows = [
        (
            f"{spoken(figure)} {arrow(figure)}",
            [
                with_spread(values, comparison.mark(name, figure))
                if (values := comparison.values(name, figure))
                else ""
                for name in names
            ],
        )
        for figure in comparison.criteria
    ]
    rows += [
        (f"seconds to {what}", [mean_seconds(comparison.seconds(name, what)) for name in names])
        for what in ("choose", "fit", "score")
    ]
    content = {
        "title": f"Methods compared on {store.name}",
        "version": version("streammiml"),
        "note": (
            f"{store.n_bags:,} bags, {store.n_rows:,} rows of {store.n_features:,} features, "
            f"{store.n_labels:,} labels; {comparison.n_splits} random splits into two thirds for "
            "training and one third for testing."
        ),
        "legend": comparison.legend(),
        "methods": list(comparison.methods.values()),
        "rows": rows,
        "missing": comparison.missing(),
        "sections": sections,
        "settings": [(comparison.methods[name], _chosen(comparison, name)) for name in names],
    }
    rendered: str = pages.render(content, "comparison.html")
    return rendered


def _chosen(comparison: MethodComparison, method: str) -> str:
    """Settings that cross validation chose, the most frequent first."""
    texts = Counter(
        ", ".join(f"{name} {value}" for name, value in result.chosen.items()) or "default"
        for result in comparison.of_method(method)
        if result.reason is None
    )
    return "; ".join(f"{text} ({count})" for text, count in texts.most_common()) or "N/A"
