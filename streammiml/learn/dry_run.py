"""A dry run: estimates of the memory, reading and time of a run. Trained weights are discarded."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from streammiml._base.platform import bytes_read
from streammiml.bags.block import BagBlock
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.blocks.budget import row_bytes
from streammiml.config import LiftSpec, ScaleSpec, TrainConfig, parse_duration
from streammiml.kernel.reduce import Change, add_change, make_sums
from streammiml.kernel.score import Weights, score_block
from streammiml.kernel.sweep import Learner, make_tally
from streammiml.learn.calibration_folds import n_calibration_folds
from streammiml.learn.checkpoint import TrainState, new_state
from streammiml.learn.choice import ChoicePlan, plan_choice, with_n_restarts
from streammiml.learn.defaults import resolved
from streammiml.learn.kernel_threads import Sweeper, step_settings
from streammiml.learn.machines import HERE, TrainMachines
from streammiml.learn.presets import with_preset
from streammiml.learn.round_weights import weight_bytes, weight_tables
from streammiml.learn.rounds import last_step
from streammiml.learn.run_plan import (
    RunPlan,
    check_worker_memory,
    plan_run,
    with_round_steps,
    worker_bytes,
)
from streammiml.learn.scaler import ScalerFit
from streammiml.learn.warm_start import check_follows, settings_from
from streammiml.model import Model
from streammiml.scorer import kernel_block

SAMPLE_BAGS = 512
SAMPLE_BYTES = 16 << 20
"""Reading stops at this many bags or bytes, whichever comes first."""
STEP_SECONDS = 1.0
"""Seconds for which steps are timed."""
NETWORK = 10**9
"""Bytes per second that a cluster is assumed to move between the driver and its workers."""
ROUND_SECONDS, TURN_SECONDS = 0.008, 0.001
"""Seconds that Dask's messages take in a round, and the driver for the turn of a replica; measured
with two workers on two cores. Waiting for the slowest replica comes on top."""


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
    """Steps of each restart to the last epoch, or ``max_steps``."""
    read_per_epoch: int
    """Bytes from disk or network; a block that is read twice counts twice."""
    read_total: int
    seconds_per_step: float
    """Measured on bags in memory, with an untrained model and the run's kernel threads."""
    seconds_per_look: float
    trials: int
    """Trials before training, which choose settings and epochs."""
    trial_steps: int
    """Most steps of all trials together."""
    seconds_of_trials: float
    """Seconds of the trials, at most."""
    calibration_steps: int
    """Steps of the trainings after the run that calibrate the model; 0 if there are none."""
    seconds_of_calibration: float
    """Seconds of these trainings, at most."""
    seconds: float
    """Seconds of steps and looks of all restarts; reading runs at the same time in other threads.
    With replicas, each has a core of its own."""
    restarts: int
    """Trainings with different seeds, one after the other."""
    replicas: int
    round_steps: int
    """Steps of the longest rounds; 0 without replicas."""
    round_bytes: int
    """On a cluster: at most so many bytes go to the workers and back in a round."""
    driver_memory: int
    """On a cluster: bytes in memory of the process that reduces."""
    worker_memory: int
    """On a cluster: bytes in memory of each worker."""
    efficiency: float
    """On a cluster of one worker for each replica: estimated share of the longest rounds that
    workers spend on steps, with a network of ``NETWORK`` bytes per second; 1 without replicas."""


def dry_run(
    stores: Bags | str | Path | list[str],
    config: TrainConfig | None = None,
    *,
    machines: TrainMachines = HERE,
) -> DryRun:
    """Estimate the costs of training: read some blocks and time steps on them for a second.

    Machines that ``train`` would refuse are refused, as far as their options tell; no cluster is
    started.
    """
    store = stores if isinstance(stores, Bags) else open_store(stores)
    config, has_start = config or TrainConfig(), False
    given = config.given()
    if config.start is not None:
        start = Model.load(config.start)
        check_follows(start, store)
        config = settings_from(start, config)
        has_start = True
    config = with_preset(config, given)
    n_folds = n_calibration_folds(store, config, has_start=has_start)
    choice = plan_choice(store, config, given, has_start=has_start)
    config = resolved(config, store.n_bags)
    if choice is not None and choice.is_shortened(store.n_bags):
        most = choice.most_epochs(0, store.n_bags, config.n_epochs)
        config = replace(config, epochs=most)
    config = with_n_restarts(config, store, choice)
    plan = plan_run(store, config)
    machines.check(config)
    check_worker_memory(plan, machines.pool_options().worker_bytes)
    config = with_round_steps(config, plan.visits)
    budget, blocks, visits = plan.budget, plan.budget.plan, plan.visits
    sample, read_ratio = sample_bags(plan)
    state = untrained_state(store, config, sample)
    step_seconds, bag_seconds = timed_step(config, state, sample)
    n_held_out = 0 if plan.validation is None else len(plan.validation.bags)
    epoch_steps = visits.steps_an_epoch()
    n_steps = round(epoch_steps * config.n_epochs)
    if config.replicas > 1:
        n_steps = last_step(config.n_epochs, epoch_steps, config.replicas)
    if config.max_steps is not None:
        n_steps = min(n_steps, config.max_steps)
    n_epochs = n_steps * config.replicas / max(epoch_steps, 1)
    epoch_bytes, is_read_once = _bytes_read(plan, read_ratio)
    look_seconds = bag_seconds * n_held_out
    limit = math.inf
    if config.time_limit is not None:
        limit = parse_duration(config.time_limit, option="time_limit")
    trial_seconds = 0.0
    if choice is not None:
        trial_seconds = _seconds_of_trials(choice, store, config, sample, step_seconds)
    # Each training leaves out a fold, and visits the others as often as the run does.
    calibration_steps = n_steps * config.replicas * config.n_restarts * max(0, n_folds - 1)
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
        steps_per_epoch=round(epoch_steps / config.replicas),
        steps=n_steps,
        read_per_epoch=epoch_bytes,
        read_total=epoch_bytes if is_read_once else round(epoch_bytes * n_epochs),
        seconds_per_step=step_seconds,
        seconds_per_look=look_seconds,
        trials=0 if choice is None else choice.n_trials,
        trial_steps=0 if choice is None else choice.total_steps,
        seconds_of_trials=min(trial_seconds, limit),
        calibration_steps=calibration_steps,
        seconds_of_calibration=min(calibration_steps * step_seconds, limit),
        seconds=(n_steps * step_seconds + n_steps // plan.every * look_seconds) * config.n_restarts,
        restarts=config.n_restarts,
        replicas=config.replicas,
        **_costs_of_rounds(config, plan, state, step_seconds),
    )


