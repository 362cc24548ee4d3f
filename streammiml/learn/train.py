"""``train``: settings → plan and state → loop → model, resumable to the bit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.config import TrainConfig, check_whole
from streammiml.errors import StreammimlError
from streammiml.learn.begin import RunSettings, begin, settle
from streammiml.learn.defaults import FOLDS, epochs_of, fold_settings, is_folded, resolved
from streammiml.learn.holdout import Holdout
from streammiml.learn.loop import Loop
from streammiml.learn.progress import TrainProgress
from streammiml.learn.run_folder import RunFolder, finish_extension
from streammiml.learn.run_plan import plan_run
from streammiml.learn.stop_signals import Stopped, StopSignals
from streammiml.learn.trained_model import trained_model
from streammiml.learn.validation import NothingRanked
from streammiml.model import Model


def train(
    stores: Bags | str | Path | list[str],
    config: TrainConfig | None = None,
    *,
    run: str | Path | None = None,
    resume: bool = False,
    extend: int = 0,
    start: Model | None = None,
    watch: Callable[[TrainProgress], None] = lambda _: None,
) -> Model:
    """Train a model on one or more stores or a view; a run in a folder ``run`` can be resumed.

    Training stops after ``config.epochs``, or when the ranking loss of held-out bags has not
    fallen for ``config.patience`` looks, and returns the best model. A look measures that loss.

    A resumed run keeps its settings. Settings of ``config`` that are not the default may change the
    end of the run (``epochs``, ``max_steps``, ``patience``) and its memory; any other difference
    from the recorded settings is refused.

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
    """
    store = stores if isinstance(stores, Bags) else open_store(stores)
    folder = open_run(run, resume=resume, extend=extend)
    model = train_run(
        store, config or TrainConfig(), folder, extend=extend, start=start, watch=watch
    )
    if run is not None:
        finish_extension(Path(run))
    return model


def open_run(run: str | Path | None, *, resume: bool, extend: int) -> RunFolder | None:
    """Open the folder of a run, or return None if the run has no folder."""
    check_whole("extend", extend, 0)
    if extend and run is None:
        raise StreammimlError("extend continues a run; name its folder")
    return None if run is None else RunFolder(Path(run), resume=resume or extend > 0)


def train_run(
    store: Bags,
    config: TrainConfig,
    folder: RunFolder | None,
    *,
    extend: int,
    watch: Callable[[TrainProgress], None],
    start: Model | None = None,
) -> Model:
    """Train in an open folder, as ``train`` does.

    The caller calls ``finish_extension`` after it has shown the result to the user.
    """
    stop = StopSignals()
    # Without a folder there is nothing to save: Ctrl-C raises KeyboardInterrupt as usual.
    listening = stop.listening if folder is not None else nullcontext
    with folder or nullcontext():
        settings = settle(store, config, folder, extend=extend, start=start)
        if not settings.is_resumed:
            with listening():
                settings = replace(settings, config=_with_defaults(settings, stop))
        ready = begin(settings)
        # The loop needs neither the start model nor a second copy of its weights.
        del settings, start
        with listening():
            Loop(ready, watch, stop).run()
        model = trained_model(ready)
        if folder is not None:
            model.save(folder.model)
        return model


def _with_defaults(settings: RunSettings, stop: StopSignals) -> TrainConfig:
    """Fill in ``validation`` and ``epochs`` if they are None; see ``learn/defaults.py``."""
    store, config = settings.store, settings.config
    if not is_folded(config, store.n_bags):
        return resolved(config, store.n_bags)
    curves: list[dict[int, float]] = []
    every = 0

    def note(progress: TrainProgress) -> None:
        if stop.number:
            raise Stopped(stop.number, 0)
        if progress.validation_loss is not None:
            curves[-1][progress.step] = progress.validation_loss

    for fold in range(FOLDS):
        held_out = Holdout.of_fold(fold, FOLDS, store.n_bags)
        fold_config = fold_settings(config, store.n_bags, every)
        try:
            if not every:
                every = plan_run(store, replace(fold_config, validate_every=None), held_out).every
                fold_config = fold_settings(config, store.n_bags, every)
            curves.append({})
            ready = begin(replace(settings, config=fold_config, folder=None, holdout=held_out))
            Loop(ready, note, StopSignals()).run()
        except NothingRanked:
            return resolved(config, store.n_bags)
    return replace(config, validation=0.0, epochs=epochs_of(curves, store.n_bags))
