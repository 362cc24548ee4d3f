"""The plan of a run and of its memory, made before the first row is read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from streammiml.bags.bag_weights import NO_WEIGHTS, read_weights
from streammiml.bags.views import Bags
from streammiml.blocks.budget import Budget, fit
from streammiml.blocks.plan import BlockPlan
from streammiml.config import LiftSpec, TrainConfig, format_size
from streammiml.errors import StreammimlError
from streammiml.kernel.step import most_projected
from streammiml.kernel.tile import padded_width
from streammiml.learn.calibration import label_counts_bytes
from streammiml.learn.checkpoint import n_weights, panel_bytes, replica_bytes, state_bytes
from streammiml.learn.defaults import STREAMS_KEPT, TURNS_AT_ONCE, round_steps
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
    own = NO_WEIGHTS if config.bag_weights is None else read_weights(store, config.bag_weights)
    visits = visits_of(store, config.weights, holdout, config.seed, own)
    if validation is None or validation.store is not store:
        lifted = max(lifted, largest_lifted(store, n_lifted))
    # A process runs at most so many turns of replicas at the same time.
    n_at_once = min(config.replicas, TURNS_AT_ONCE)
    fixed = {
        "weights": state_bytes(config, n_lifted, store.n_labels),
        # Frequencies, and the random numbers from which they are computed.
        "lift": 2 * 4 * store.n_features * lift.n_fourier,
        "lifted bag": lifted_room(config, n_lifted, lifted),
        "validation": kept_bytes,
    }
    if config.bag_weights is not None:
        fixed["bag weights"] = own.nbytes
    if config.calibrate not in (None, "none"):
        # Runs without held-out bags train again before the weights of the first training are freed.
        again = 0 if validation else fixed["weights"]
        fixed["calibration"] = label_counts_bytes(store.n_labels) + again
    by_size = {}
    if not store.sparse and not lift.context:
        # Long bags are lifted some rows at a time. ``fixed`` has all their rows, so that stores
        # which fit anyway keep the plans that they had when bags were lifted at once.
        width = padded_width(config.shared_dim if config.shared_space else n_lifted)
        lifted = min(lifted, 4 * n_lifted * most_projected(width))
        by_size["lifted bag"] = lifted_room(config, n_lifted, lifted)
    if config.n_restarts > 1:
        # Models of all restarts, their joined copy, the two copies that kernels score with, and the
        # state of one besides the first's.
        n_values = n_weights(config, n_lifted, store.n_labels)
        fixed["restarts"] = fixed["weights"] + 4 * 4 * config.n_restarts * n_values
        if lift.context:
            # Each restart lifts the bag that is scored; see ``kernel/mean_scores.py``.
            fixed["restarts"] += (config.n_restarts - 1) * lifted
    if config.replicas > 1:
        fixed["replicas"] = replica_bytes(config, n_lifted, store.n_labels, n_at_once)
        _check_replicas(store, config)
    return RunPlan(
        budget=fit(
            visits.listed,
            config,
            fixed,
            fixed_by_size=by_size,
            replicas=config.replicas,
            # Streams stay open between the rounds.
            streams=min(config.replicas, STREAMS_KEPT),
        ),
        visits=visits,
        validation=validation,
        every=steps_between_looks(config, store, n_lifted, held_out_rows),
    )


def lifted_room(config: TrainConfig, n_lifted: int, lifted: int) -> int:
    """Bytes of lifted and projected rows; a bag has at most ``lifted`` after the lift."""
    n_at_once = min(config.replicas, TURNS_AT_ONCE)
    return (lifted * config.threads + panel_bytes(config, n_lifted)) * n_at_once


def with_round_steps(config: TrainConfig, visits: Visits) -> TrainConfig:
    """Fill in the length of the longest rounds of replicas, if it is None."""
    if config.replicas == 1 or config.round_steps is not None:
        return config
    return replace(config, round_steps=round_steps(visits.steps_an_epoch() / config.replicas))


def worker_bytes(plan: RunPlan) -> int:
    """Bytes that each worker of a cluster holds when it trains replicas."""
    held = plan.budget.held
    of_driver = ("weights", "validation", "calibration")
    return plan.budget.total - sum(held.get(name, 0) for name in of_driver)


def check_worker_memory(plan: RunPlan, limit: int | None) -> None:
    """Refuse workers whose memory limit is below what the plan needs."""
    needed = worker_bytes(plan)
    if limit is not None and limit < needed:
        raise StreammimlError(
            f"a worker may hold {format_size(limit)}, and training would hold "
            f"{format_size(needed)} in each worker; give workers more memory, or lower --memory"
        )


def _check_replicas(store: Bags, config: TrainConfig) -> None:
    """Refuse more replicas than there are blocks to deal out."""
    n_blocks = -(-store.n_bags // (config.block_bags or 1))
    if config.replicas > n_blocks:
        blocks = f"blocks of {config.block_bags} bags" if config.block_bags else "bags"
        raise StreammimlError(
            f"--replicas {config.replicas} is too many: each replica needs a block of bags, and "
            f"{store.name} has {n_blocks} {blocks}; give at most --replicas {n_blocks}"
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
