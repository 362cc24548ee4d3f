"""``METHODS``: every method that MIMLfast can be compared with, by the name that users type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any

from streammiml.errors import unknown
from streammiml.rivals import costs

if TYPE_CHECKING:
    from streammiml.rivals.rival import Rival


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method: how it is called, made and tuned, and what it needs."""

    name: str
    """As users type it."""
    title: str
    """As the literature writes it, for headings of tables."""
    home: str
    """Module and class of the estimator, below ``streammiml.rivals``."""
    grid: tuple[dict[str, Any], ...]
    """Settings among which cross validation chooses; the first are the published defaults."""
    cost: Callable[[int, int, int, int], int]
    """Bytes that ``fit`` needs, estimated from the numbers of bags, rows, features and labels."""
    needs: str = "sklearn"
    """Extra of streammiml that must be installed."""
    has_key_instances: bool = False
    """Whether the estimator has ``key_instances``."""

    def make(self, **settings: Any) -> Rival:
        """Make an estimator with these settings; a missing extra raises StreammimlError."""
        module, class_name = self.home.split(":")
        estimator: Rival = getattr(import_module(f"streammiml.rivals.{module}"), class_name)(
            **settings
        )
        return estimator


def _grid(**choices: tuple[Any, ...]) -> tuple[dict[str, Any], ...]:
    """All combinations of these choices; the first choice of each comes first."""
    return tuple(dict(zip(choices, values, strict=True)) for values in product(*choices.values()))


_ROW_SCALES = ("range", "unit")
_SCALES = ("standard", "unit", "sqrt+unit")
_KNOWN = (
    Method(
        name="ranklosssim",
        title="RankLossSIM",
        home="rank_loss_sim:RankLossSIM",
        # Published: 1e-1 to 1e-9. Larger values underfit every set; smaller ones need more steps.
        grid=_grid(scale=("standard", "unit"), regularisation=(1e-4, 1e-3, 1e-5)),
        cost=costs.blocks,
        has_key_instances=True,
    ),
    Method(
        name="mimlknn",
        title="MIMLkNN",
        home="miml_knn:MIMLkNN",
        # The published numbers, those of the Java library, and twice the published ones.
        grid=tuple(
            {"scale": scale, "n_references": references, "n_citers": citers}
            for scale in _ROW_SCALES
            for references, citers in ((10, 20), (4, 6), (20, 40))
        ),
        cost=costs.nearest,
    ),
    Method(
        name="kisar",
        title="KISAR",
        home="kisar:KISAR",
        grid=_grid(scale=_ROW_SCALES, cost=(500.0, 50.0, 5.0)),
        cost=costs.prototypes,
        has_key_instances=True,
    ),
    Method(
        name="mimlsvm",
        title="MIMLSVM",
        home="miml_svm:MIMLSVM",
        # The published kernel becomes the identity with many bags; "scale" does not.
        grid=_grid(scale=_ROW_SCALES, gamma=(0.2, "scale"), cost=(1.0, 10.0)),
        cost=costs.all_pairs,
    ),
    Method(
        name="mimlboost",
        title="MIMLBoost",
        home="miml_boost:MIMLBoost",
        # A fit takes minutes to hours, so there is nothing to choose.
        grid=({},),
        cost=costs.row_label_pairs,
    ),
    Method(
        name="dba",
        title="DBA",
        home="dba:DBA",
        grid=_grid(temper=(False, True)),
        cost=costs.blocks,
        has_key_instances=True,
    ),
    Method(
        name="forest",
        title="pooled forest",
        home="pooled_forest:PooledForest",
        grid=_grid(max_features=("sqrt", 0.3, 0.6), min_samples_leaf=(1, 2, 4)),
        cost=costs.forest,
    ),
    Method(
        name="logistic",
        title="pooled logistic regression",
        home="pooled_logistic:PooledLogistic",
        grid=_grid(scale=_SCALES, cost=(1.0, 0.003, 0.01, 0.03, 0.1, 0.3, 3.0, 10.0, 30.0, 100.0)),
        cost=costs.pooled,
    ),
    Method(
        name="plt",
        title="napkinXC PLT",
        home="label_tree:LabelTree",
        grid=_grid(scale=_SCALES, cost=(1.0, 0.1, 0.3, 3.0, 10.0), max_leaves=(100, 4)),
        cost=costs.pooled,
        needs="peers",
    ),
)
METHODS: Mapping[str, Method] = {method.name: method for method in _KNOWN}


def method_called(name: str) -> Method:
    """Return the method of this name; an unknown name raises StreammimlError with all names."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