def _seconds_of_trials(
    choice: ChoicePlan, store: Bags, config: TrainConfig, sample: BagBlock, step_seconds: float
) -> float:
    """Seconds of all trials, at most.

    Steps with the costliest setting are timed too. The seconds of other steps follow from their
    multiplications on a straight line, since part of each step's time is the same for all settings.
    """
    costliest = max(range(len(choice.work)), key=lambda number: choice.work[number])
    seconds, more_work = choice.total_steps * step_seconds, choice.work[costliest] - choice.work[0]
    if more_work <= 0:
        return seconds
    tried = replace(config, **choice.settings[costliest])
    slowest, _ = timed_step(tried, untrained_state(store, tried, sample), sample)
    seconds_per_work = max(0.0, slowest - step_seconds) / more_work
    return seconds + seconds_per_work * (choice.total_work - choice.total_steps * choice.work[0])


def _costs_of_rounds(
    config: TrainConfig, plan: RunPlan, state: TrainState, step_seconds: float
) -> dict[str, Any]:
    """Fields of a dry run that tell what replicas on a cluster would cost."""
    held, total = plan.budget.held, plan.budget.total
    if config.replicas == 1:
        alone = {"round_steps": 0, "round_bytes": 0, "efficiency": 1.0}
        return {**alone, "driver_memory": total, "worker_memory": 0}
    steps, n_replicas = config.round_steps or 0, config.replicas
    # The weights go to each replica. At most all vectors come back, with their means.
    round_bytes = n_replicas * weight_bytes(state.weights) * (3 if config.average else 2)
    kernel = steps * step_seconds
    reducing = n_replicas * _reduce_seconds(state.weights, has_means=config.average)
    others = ROUND_SECONDS + n_replicas * TURN_SECONDS + reducing + round_bytes / NETWORK
    names = ("weights", "lift", "validation", "replicas", "store", "calibration")
    of_driver = sum(held.get(name, 0) for name in names)
    return {
        "round_steps": steps,
        "round_bytes": round_bytes,
        "driver_memory": of_driver,
        "worker_memory": worker_bytes(plan),
        "efficiency": kernel / (kernel + others),
    }


def _reduce_seconds(weights: Weights, *, has_means: bool) -> float:
    """Measure the seconds of adding the changes of a replica that changed every vector."""
    seconds = 0.0
    for table in weight_tables(*weights):
        sums = make_sums(table.shape, has_means=has_means)
        change = Change(np.arange(len(table)), table, table if has_means else table[:0])
        # The first call compiles.
        add_change(sums, table[:0], Change(change.rows[:0], table[:0], table[:0]))
        begun = time.monotonic()
        add_change(sums, table, change)
        seconds += time.monotonic() - begun
    return seconds


def sample_bags(plan: RunPlan) -> tuple[BagBlock, float]:
    """Read some bags as the run would read them; also return bytes read per byte of bags."""
    listed, blocks = plan.visits.listed, plan.budget.plan
    sampled: list[BagBlock] = []
    n_bags = n_bytes = 0
    before = bytes_read()
    for position in range(blocks.n_blocks):
        if blocks.order == "blocks":
            start, stop = blocks.bags_of(int(blocks.blocks_at(0, np.array([position]))[0]))
            sampled.append(listed.read(start, stop, kept=False))
        else:
            sampled.append(
                listed.read_bags(blocks.bags_at(0, *blocks.bags_of(position)), kept=False)
            )
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


def timed_step(config: TrainConfig, state: TrainState, sample: BagBlock) -> tuple[float, float]:
    """Measure the seconds of one step and of scoring one bag."""
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


def untrained_state(store: Bags, config: TrainConfig, sample: BagBlock) -> TrainState:
    """State with random weights, and a scaler that is fitted to the sample."""
    scale, lift = ScaleSpec.parse(config.scale), LiftSpec.parse(config.lift)
    fit = ScalerFit(store.n_features, scale, lift, seed=config.seed, sparse=store.sparse)
    rows = sample.rows
    if isinstance(rows, np.ndarray):
        fit.update_dense(rows)
    else:
        fit.update_sparse(len(rows), rows.columns, rows.values)
    return new_state(config, fit.finish().lift, store.n_labels)
