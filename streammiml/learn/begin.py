"""How a run begins or is resumed: its settings, then everything that the loop needs.

``settle`` decides the settings: a new run has those of the call, a resumed run those of its folder.
``begin`` turns settings into a ``Ready``: plan, memory, validation bags, and a state from a
checkpoint, from a start model, from the bags, or with random weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streammiml._base.hashing import shuffled
from streammiml.bags.views import Bags
from streammiml.blocks.budget import row_bytes
from streammiml.config import (
    LATER_OPTIONS,
    LiftSpec,
    ScaleSpec,
    TrainConfig,
    check_whole,
    parse_size,
    without_later,
)
from streammiml.errors import StreammimlError, unknown
from streammiml.kernel.average import STRIDE
from streammiml.kernel.lift import Lift
from streammiml.learn.bag_start import resolved_init, state_from_bags
from streammiml.learn.checkpoint import (
    Expected,
    TrainState,
    checkpoint_sizes,
    has_checkpoint,
    load_checkpoint,
    new_state,
    save_checkpoint,
)
from streammiml.learn.defaults import resolved
from streammiml.learn.holdout import Holdout
from streammiml.learn.run_folder import (
    EXTENDED_FROM,
    FREE_SETTINGS,
    OFFSET,
    RECORDS,
    SETTINGS,
    RunFolder,
)
from streammiml.learn.run_plan import RunPlan, plan_run, with_round_steps
from streammiml.learn.scaler import FittedScaler, ScalerFit, needs_rows
from streammiml.learn.stretches import STRETCH_BYTES, read_stretches
from streammiml.learn.warm_start import check_follows, settings_from, state_from
from streammiml.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of a run, before any row is read."""

    store: Bags
    config: TrainConfig
    folder: RunFolder | None = None
    start: Model | None = None
    """Model to start from; None if the run already has weights of its own."""
    start_fingerprint: str | None = None
    extended_from: int | None = None
    """Number of epochs before an unfinished extension; see ``run_folder.EXTENDED_FROM``."""
    extends: bool = False
    """Whether this call begins the extension; false if it repeats an unfinished one."""
    holdout: Holdout | None = None
    """Bags to hold out instead of the share in ``config``."""
    offset: float | None = None
    """Offset of the threshold that trials fitted; None if they fitted none."""
    like: TrainState | None = None
    """State whose scaling and lift the run takes: all restarts of a run have the same."""

    @property
    def is_resumed(self) -> bool:
        """Whether the folder already holds the run."""
        return self.folder is not None and self.folder.exists


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A run that can take its next step. Only ``state`` changes during training."""

    store: Bags
    config: TrainConfig
    """Settings of the run, without open defaults."""
    plan: RunPlan
    state: TrainState
    folder: RunFolder | None
    fingerprints: dict[str, Any]
    """Fingerprints of the stores and of the start model, which decide the result too."""
    extended_from: int | None
    offset: float | None
    """Offset of the threshold that trials fitted; None if they fitted none."""

    @property
    def key(self) -> dict[str, Any]:
        """Everything that decides what a step does; checkpoints of other runs have other keys."""
        return run_key(self.config, self.fingerprints)

    @property
    def stopped_early(self) -> bool:
        """Whether patience has run out."""
        return self.plan.validation is not None and (
            self.state.at.bad_checks >= self.config.patience
        )

    def record(self) -> None:
        """Write the settings into the run folder."""
        if self.folder is not None:
            records = {**self.fingerprints, EXTENDED_FROM: self.extended_from, OFFSET: self.offset}
            self.folder.record({**self.config.recorded(), **records})


def run_key(config: TrainConfig, fingerprints: dict[str, Any]) -> dict[str, Any]:
    """Settings that decide what a step does, and the fingerprints of stores and start model."""
    settings = without_later(config.recorded())
    for name in FREE_SETTINGS:
        settings.pop(name, None)
    return {**settings, **fingerprints}


# Settings.


def settle(
    store: Bags,
    config: TrainConfig,
    folder: RunFolder | None = None,
    *,
    extend: int = 0,
    start: Model | None = None,
) -> RunSettings:
    """Decide the settings of a run; refuse those that contradict what the folder records."""
    settings = RunSettings(store=store, config=config, folder=folder, start=start)
    if settings.is_resumed:
        settings = _adopted(settings, extend)
    elif folder is not None and extend:
        raise StreammimlError(f"{folder.path} holds no run to extend; leave --extend out")
    is_given = start is not None or "start" in config.given()
    has_weights = folder is not None and has_checkpoint(folder.checkpoints)
    return _with_start(settings, is_needed=is_given or not has_weights)


def _adopted(settings: RunSettings, extend: int) -> RunSettings:
    """Take the recorded settings of the run; refuse given settings that contradict them."""
    store, folder = settings.store, settings.folder
    assert folder is not None, "only runs in a folder can be resumed"
    recorded = folder.settings()
    _check_store(store, folder, recorded)
    given = settings.config.given()
    if given.get("init") == "auto":
        # Recorded is what auto chose.
        del given["init"]
    folder.check_same(given)
    extended_from = recorded.get(EXTENDED_FROM)
    options = {name: value for name, value in recorded.items() if name not in RECORDS}
    # A run that was begun before there were offsets has none.
    threshold = options.setdefault("threshold", "none")
    if given.get("threshold", threshold) != threshold:
        raise StreammimlError(
            f"{folder.path} was begun with threshold {threshold!r}, not {given['threshold']!r}; "
            "leave it out, or begin another run"
        )
    known = TrainConfig().recorded()
    try:
        for name in options:
            if name not in known:
                raise unknown("option", name, known)
        config = replace(TrainConfig(), **{**LATER_OPTIONS, **options, **given})
        if extended_from is not None:
            check_whole(EXTENDED_FROM, extended_from, 1)
    except StreammimlError as error:
        raise StreammimlError(f"{folder.path / SETTINGS}: {error}") from None
    _check_extension(folder, config, extend, options.get("epochs", config.epochs))
    config = resolved(config, store.n_bags)
    extends = False
    if extend and extended_from is None:
        extends, extended_from = True, config.n_epochs
        config = replace(config, epochs=config.n_epochs + extend)
    elif extend and extended_from is not None and extended_from + extend != config.n_epochs:
        raise StreammimlError(
            f"{folder.path} is being extended from {extended_from} to {config.n_epochs} epochs; "
            f"--resume finishes this extension; after that, --extend {extend} begins another"
        )
    return replace(
        settings,
        config=config,
        extended_from=extended_from,
        extends=extends,
        offset=recorded.get(OFFSET),
    )


def _check_store(store: Bags, folder: RunFolder, recorded: dict[str, Any]) -> None:
    """Refuse a store that is not the one that the run began on."""
    if recorded.get("fingerprint") != store.fingerprint:
        raise StreammimlError(
            f"{folder.path} was begun on a store of fingerprint {recorded.get('fingerprint')}, "
            f"{store.name} has {store.fingerprint}; use the store that the run was begun on, "
            "or begin another run"
        )
    if recorded.get("sparse", store.sparse) != store.sparse:
        raise StreammimlError(
            f"{folder.path} was begun on {'sparse' if recorded['sparse'] else 'dense'} rows, "
            f"and {store.name} has {'sparse' if store.sparse else 'dense'} rows, which are scaled "
            "differently; use the store that the run was begun on, or begin another run"
        )


def _check_extension(
    folder: RunFolder, config: TrainConfig, extend: int, recorded_epochs: int | None
) -> None:
    """Refuse an extension of a run whose end is also set by ``epochs`` or ``max_steps``."""
    if extend and config.epochs != recorded_epochs:
        raise StreammimlError(
            f"--extend {extend} adds to the {recorded_epochs} epochs of {folder.path}, and "
            f"--epochs {config.epochs} sets their number; give only one of these options"
        )
    if extend and config.max_steps is not None:
        raise StreammimlError(
            f"{folder.path} ends after {config.max_steps:,} steps, whatever its number of epochs; "
            "--resume with a larger --max-steps goes on"
        )


def _with_start(settings: RunSettings, *, is_needed: bool) -> RunSettings:
    """Add the start model, loaded if needed; refuse a model that the run did not begin with."""
    folder, config, start = settings.folder, settings.config, settings.start
    recorded = None
    if folder is not None and folder.exists:
        recorded = folder.settings().get("start_fingerprint")
    if start is None and config.start is not None and is_needed:
        start = Model.load(config.start)
    fingerprint = start.fingerprint if start is not None else recorded
    if folder is not None and settings.is_resumed:
        check_start(folder, fingerprint, recorded)
    if settings.is_resumed and is_needed and recorded is not None and start is None:
        raise StreammimlError(
            f"{folder and folder.path} was stopped before its first checkpoint and needs the "
            f"model that it began from, of fingerprint {recorded}; give that model as start"
        )
    if start is not None:
        check_follows(start, settings.store)
        if not settings.is_resumed:
            config = settings_from(start, config)
        if config.init not in ("auto", "random"):
            raise StreammimlError(
                f"--init {config.init} sets the first weights, and a run from a model has those of "
                "the model; leave --init or --start out"
            )
    if fingerprint is not None and config.init == "auto":
        config = replace(config, init="random")
    return replace(settings, config=config, start=start, start_fingerprint=fingerprint)


def check_start(folder: RunFolder, given: str | None, recorded: str | None) -> None:
    """Refuse a start model, given by its fingerprint, that a run did not begin from."""
    if given != recorded:
        raise StreammimlError(
            f"{folder.path} was begun from a model of fingerprint {recorded}, not {given}; "
            "leave --start out, or give the model that it began from, or begin another run"
        )


# From settings to the first step.


def begin(settings: RunSettings) -> Ready:
    """Plan the run, load or make its state, and record its settings."""
    store, folder, start = settings.store, settings.folder, settings.start
    plan = plan_run(store, settings.config, settings.holdout)
    blocks = plan.budget.plan
    config = replace(
        settings.config,
        block_bags=blocks.block_bags,
        mix_blocks=blocks.mix_blocks,
        validate_every=plan.every,
    )
    if folder is None or not has_checkpoint(folder.checkpoints):
        config = replace(config, init=resolved_init(config, store, plan))
    config = with_round_steps(config, plan.visits)
    fingerprints = _fingerprints(settings, plan)
    if folder is not None and folder.exists:
        _check_validation_store(folder, config, fingerprints)
        _check_bag_weights(folder, config, fingerprints)
    state = None
    if folder is not None:
        expected = _expected(store, config, fingerprints, plan)
        state = load_checkpoint(folder.checkpoints, expected)
    is_loaded = state is not None
    if state is not None:
        _check_not_passed(state, config)
    elif start is not None:
        # Other restarts of a run begin from theirs; see ``learn/restarts.py``.
        state = state_from(start.restart(0), config, store.n_labels)
    else:
        lift, scale = _lift_and_scale(settings, config, plan)
        if config.init == "random":
            state = new_state(config, lift, store.n_labels)
        else:
            state = state_from_bags(store, config, plan, lift)
        state.at.scale = scale
    ready = Ready(
        store=store,
        config=config,
        plan=plan,
        state=state,
        folder=folder,
        fingerprints=fingerprints,
        extended_from=settings.extended_from,
        offset=settings.offset,
    )
    if settings.extends and ready.stopped_early:
        patience = state.at.bad_checks + config.patience
        ready = replace(ready, config=replace(config, patience=patience))
    if folder is not None:
        # A resumed run writes its settings too: its end may have changed.
        ready.record()
        folder.cut_history(state.at.history_bytes)
        if not is_loaded and (start is not None or config.init != "random"):
            # From now on the run does not need the file of the start model, which may be deleted,
            # and does not compute a start again.
            save_checkpoint(folder.checkpoints, state, ready.key)
    return ready


def _fingerprints(settings: RunSettings, plan: RunPlan) -> dict[str, Any]:
    store = settings.store
    fingerprints: dict[str, Any] = {"fingerprint": store.fingerprint, "sparse": store.sparse}
    if settings.config.validation_store is not None and plan.validation is not None:
        fingerprints["validation_fingerprint"] = plan.validation.store.fingerprint
    if settings.config.bag_weights is not None:
        fingerprints["weights_fingerprint"] = plan.visits.weights_fingerprint
    if settings.start_fingerprint is not None:
        fingerprints["start_fingerprint"] = settings.start_fingerprint
    return fingerprints


def _check_validation_store(
    folder: RunFolder, config: TrainConfig, fingerprints: dict[str, Any]
) -> None:
    """Refuse a validation store that is not the one that the run began with."""
    recorded = folder.settings().get("validation_fingerprint")
    given = fingerprints.get("validation_fingerprint")
    if recorded != given:
        raise StreammimlError(
            f"{folder.path} was begun with a validation store of fingerprint {recorded}, "
            f"{config.validation_store} has {given}"
        )


def _check_bag_weights(folder: RunFolder, config: TrainConfig, given: dict[str, Any]) -> None:
    """Refuse weights of bags that are not those that the run began with."""
    if folder.settings().get("weights_fingerprint") != given.get("weights_fingerprint"):
        raise StreammimlError(
            f"{folder.path} was begun with other weights of bags than the column "
            f"{config.bag_weights!r} has now; use the store that the run was begun on, or begin "
            "another run"
        )


def _expected(
    store: Bags, config: TrainConfig, fingerprints: dict[str, Any], plan: RunPlan
) -> Expected:
    return Expected(
        key=run_key(config, fingerprints),
        sizes=checkpoint_sizes(config, store.n_features, store.n_labels),
        n_places=plan.budget.plan.n_bags,
        n_replicas=config.replicas,
        context=LiftSpec.parse(config.lift).context,
        n_dims=config.shared_dim if config.shared_space else None,
        stride=STRIDE if config.average else 0,
    )


def _check_not_passed(state: TrainState, config: TrainConfig) -> None:
    """Refuse an end that the run has passed: its model would not match its settings."""
    at = state.at
    ends = (("epochs", config.n_epochs, at.epoch), ("max_steps", config.max_steps, at.step))
    for name, limit, done in ends:
        if limit is not None and done > limit:
            raise StreammimlError(
                f"--{name.replace('_', '-')} {limit} is less than the {done} that the run has "
                "done; leave it out, or begin another run"
            )


def _lift_and_scale(settings: RunSettings, config: TrainConfig, plan: RunPlan) -> tuple[Lift, str]:
    """Lift of a new state, and its scaling in words: as given, or fitted to training bags."""
    if settings.like is not None:
        return settings.like.lift, settings.like.at.scale
    fitted = _fitted(settings.store, config, plan)
    return fitted.lift, fitted.scale


def _fitted(store: Bags, config: TrainConfig, plan: RunPlan) -> FittedScaler:
    """Fit scaler and lift on training bags: on a seeded sample of stretches, or on all bags."""
    scale, lift = ScaleSpec.parse(config.scale), LiftSpec.parse(config.lift)
    fit = ScalerFit(store.n_features, scale, lift, seed=config.seed, sparse=store.sparse)
    # A stretch has as many blocks as a fast read needs: blocks of tiny bags are short.
    stretch_bags = plan.budget.plan.block_bags
    block_bytes = row_bytes(store) * store.n_rows / store.n_bags * stretch_bags
    stretch_bags *= max(1, int(STRETCH_BYTES / block_bytes))
    n_stretches = -(-store.n_bags // stretch_bags)
    stretches: Iterator[int] = iter(range(n_stretches))
    limit = float("inf")
    if config.fit_scaler != "full":
        limit = parse_size(config.fit_scaler, option="fit_scaler")
        stretches = shuffled(n_stretches, config.seed, 0x5CA1E)
    needs_all = needs_rows(scale, lift)

    n_bytes, deadline = 0, plan.budget.read.deadline
    blocks = read_stretches(store, plan.visits.holdout, stretches, stretch_bags, deadline)
    with closing(blocks):
        for block in blocks:
            rows = block.rows
            if isinstance(rows, np.ndarray):
                fit.update_dense(rows)
                n_bytes += 4 * rows.size
            else:
                fit.update_sparse(len(rows), rows.columns, rows.values)
                n_bytes += 8 * len(rows.values)
            if n_bytes >= limit or (fit.n_nonzero and not needs_all):
                break
    fitted = fit.finish()
    if not fit.n_nonzero or fitted.n_constant == store.n_features:
        problem = "no feature varies" if fit.n_nonzero else "every feature is zero"
        raise StreammimlError(
            f"{problem} over the {fitted.n_rows:,} rows of {store.name} that were read; "
            "there is nothing to learn from"
        )
    return fitted
