"""Grids of settings: the paper's, a small one, one for the best model, or anybody's."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from streammiml.config import ModelConfig, TrainConfig
from streammiml.errors import StreammimlError, unknown

Setting = dict[str, Any]
GridLike = str | os.PathLike[str] | Mapping[str, Sequence[Any]]

GRIDS: dict[str, dict[str, list[Any]]] = {
    "small": {
        "subconcepts": [1, 5, 10],
        "max_norm": [1.0, 10.0],
        "step_size": [0.005, 0.02, 0.1],
    },
    # "The candidate values for the parameters are as below", section 3.1.
    "paper": {
        "shared_dim": [50, 100, 200],
        "max_norm": [1.0, 5.0, 10.0],
        "subconcepts": [1, 5, 10, 15],
        "step_size": [0.0001, 0.0005, 0.001, 0.005],
        "decay": [1e-5, 1e-6],
    },
    "best": {
        "lift": ["none", "fourier:300:1", "context:all", "context:all,fourier:300:0.5"],
        "scale": ["auto", "sqrt:unit"],
        "subconcepts": [1, 5],
        "shared_space": [True, False],
    },
}
SPARSE_GRIDS: dict[str, dict[str, list[Any]]] = {
    "best": {
        "lift": ["none", "context:mean"],
        "subconcepts": [1, 5],
        "max_norm": [2.0, 10.0],
        "shared_dim": [100, 200],
    },
}
"""The same where rows are sparse: other lifts need dense ones, and without a shared space a step
would take the time of one on dense rows."""
SLOW_GRIDS = ("best",)
"""Settings that learn at different speeds: rows of one length are last after a 25th of the steps
where they are best in the end."""
SLOW_STEPS, SLOW_EPOCHS = 20_000, 8
"""What is enough to compare those; the winner may be trained for longer."""
SPARSE_SLOW_STEPS = 400_000
"""The same of sparse rows, up to as many epochs as training takes: many features are met in few
steps, and these are short."""


def settings_of(grid: GridLike, base: TrainConfig, *, sparse: bool = False) -> list[Setting]:
    """Every combination of a grid's values, each checked; the last option varies fastest."""
    values = _values(grid, sparse)
    known = [field.name for field in fields(ModelConfig) if field.name != "seed"]
    for name, several in values.items():
        if name not in known:
            raise unknown("option of a grid", name, known)
        if isinstance(several, str) or not isinstance(several, Sequence) or not several:
            raise StreammimlError(f"{name} of a grid must be a list of values, got {several!r}")
    found = [dict(zip(values, each, strict=True)) for each in product(*values.values())]
    for setting in found:
        replace(base, **setting)
    return found


def _values(grid: GridLike, sparse: bool) -> Mapping[str, Sequence[Any]]:
    if isinstance(grid, Mapping):
        return grid
    if sparse and grid in SPARSE_GRIDS:
        return SPARSE_GRIDS[str(grid)]
    if grid in GRIDS:
        return GRIDS[str(grid)]
    path = Path(grid)
    if path.suffix != ".toml":
        raise unknown("grid", str(grid), [*GRIDS, "a file of TOML lists"])
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StreammimlError(f"{path} cannot be read: {error}") from None


def key_of(setting: Mapping[str, Any]) -> str:
    """A name for a setting, the same in every run."""
    text = json.dumps(setting, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def toml(settings: Mapping[str, Any]) -> bytes:
    """Settings as ``train --config`` takes them; what is None stays out."""
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for name, value in settings.items()
        if value is not None
    ]
    return ("\n".join(lines) + "\n").encode()
