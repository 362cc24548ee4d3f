"""Presets: what stands for settings that are not given.

``plain`` is one fixed value for each setting. ``paper`` has the values of the paper. ``auto`` tries
a few candidates; ``learn/choice.py`` compares them on bags that are held out from training.

The candidates are all combinations of the values below, without settings that the user has given.
They come from ``tune --grid best``. Mean ranking loss on the first fold of its trials, 16 or 17
splits of each set, in thousandths; *elsewhere* is the setting that is best on the other three sets:

    ============  =====  =========  ==================  ====================
    set           plain  elsewhere  best of candidates  best with sqrt:unit
    ============  =====  =========  ==================  ====================
    Letter Frost  143.8  132.6      132.6               132.6
    MSRC v2        78.9   71.0       71.0                71.0
    Reuters        15.3   14.9       14.1                14.1
    Scene         185.5  185.5      185.5               185.5
    ============  =====  =========  ==================  ====================

With each set left out, the other three name the same setting: Fourier features, a shared space,
K = 5. The wrong value of ``shared_space`` costs 3 to 7 % of the loss, that of ``lift`` up to 4 %,
that of ``subconcepts`` up to 2 %. Another scale than ``auto`` gained on no set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from streammiml.config import Prefer, TrainConfig

Setting = dict[str, Any]

PLAIN: Mapping[str, Any] = {"init": "random"}
"""Values of ``plain`` where they differ from the defaults of ``TrainConfig``."""
PAPER: Mapping[str, Any] = {**PLAIN, "average": False, "max_norm": 10.0, "step_size": 0.005}
"""Values of the paper where they differ from ``plain``: the last iterate, and from the paper's
candidates the largest norm and the largest step size, which its own figures need."""

CANDIDATES: dict[str, list[Any]] = {
    "shared_space": [True, False],
    "subconcepts": [5, 1],
}
SPARSE_CANDIDATES: dict[str, list[Any]] = {
    "max_norm": [10.0, 2.0],
    "subconcepts": [5, 1],
}
"""Sparse rows have no Fourier features, and a step without a shared space would cost as much as on
dense rows."""
LIFTS: dict[Prefer, list[str]] = {
    "both": ["none", "fourier:300:1"],
    "keys": ["none"],
    "ranking": ["none", "fourier:300:1", "context:all", "context:all,fourier:300:0.5"],
}
SPARSE_LIFTS: dict[Prefer, list[str]] = {
    "both": ["none"],
    "keys": ["none"],
    "ranking": ["none", "context:mean"],
}
"""Lifts that are tried. Context makes every row contain features of its whole bag, which ranks bags
better and costs key instances."""


def with_preset(config: TrainConfig, given: Mapping[str, Any]) -> TrainConfig:
    """Fill in the values of a preset, except for settings that are given."""
    values = {"auto": {}, "plain": PLAIN, "paper": PAPER}[config.preset]
    return replace(config, **{name: values[name] for name in values if name not in given})


def candidates(config: TrainConfig, given: Mapping[str, Any], *, sparse: bool) -> list[Setting]:
    """List the settings to try; the first one is that of ``plain``."""
    if config.preset != "auto":
        return [{}]
    lifts = (SPARSE_LIFTS if sparse else LIFTS)[config.prefer]
    values = {"lift": lifts, **(SPARSE_CANDIDATES if sparse else CANDIDATES)}
    values = {name: choices for name, choices in values.items() if name not in given}
    if "shared_dim" in given:
        # Without a shared space, the dimensions that were given would have no effect.
        values.pop("shared_space", None)
    return [dict(zip(values, choices, strict=True)) for choices in product(*values.values())]
