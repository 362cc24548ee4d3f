"""The plan of a run and of its memory, made before the first row is read."""

from __future__ import annotations

from dataclasses import dataclass

from streammiml.bags.views import Bags
from streammiml.blocks.budget import Budget, fit
from streammiml.blocks.plan import BlockPlan
from streammiml.config import LiftSpec, TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.checkpoint import panel_bytes, state_bytes
from streammiml.learn.holdout import Holdout
from streammiml.learn.store_weights import Visits, visits_of
from streammiml.learn.validation import (
    Validation,
    largest_lifted,
    open_validation,
    steps_between_looks,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Blocks, memory, visited bags and validation of a run."""

    budget: Budget
    visits: Visits
    """Bags that an epoch visits, without held-out bags."""
    validation: Validation | None
    """Bags that early stopping looks at."""
    every: int
    """Steps between two lines of the history, and between two looks at the held-out bags."""


def plan_run(store: Bags, config: TrainConfig, holdout: Holdout | None = None) -> RunPlan:
    """Plan blocks, memory and held-out bags; refuse what cannot be trained on or does not fit.

    ``holdout`` replaces the share of held-out bags in ``config``.
    """
    if store.n_bags == 0:
        raise StreammimlError(f"{store.name} has no bags to learn from")
    if store.n_labels < 1 or store.n_label_entries == 0:
        raise StreammimlError(f"{store.name} has no labels to learn from: no bag carries one")
    lift = LiftSpec.parse(config.lift)
    n_lifted = lift.width(store.n_features)
    share = config.validation if config.validation_store is None else None
    holdout = holdout or Holdout.of(share or 0.0, store.n_bags)
    validation = open_validation(config, store, holdout)
    held_out_rows, kept_bytes, lifted = (0, 0, 0)
    if validation is not None:
        held_out_rows, kept_bytes, lifted = validation.sizes(n_lifted)
    visits = visits_of(store, config.weights, holdout, config.seed)
    if validation is None or validation.store is not store:
        lifted = max(lifted, largest_lifted(store, n_lifted))
    fixed = {
        "weights": state_bytes(config, n_lifted, store.n_labels),
        # Frequencies, and the random numbers from which they are computed.
        "lift": 2 * 4 * store.n_features * lift.n_fourier,
        "lifted bag": lifted * config.threads + panel_bytes(config, n_lifted),
        "validation": kept_bytes,
    }
    return RunPlan(
        budget=fit(visits.listed, config, fixed),
        visits=visits,
        validation=validation,
        every=steps_between_looks(config, store, n_lifted, held_out_rows),
    )


def mixing_in_words(plan: BlockPlan) -> str:
    """Describe how many bags or blocks are mixed."""
    if plan.order != "blocks":
        return f"bags are drawn from all {plan.n_bags:,}"
    return (
        f"bags are drawn from {plan.window:,} of {plan.n_blocks:,} blocks of {plan.block_bags}: "
        f"label counts have {plan.vif:.2f} times the variance of a full shuffle if the store is "
        "sorted"
    )
