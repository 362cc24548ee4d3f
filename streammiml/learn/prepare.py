"""What a run will do and hold, worked out before the first row is read."""

from __future__ import annotations

from dataclasses import dataclass

from streammiml.bags.views import Bags
from streammiml.blocks.budget import Budget, fit
from streammiml.blocks.plan import Plan
from streammiml.config import LiftSpec, TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.holdout import Holdout
from streammiml.learn.state import panel_bytes, state_bytes
from streammiml.learn.validation import (
    Validation,
    largest_lifted,
    open_validation,
    steps_between_looks,
)
from streammiml.learn.weighting import Visits, visits_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a run will do, before the first row is read."""

    budget: Budget
    visits: Visits
    """Bags of an epoch, but for those held out."""
    looks: Validation | None
    """What early stopping looks at."""
    every: int
    """Steps between two lines of the history, and two looks."""


def prepare(store: Bags, config: TrainConfig, holdout: Holdout | None = None) -> Prepared:
    """Plan, memory and bags held out; refuses what cannot be trained on or does not fit.

    ``holdout`` says which bags are held out, instead of the share in ``config``.
    """
    if store.n_bags == 0:
        raise StreammimlError(f"{store.name} has no bags to learn from")
    if store.n_labels < 1 or store.n_label_entries == 0:
        raise StreammimlError(f"{store.name} has no labels to learn from: no bag carries one")
    lift = LiftSpec.parse(config.lift)
    n_lifted = lift.width(store.n_features)
    share = config.validation if config.validation_store is None else None
    holdout = holdout or Holdout.of(share or 0.0, store.n_bags)
    looks = open_validation(config, store, holdout)
    held_out, kept, lifted = looks.sizes(n_lifted) if looks is not None else (0, 0, 0)
    visits = visits_of(store, config.weights, holdout, config.seed)
    if looks is None or looks.store is not store:
        lifted = max(lifted, largest_lifted(store, n_lifted))
    fixed = {
        "weights": state_bytes(config, n_lifted, store.n_labels),
        # The frequencies, and the numbers from which they are made.
        "lift": 2 * 4 * store.n_features * lift.n_fourier,
        "lifted bag": lifted * config.threads + panel_bytes(config, n_lifted),
        "validation": kept,
    }
    return Prepared(
        budget=fit(visits.listed, config, fixed),
        visits=visits,
        looks=looks,
        every=steps_between_looks(config, store, n_lifted, held_out),
    )


def mixing_in_words(plan: Plan) -> str:
    """What is mixed, in words."""
    if plan.order != "blocks":
        return f"bags are drawn from all {plan.n_bags:,}"
    return (
        f"bags are drawn from {plan.window:,} of {plan.n_blocks:,} blocks of {plan.block_bags}: "
        f"label counts vary {plan.vif:.2f} times as in a full shuffle if the store is sorted"
    )
