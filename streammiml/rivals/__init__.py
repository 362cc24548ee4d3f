"""The methods that MIMLfast is compared with, as estimators with the face of ``MIMLfast``.

>>> model = sm.rivals.MIMLkNN(n_references=4, n_citers=6).fit("corpus.zarr")
>>> model.score("test.zarr") > 0.9
True
>>> sm.rivals.RankLossSIM(rounds=3).fit("corpus.zarr").key_instances("test.zarr").shape
(100, 3)

``fit(bags, y)`` takes what ``MIMLfast`` takes, or a store or its path without ``y``. Estimators
have ``predict`` and ``decision_function``; RankLossSIM, KISAR and DBA also ``key_instances``.
``registry.METHODS`` lists all methods, with settings to choose from and the memory that each takes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streammiml.rivals.dba import DBA as DBA
    from streammiml.rivals.kisar import KISAR as KISAR
    from streammiml.rivals.label_tree import LabelTree as LabelTree
    from streammiml.rivals.miml_boost import MIMLBoost as MIMLBoost
    from streammiml.rivals.miml_knn import MIMLkNN as MIMLkNN
    from streammiml.rivals.miml_svm import MIMLSVM as MIMLSVM
    from streammiml.rivals.pooled_forest import PooledForest as PooledForest
    from streammiml.rivals.pooled_logistic import PooledLogistic as PooledLogistic
    from streammiml.rivals.rank_loss_sim import RankLossSIM as RankLossSIM

_HOMES = {
    "DBA": "dba",
    "KISAR": "kisar",
    "LabelTree": "label_tree",
    "MIMLBoost": "miml_boost",
    "MIMLSVM": "miml_svm",
    "MIMLkNN": "miml_knn",
    "PooledForest": "pooled_forest",
    "PooledLogistic": "pooled_logistic",
    "RankLossSIM": "rank_loss_sim",
}

__all__ = [
    "DBA",
    "KISAR",
    "MIMLSVM",
    "LabelTree",
    "MIMLBoost",
    "MIMLkNN",
    "PooledForest",
    "PooledLogistic",
    "RankLossSIM",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'streammiml.rivals' has no attribute {name!r}")
    return getattr(import_module(f"streammiml.rivals.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
