"""What a run would hold, read and take: a dry run, which trains nothing that is kept."""

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
from streammiml.kernel.step import Settings
from streammiml.kernel.sweep import Learner, make_tally
from streammiml.learn.prepare import Prepared, prepare
from streammiml.learn.scaler import ScalerFit
from streammiml.learn.start import check_follows, settings_from
from streammiml.learn.state import State, new_state
from streammiml.learn.sweeping import Sweeper
from streammiml.learn.usual import resolved
from streammiml.model import Model
from streammiml.scoring import kernel_block

SAMPLE_BAGS = 512
SAMPLE_BYTES = 16 << 20
STEP_SECONDS = 1.0
"""How long steps are timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A run before it begins. Bytes read and seconds are estimates; early stopping is left out."""

    training_bags: int
    held_out_bags: int
    block_bags: int
    mix_blocks: int
    n_blocks: int
    vif: float
    """Variance of label counts in 256 bags, against a full shuffle, on a label-sorted store."""
    memory: dict[str, int]
    """Bytes held, by name."""
    memory_total: int
    memory_allowed: int
    validate_every: int
    steps_per_epoch: int
    steps: int
    """To the last epoch, or to ``max_steps``."""
    read_per_epoch: int
    """Bytes from disk or network, with what is read more than once."""
    read_total: int
    seconds_per_step: float
    """Measured on bags in memory and an untrained model, with this many threads."""
    seconds_per_look: float
    seconds: float
    """Steps and looks; reading goes on beside them."""


def forecast(stores: Bags | str | Path | list[str], config: TrainConfig | None = None) -> Forecast:
    """Say what training would take: reads some blocks and times steps on them for a second."""
    store = stores if isinstance(stores, Bags) else open_store(stores)
    config = config or TrainConfig()
    if config.start is not None:
        start = Model.load(config.start)
        check_follows(start, store)
        config = settings_from(start, config)
    config = resolved(config, store.n_bags)
    ready = prepare(store, config)
    budget, plan = ready.budget, ready.budget.plan
    sample, inflation = _sample(ready)
    a_step, a_bag = _timed(store, config, sample)
    looks = 0 if ready.looks is None else len(ready.looks.bags)
    an_epoch = ready.visits.steps_an_epoch()
    steps = round(an_epoch * config.n_epochs)
    if config.max_steps is not None:
        steps = min(steps, config.max_steps)
    n_epochs = steps / max(an_epoch, 1)
    per_epoch, once = _bytes_read(ready, inflation)
    return Forecast(
        training_bags=store.n_bags - ready.visits.holdout.size,
        held_out_bags=looks,
        block_bags=plan.block_bags,
        mix_blocks=plan.window,
        n_blocks=plan.n_blocks,
        vif=plan.vif,
        memory=budget.held,
        memory_total=budget.total,
        memory_allowed=budget.allowed,
        validate_every=ready.every,
        steps_per_epoch=round(an_epoch),
        steps=steps,
        read_per_epoch=per_epoch,
        read_total=per_epoch if once else round(per_epoch * n_epochs),
        seconds_per_step=a_step,
        seconds_per_look=a_bag * looks,
        seconds=steps * a_step + steps // ready.every * a_bag * looks,
    )


def _sample(ready: Prepared) -> tuple[BagBlock, float]:
    """Some bags as the run would read them, and bytes read for each byte of them."""
    listed, plan = ready.visits.listed, ready.budget.plan
    parts: list[BagBlock] = []
    n_bags = n_bytes = 0
    before = bytes_read()
    for place in range(plan.n_blocks):
        if plan.order == "blocks":
            start, stop = plan.bags_of(int(plan.blocks_at(0, np.array([place]))[0]))
            parts.append(listed.read(start, stop))
        else:
            parts.append(listed.read_bags(plan.bags_at(0, *plan.bags_of(place))))
        n_bags, n_bytes = n_bags + len(parts[-1]), n_bytes + parts[-1].nbytes
        if n_bags >= SAMPLE_BAGS or n_bytes >= SAMPLE_BYTES:
            break
    read = bytes_read() - before
    # Reads over the network are not counted, and some systems count none at all.
    return BagBlock.join(parts), read / n_bytes if read > 0.01 * n_bytes else 1.0


def _bytes_read(ready: Prepared, inflation: float) -> tuple[int, bool]:
    """Bytes of an epoch, and whether they are read once for the whole run."""
    listed, plan = ready.visits.listed, ready.budget.plan
    whole = listed.n_rows * row_bytes(listed) * inflation
    if plan.order != "blocks":
        return round(whole), False
    if plan.window == plan.n_blocks:
        return round(whole), True
    # Blocks that are held when an epoch begins come again at its end.
    return round(whole * (1 + (plan.window - 1) / plan.n_blocks)), False


def _timed(store: Bags, config: TrainConfig, sample: BagBlock) -> tuple[float, float]:
    """Seconds of a step and of scoring one bag."""
    state = _untrained(store, config, sample)
    settings = Settings(config.seed, config.step_size, config.decay, config.max_norm)
    learner = Learner(state.weights, state.averages, settings, state.lift)
    with Sweeper(learner, config.threads) as sweeper:
        sweeper.sweep(sample, np.arange(min(8, len(sample))), 0, make_tally())  # Compiles.
        steps, begun = 0, time.monotonic()
        while steps == 0 or time.monotonic() - begun < STEP_SECONDS:
            stop = min(64, len(sample) - steps % len(sample))
            at = steps % len(sample)
            sweeper.sweep(sample, np.arange(at, at + stop), steps, make_tally())
            steps += stop
        a_step = (time.monotonic() - begun) / steps
    few = sample.slice(0, min(64, len(sample)))
    score_block(kernel_block(few), state.lift, state.weights)
    begun = time.monotonic()
    score_block(kernel_block(few), state.lift, state.weights)
    return a_step, (time.monotonic() - begun) / len(few)


def _untrained(store: Bags, config: TrainConfig, sample: BagBlock) -> State:
    scale, lift = ScaleSpec.parse(config.scale), LiftSpec.parse(config.lift)
    fit = ScalerFit(store.n_features, scale, lift, seed=config.seed, sparse=store.sparse)
    rows = sample.rows
    if isinstance(rows, np.ndarray):
        fit.update_dense(rows)
    else:
        fit.update_sparse(len(rows), rows.columns, rows.values)
    return new_state(config, fit.finish().lift, store.n_labels)
