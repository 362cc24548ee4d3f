"""``train``: settings → plan and state → loop → model, resumable to the bit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path

from streammiml._base.atomic import local_path
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.config import TrainConfig, check_whole
from streammiml.errors import StreammimlError
from streammiml.learn.begin import begin, settle
from streammiml.learn.calibration_folds import calibrated, n_calibration_folds
from streammiml.learn.choice import with_defaults
from streammiml.learn.loop import Loop
from streammiml.learn.machines import HERE, TrainMachines
from streammiml.learn.model_card import write_card
from streammiml.learn.progress import ChoiceProgress, RestartsWatch, TrainProgress
from streammiml.learn.restarts import with_restarts
from streammiml.learn.rounds import RoundLoop
from streammiml.learn.run_folder import RunFolder, finish_extension
from streammiml.learn.stop_signals import StopSignals
from streammiml.learn.train_display import both_shown
from streammiml.learn.trained_model import trained_model
from streammiml.learn.unpredicted_labels import warn_of_unpredicted
from streammiml.model import Model

_LOG = logging.getLogger("streammiml.train")


def train(
    stores: Bags | str | Path | list[str],
    config: TrainConfig | None = None,
    *,
    run: str | Path | None = None,
    resume: bool = False,
    extend: int = 0,
    start: Model | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    client: object = None,
    worker_memory: str | int | None = None,
    mixed_machines: bool = False,
    watch: Callable[[TrainProgress], None] = lambda _: None,
    watch_choice: Callable[[ChoiceProgress], None] = lambda _: None,
    progress: bool = False,
) -> Model:
    """Train a model on one or more stores or a view; a run in a folder ``run`` can be resumed.

    Training stops after ``config.epochs``, or when the ranking loss of held-out bags has not
    fallen for ``config.patience`` looks, and returns the best model. A look measures that loss.

    A resumed run keeps its settings. Settings of ``config`` that are not the default may change the
    end of the run (``epochs``, ``max_steps``, ``patience``) and its memory; any other difference
    from the recorded settings is refused.

    Settings that are not given follow ``config.preset``. With ``auto``, trials on held-out bags
    choose some of them before the run begins, unless ``config`` gives its length; see
    ``learn/choice.py``. ``watch_choice`` is called with the progress of the trials, and of
    the trainings on folds that calibrate the run.

    ``progress`` shows how far the trials and the run are: a live line in a terminal or a notebook,
    a line every few seconds elsewhere.

    ``extend`` continues the run in ``run``, finished or not, for this many epochs beyond its
    recorded end. A run that had stopped early gets ``patience`` more looks. The result equals, to
    the byte, that of a run begun with the longer settings. The new end is recorded before the first
    step, so that after a kill ``resume`` or the same ``extend`` leads to the same end.

    ``start`` (or the path ``config.start``) is a model to start from. For one pass over new bags,
    like ``partial_fit``, use ``TrainConfig(epochs=1, validation=0)``. The run takes weights,
    scaling and lift from the model; steps, step size and averages begin as in a new run. The store
    must have the model's features. Its labels must begin with those of the model, in the same
    order; new labels may follow. The result has the label names of the store. With validation, the
    returned model is no worse on the held-out bags than the start model.

    With ``config.replicas`` above 1, that many replicas train at the same time: on the cores of
    this machine, in ``workers`` local processes (of ``worker_memory`` each), on the Dask
    ``scheduler`` at an address, or on ``client``: a ``distributed.Client``, a Dask cluster, or
    ``"active"``, the client that Dask uses by default. A run with one replica is refused there,
    since nothing would run on the cluster. The result has the same bits wherever replicas run,
    provided that all machines have processors of one kind; ``mixed_machines`` accepts others.
    """
    machines = TrainMachines(
        workers=workers,
        scheduler=scheduler,
        client=client,
        worker_memory=worker_memory,
        mixed_machines=mixed_machines,
    )
    store = stores if isinstance(stores, Bags) else open_store(stores)
    folder = open_run(run, resume=resume, extend=extend)
    with both_shown(watch, watch_choice, progress=progress) as (watch, watch_choice):
        model = train_run(
            store,
            config or TrainConfig(),
            folder,
            extend=extend,
            start=start,
            machines=machines,
            watch=watch,
            watch_choice=watch_choice,
        )
    if run is not None:
        finish_extension(Path(run))
    return model


def train_trial(store: Bags, config: TrainConfig) -> Model:
    """Train a model that is only measured, as in a search: without a folder and warnings."""
    return train_run(store, config, None, extend=0, watch=lambda _: None, is_trial=True)


def open_run(run: str | Path | None, *, resume: bool, extend: int) -> RunFolder | None:
    """Open the folder of a run, or return None if the run has no folder."""
    check_whole("extend", extend, 0)
    if extend and run is None:
        raise StreammimlError("extend continues a run; name its folder")
    if run is None:
        return None
    return RunFolder(local_path(run, "runs"), resume=resume or extend > 0)


def train_run(
    store: Bags,
    config: TrainConfig,
    folder: RunFolder | None,
    *,
    extend: int,
    watch: Callable[[TrainProgress], None],
    watch_choice: Callable[[ChoiceProgress], None] = lambda _: None,
    start: Model | None = None,
    machines: TrainMachines = HERE,
    is_trial: bool = False,
) -> Model:
    """Train in an open folder, as ``train`` does.

    ``is_trial`` leaves out the check for labels that the model never predicts: its warning is for
    the user of the model, and trials of a search are measured by other means.

    The caller calls ``finish_extension`` after it has shown the result to the user.
    """
    stop, begun = StopSignals(), time.monotonic()
    # Without a folder there is nothing to save: Ctrl-C raises KeyboardInterrupt as usual.
    listening = stop.listening if folder is not None else nullcontext
    with folder or nullcontext():
        settings = settle(store, config, folder, extend=extend, start=start)
        machines.check(settings.config)
        if not is_trial:
            where = f"run {folder.path}" if folder is not None else "no run folder"
            _LOG.info("train begins: %s bags of %s, %s", f"{store.n_bags:,}", store.name, where)
        has_start = settings.start_fingerprint is not None
        n_calibration_folds(store, settings.config, has_start=has_start)
        if not settings.is_resumed:
            with listening():
                settings = with_defaults(settings, stop, watch_choice, given=config.given())
        with ExitStack() as stack:
            pool = None
            if settings.config.replicas > 1:
                stack.enter_context(listening())
                # Before the settings are recorded: a run that gets no pool can be begun again.
                pool = stack.enter_context(machines.open_pool(settings.config))
            ready = begin(settings)
            step = ready.state.at.step
            if step:
                _LOG.info("train resumes at step %s", f"{step:,}")
            # The loop needs neither the start model nor a second copy of its weights.
            start = settings.start if ready.config.n_restarts > 1 else None
            del settings
            watches = RestartsWatch(watch, ready.config.n_restarts)
            if pool is not None:
                mixed = machines.mixed_machines
                RoundLoop(ready, watches.of(0), stop, pool, mixed_machines=mixed).run()
            else:
                with listening():
                    Loop(ready, watches.of(0), stop).run()
        if ready.stopped_early:
            _LOG.info(
                "train stopped early at step %s; the lowest ranking loss is %.4f, of step %s",
                f"{ready.state.at.step:,}",
                ready.state.at.best_loss,
                f"{ready.state.at.best_step:,}",
            )
        with listening():
            model = with_restarts(trained_model(ready), ready, start, watches, stop)
            model = calibrated(model, ready, stop, watch_choice)
        if folder is not None:
            model.save(folder.model)
            write_card(ready, model, folder.path)
        if not is_trial:
            warn_of_unpredicted(ready, model)
            seconds = time.monotonic() - begun
            _LOG.info("train ends: %s steps, %.1f s", f"{ready.state.at.step:,}", seconds)
        return model
