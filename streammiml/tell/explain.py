"""``explain``: tables of key instances and sub-concepts, and pictures where rows are images."""

from __future__ import annotations

import os
import re
from functools import partial
from importlib import import_module
from typing import Any

from streammiml.errors import StreammimlError
from streammiml.measure.explain import explain_store
from streammiml.measure.scored import ModelLike, StoreLike, opened


def explain(
    model: ModelLike,
    store: StoreLike,
    out: str | os.PathLike[str],
    *,
    image: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Write why each label was predicted, and say what the sub-concepts of each hold.

    See :func:`~streammiml.measure.explain.explain_store` for what is written, and for the options.

    Parameters
    ----------
    model
        A model, or the path of a run folder or model file.
    store
        A store, several, or a view, or their paths.
    out
        Folder for the explanations, new or begun with the same model, store and settings.
    image
        Rows are images of this size, ``28x28`` or ``32x32x3``: draw contact sheets of them, of the
        sub-concepts of each label and of key instances.
    options
        ``typical``: bags named for each sub-concept (10). ``jsonl``: the key instances of every bag
        as JSON lines too. ``threads``, ``workers``, ``scheduler``,
        ``worker_memory``, ``block_bytes``, ``watch``: as in :func:`~streammiml.predict`.

    Examples
    --------
    >>> said = sm.explain("run", "test.zarr", "why")
    >>> [label["name"] for label in said["labels"]]
    ['dog', 'car', 'tree']
    >>> sorted(said["labels"][0]["subconcepts"][0]["typical"][0])
    ['bag', 'bag_id', 'row', 'score']
    """
    model, store = opened(model, store)
    if image is not None:
        shape = image_shape(image, store.n_features)
        options["draw"] = partial(_sheets().draw_sheets, model=model, store=store, shape=shape)
    return explain_store(model, store, out, **options)


def image_shape(text: str, n_features: int) -> tuple[int, ...]:
    """Height, width and perhaps channels of ``28x28`` or ``32x32x3``; must fill a row exactly."""
    if not re.fullmatch(r"[1-9]\d{0,4}x[1-9]\d{0,4}(x[34])?", text):
        raise StreammimlError(f"image must be a size such as 28x28 or 32x32x3, got {text!r}")
    shape = tuple(int(number) for number in text.split("x"))
    size = shape[0] * shape[1] * (shape[2] if len(shape) == 3 else 1)
    if size != n_features:
        raise StreammimlError(
            f"an image of {text} has {size} values, and rows of the store have {n_features}"
        )
    return shape


def _sheets() -> Any:
    try:  # Loaded late: an extra that only pictures need.
        return import_module("streammiml.tell.sheets")
    except ImportError as error:
        if not (error.name or "").startswith("matplotlib"):
            raise
        raise StreammimlError(
            "pictures need matplotlib: pip install 'streammiml[report]'"
        ) from None
