"""``explain``: key instances and sub-concepts as tables, contact sheets and heat maps."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from streammiml._base.display import shown
from streammiml.bags.coordinates import coordinate_columns
from streammiml.errors import StreammimlError
from streammiml.measure.explain import explain_store
from streammiml.measure.score_display import ScoreDisplay
from streammiml.measure.scoring import (
    ModelLike,
    ScoreOptions,
    StoreLike,
    Watch,
    open_model_and_store,
)


def explain(
    model: ModelLike,
    store: StoreLike,
    out: str | os.PathLike[str],
    *,
    image: str | None = None,
    coordinates: str | None = None,
    typical: int = 10,
    jsonl: bool = False,
    watch: Watch = lambda _: None,
    progress: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Write why each label was predicted, and return what the sub-concepts of each label hold.

    See :func:`~streammiml.measure.explain.explain_store` for the files.

    Parameters
    ----------
    model
        A model, or the path of a run folder or model file.
    store
        A store, several stores, a view, or their paths.
    out
        Folder for the explanations, new or begun with the same model, store and settings.
    image
        Size of the images that rows hold, ``28x28`` or ``32x32x3``. If given, contact sheets are
        drawn: one for the sub-concepts of each label, and one for key instances.
    coordinates
        Kept columns that say where rows lie, as in :func:`~streammiml.report`; ``none`` for no
        pictures of them. For each label, ``heat_maps-LABEL.png`` then shows the row scores of its
        typical bags where the rows lie. Columns that are not named here are used only where
        matplotlib is installed.
    typical
        Number of bags that are listed for each sub-concept, the highest scores first.
    jsonl
        Also write the key instances of every bag as JSON lines.
    watch
        Called with the progress at the start and after each task.
    progress
        Show the progress: a live line in a terminal or a notebook, a line every few seconds
        elsewhere.
    options
        ``threads``, ``workers``, ``scheduler``, ``client``, ``worker_memory``, ``block_bytes``: as
        in :func:`~streammiml.predict`.

    Examples
    --------
    >>> summary = sm.explain("run", "test.zarr", "why")
    >>> [label["name"] for label in summary["labels"]]
    ['dog', 'car', 'tree']
    >>> sorted(summary["labels"][0]["subconcepts"][0]["typical"][0])
    ['bag', 'bag_id', 'row', 'score']
    """
    score_options = ScoreOptions(**options)
    model, store = open_model_and_store(model, store)
    pictures: list[Callable[..., object]] = []
    if image is not None:
        shape = image_shape(image, store.n_features)
        sheets = _with_matplotlib("contact_sheets").draw_sheets
        pictures.append(partial(sheets, model=model, store=store, shape=shape))
    columns = coordinate_columns(store, coordinates)
    if columns and (coordinates is not None or find_spec("matplotlib") is not None):
        maps = _with_matplotlib("map_sheets").draw_maps
        pictures.append(partial(maps, model=model, store=store, columns=columns))

    def draw(summary: Mapping[str, Any], folder: Path) -> None:
        for picture in pictures:
            picture(summary, folder)

    with shown(ScoreDisplay, watch, progress=progress) as watch:
        return explain_store(
            model,
            store,
            out,
            typical=typical,
            jsonl=jsonl,
            draw=draw,
            options=score_options,
            watch=watch,
        )


def image_shape(text: str, n_features: int) -> tuple[int, ...]:
    """Parse ``28x28`` or ``32x32x3``; refuse an image that has another size than a row."""
    if not re.fullmatch(r"[1-9]\d{0,4}x[1-9]\d{0,4}(x[34])?", text):
        raise StreammimlError(f"image must be a size such as 28x28 or 32x32x3, got {text!r}")
    shape = tuple(int(number) for number in text.split("x"))
    size = shape[0] * shape[1] * (shape[2] if len(shape) == 3 else 1)
    if size != n_features:
        raise StreammimlError(
            f"an image of {text} has {size} values, and rows of the store have {n_features}"
        )
    return shape


def _with_matplotlib(module: str) -> Any:
    try:  # Imported here: matplotlib is an optional extra.
        return import_module(f"streammiml.tell.{module}")
    except ImportError as error:
        if not (error.name or "").startswith("matplotlib"):
            raise
        raise StreammimlError(
            "pictures need matplotlib: pip install 'streammiml[report]'"
        ) from None
