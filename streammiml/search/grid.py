"""Grids of settings: the paper's, a small one, one for the best model, or one from a file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from streammiml._base.json_and_toml import parse_toml
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
"""Grids that differ for sparse rows: other lifts need dense rows, and without a shared space a step
would take as long as on dense rows."""
SLOW_GRIDS = ("best",)
"""Grids whose settings learn at different speeds, so that short trainings rank settings wrongly: a
setting that scales rows to norm 1 can be worst after a 25th of the steps and best at the end."""
SLOW_STEPS, SLOW_EPOCHS = 20_000, 8
"""Steps, or epochs if they are more steps, that are enough to compare settings of a slow grid."""
SPARSE_SLOW_STEPS = 400_000
"""Steps that are enough for sparse rows, limited by the default number of epochs: a step on sparse
rows is short and uses few of the features."""


def settings_of(grid: GridLike, base: TrainConfig, *, sparse: bool = False) -> list[Setting]:
    """List every combination of a grid's values, all validated; the last option varies fastest."""
    values = _values(grid, sparse)
    known = [field.name for field in fields(ModelConfig) if field.name != "seed"]
    for name, choices in values.items():
        if name not in known:
            raise unknown("option of a grid", name, known)
        if isinstance(choices, str) or not isinstance(choices, Sequence) or not choices:
            raise StreammimlError(f"{name} of a grid must be a list of values, got {choices!r}")
    settings = [
        dict(zip(values, combination, strict=True)) for combination in product(*values.values())
    ]
    for setting in settings:
        replace(base, **setting)  # Raises for a value that is not allowed.
    return settings


def _values(grid: GridLike, sparse: bool) -> Mapping[str, Sequence[Any]]:
    """Values of each option, from a mapping, the name of a grid, or the path of a TOML file."""
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
        return parse_toml(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StreammimlError(f"{path} cannot be read: {error}") from None


def key_of(setting: Mapping[str, Any]) -> str:
    """Name a setting by the hash of its values, for its files on disk."""
    text = json.dumps(setting, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
