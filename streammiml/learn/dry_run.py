"""A dry run: estimates of the memory, reading and time of a run. Trained weights are discarded."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streammiml._base.platform import bytes_read
from streammiml.bags.block import BagBlock
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.blocks.budget import row_bytes
from streammiml.config import LiftSpec, ScaleSpec, TrainConfig
from streammiml.kernel.score import score_block
from streammiml.kernel.sweep import Learner, make_tally
from streammiml.learn.checkpoint import TrainState, new_state
from streammiml.learn.defaults import resolved
from streammiml.learn.kernel_threads import Sweeper, step_settings
from streammiml.learn.run_plan import RunPlan, plan_run
from streammiml.learn.scaler import ScalerFit
from streammiml.learn.warm_start import check_follows, settings_from
from streammiml.model import Model
from streammiml.scorer import kernel_block

SAMPLE_BAGS = 512
SAMPLE_BYTES = 16 << 20
"""Reading stops at this many bags or bytes, whichever comes first."""
STEP_SECONDS = 1.0
"""Seconds for which steps are timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Costs of a run. Bytes read and seconds are estimates that ignore early stopping."""

    training_bags: int
    held_out_bags: int
    block_bags: int
    mix_blocks: int
    n_blocks: int
    vif: float
    """Variance of label counts in 256 bags of a label-sorted store, divided by that of a full
    shuffle."""
    memory: dict[str, int]
    """Bytes in memory, by purpose."""
    memory_total: int
    memory_allowed: int
    validate_every: int
    steps_per_epoch: int
    steps: int
    """Steps to the last epoch, or ``max_steps``."""
    read_per_epoch: int
    """Bytes from disk or network; a block that is read twice counts twice."""
    read_total: int
    seconds_per_step: float
    """Measured on bags in memory, with an untrained model and the run's kernel threads."""
    seconds_per_look: float
    seconds: float
    """Seconds of steps and looks; reading runs at the same time in other threads."""


def dry_run(stores: Bags | str | Path | list[str], config: TrainConfig | None = None) -> DryRun:
    """Estimate the costs of training: read some blocks and time steps on them for a second."""
    store = stores if isinstance(stores, Bags) else open_store(stores)
    config = config or TrainConfig()
    if config.start is not None:
        start = Model.load(config.start)
        check_follows(start, store)
        config = settings_from(start, config)
    config = resolved(config, store.n_bags)
    plan = plan_run(store, config)
    budget, blocks, visits = plan.budget, plan.budget.plan, plan.visits
    sample, read_ratio = _sample(plan)
    step_seconds, bag_seconds = _timed(store, config, sample)
    n_held_out = 0 if plan.validation is None else len(plan.validation.bags)
    epoch_steps = visits.steps_an_epoch()
    n_steps = round(epoch_steps * config.n_epochs)
    if config.max_steps is not None:
        n_steps = min(n_steps, config.max_steps)
    n_epochs = n_steps / max(epoch_steps, 1)
    epoch_bytes, is_read_once = _bytes_read(plan, read_ratio)
    look_seconds = bag_seconds * n_held_out
    return DryRun(
        training_bags=store.n_bags - visits.holdout.size,
        held_out_bags=n_held_out,
        block_bags=blocks.block_bags,
        mix_blocks=blocks.window,
        n_blocks=blocks.n_blocks,
        vif=blocks.vif,
        memory=budget.held,
        memory_total=budget.total,
        memory_allowed=budget.allowed,
        validate_every=plan.every,
        steps_per_epoch=round(epoch_steps),
        steps=n_steps,
        read_per_epoch=epoch_bytes,
        read_total=epoch_bytes if is_read_once else round(epoch_bytes * n_epochs),
        seconds_per_step=step_seconds,
        seconds_per_look=look_seconds,
        seconds=n_steps * step_seconds + n_steps // plan.every * look_seconds,
    )


def _sample(plan: RunPlan) -> tuple[BagBlock, float]:
    """Read some bags as the run would read them; also return bytes read per byte of bags."""
    listed, blocks = plan.visits.listed, plan.budget.plan
    sampled: list[BagBlock] = []
    n_bags = n_bytes = 0
    before = bytes_read()
    for position in range(blocks.n_blocks):
        if blocks.order == "blocks":
            start, stop = blocks.bags_of(int(blocks.blocks_at(0, np.array([position]))[0]))
            sampled.append(listed.read(start, stop))
        else:
            sampled.append(listed.read_bags(blocks.bags_at(0, *blocks.bags_of(position))))
        n_bags, n_bytes = n_bags + len(sampled[-1]), n_bytes + sampled[-1].nbytes
        if n_bags >= SAMPLE_BAGS or n_bytes >= SAMPLE_BYTES:
            break
    read = bytes_read() - before
    # The system does not count reads over the network, and some systems count none at all.
    return BagBlock.join(sampled), read / n_bytes if read > 0.01 * n_bytes else 1.0


def _bytes_read(plan: RunPlan, read_ratio: float) -> tuple[int, bool]:
    """Bytes read in an epoch, and whether only the first epoch reads."""
    listed, blocks = plan.visits.listed, plan.budget.plan
    n_bytes = listed.n_rows * row_bytes(listed) * read_ratio
    if blocks.order != "blocks":
        return round(n_bytes), False
    if blocks.window == blocks.n_blocks:
        return round(n_bytes), True
    # Blocks that are in memory when an epoch begins are read again at its end.
    return round(n_bytes * (1 + (blocks.window - 1) / blocks.n_blocks)), False


def _timed(store: Bags, config: TrainConfig, sample: BagBlock) -> tuple[float, float]:
    """Measure the seconds of one step and of scoring one bag."""
    state = _untrained(store, config, sample)
    learner = Learner(state.weights, state.averages, step_settings(config), state.lift)
    with Sweeper(learner, config.threads) as sweeper:
        # The first call compiles.
        sweeper.sweep(sample, np.arange(min(8, len(sample))), 0, make_tally())
        n_steps, begun = 0, time.monotonic()
        while n_steps == 0 or time.monotonic() - begun < STEP_SECONDS:
            first = n_steps % len(sample)
            stop = min(first + 64, len(sample))
            sweeper.sweep(sample, np.arange(first, stop), n_steps, make_tally())
            n_steps += stop - first
        step_seconds = (time.monotonic() - begun) / n_steps
    bags = sample.slice(0, min(64, len(sample)))
    # Here too, the first call compiles.
    score_block(kernel_block(bags), state.lift, state.weights)
    begun = time.monotonic()
    score_block(kernel_block(bags), state.lift, state.weights)
    return step_seconds, (time.monotonic() - begun) / len(bags)


def _untrained(store: Bags, config: TrainConfig, sample: BagBlock) -> TrainState:
    """State with random weights, and a scaler that is fitted to the sample."""
    scale, lift = ScaleSpec.parse(config.scale), LiftSpec.parse(config.lift)
    fit = ScalerFit(store.n_features, scale, lift, seed=config.seed, sparse=store.sparse)
    rows = sample.rows
    if isinstance(rows, np.ndarray):
        fit.update_dense(rows)
    else:
        fit.update_sparse(len(rows), rows.columns, rows.values)
    return new_state(config, fit.finish().lift, store.n_labels)
