"""Restarts: trainings of one run with different seeds, joined to a model that averages row scores.

The first restart is the run itself. The others train after it, one at a time, with the settings
of the run, its scaling and its lift, and a seed derived from its seed. A run in a folder keeps
each of them in a folder of its own, with settings, history and checkpoints, so that a run that is
killed repeats no training that was finished.

Averaging takes out much of what chance does to one training: start weights, the order of bags,
draws. Means over splits 10 and 11 of four sets, default settings, ranking loss in thousandths /
average precision (key instances):

    ============  =================  =================  =================
    set           1 restart          5 restarts         10 restarts
    ============  =================  =================  =================
    Letter Frost  107 / .747 (.744)   97 / .771 (.766)  101 / .757 (.772)
    MSRC v2        59 / .820 (.754)   55 / .829 (.767)   53 / .835 (.765)
    birds (ARFF)  150 / .645         139 / .655         139 / .663
    Scene         153 / .806         145 / .816         145 / .817
    ============  =================  =================  =================

These splits settled the number 5. On splits 12 to 16 (Scene to 15), against the first restart
alone: 107 after 106, 63 after 67, 139 after 144, 159 after 164; only that of Scene is significant.

The mean of the restarts' bag scores, instead of their row scores, has about the same figures; but
then the score of a bag would be the score of none of its rows. The mean of their weights loses: it
needs sub-concepts that match, and averages before the maximum.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from streammiml._base.hashing import mixed
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn.begin import Ready, RunSettings, begin, check_start
from streammiml.learn.checkpoint import has_checkpoint
from streammiml.learn.loop import Loop
from streammiml.learn.progress import RestartsWatch
from streammiml.learn.run_folder import RunFolder
from streammiml.learn.stop_signals import StopSignals
from streammiml.learn.threshold import fitted_offset
from streammiml.learn.trained_model import label_rule, trained_model
from streammiml.model import Model
from streammiml.scorer import weights_of

FOLDER = "restarts"
"""Folder in a run folder that has a run folder for each restart but the first."""
_KEY = 0x2E57A27
_LOG = logging.getLogger("streammiml")


def restart_seed(seed: int, number: int) -> int:
    """Seed of a restart; the first one, number 0, has the seed of the run."""
    if number == 0:
        return seed
    return int(mixed(np.array([number]), seed, _KEY)[0] >> np.uint64(1))


def settings_of_restart(config: TrainConfig, number: int) -> TrainConfig:
    """Settings of one restart of a run: those of the run with another seed."""
    return replace(
        config,
        seed=restart_seed(config.seed, number),
        restarts=1,
        calibrate=None,
        threshold="none",
    )


def with_restarts(
    model: Model,
    ready: Ready,
    start: Model | None,
    watch: RestartsWatch,
    stop: StopSignals,
) -> Model:
    """Train the other restarts of a finished run, and join all models to one."""
    n_restarts = ready.config.n_restarts
    if n_restarts == 1:
        return model
    models = [model]
    for number in range(1, n_restarts):
        _LOG.info("restart %d of %d", number + 1, n_restarts)
        folder = _folder_of(ready, number)
        with folder or nullcontext():
            run = begin(_settings_of(ready, number, folder, start))
            # The held-out bags are the same, and in memory already.
            run = replace(run, plan=replace(run.plan, validation=ready.plan.validation))
            Loop(run, watch.of(number), stop).run()
            models.append(trained_model(run))
    model = joined(models)
    model = replace(model, settings={**model.settings, "restarts": n_restarts})
    return replace(model, rule=replace(model.rule, offset=_offset(ready, model)))


def joined(models: list[Model]) -> Model:
    """Join models of one scaling and lift to a model whose row scores are the means of theirs."""
    shared = np.concatenate([model.shared for model in models], axis=1)
    labels = np.concatenate([model.labels for model in models], axis=1)
    if not models[0].has_shared_space:
        shared = models[0].shared
    return replace(models[0], shared=shared, labels=labels, restarts=len(models))


def _folder_of(ready: Ready, number: int) -> RunFolder | None:
    if ready.folder is None:
        return None
    path = ready.folder.path / FOLDER / str(number + 1)
    path.parent.mkdir(exist_ok=True)
    return RunFolder(path, resume=True)


def _settings_of(
    ready: Ready, number: int, folder: RunFolder | None, start: Model | None
) -> RunSettings:
    """Settings with which a restart begins or goes on."""
    config, extends = settings_of_restart(ready.config, number), False
    if folder is not None and folder.exists:
        recorded = folder.settings()
        # The run may have been extended since; a restart that had stopped early looks on then.
        extends = config.n_epochs > recorded.get("epochs", config.n_epochs)
        config = replace(config, patience=max(config.patience, recorded.get("patience", 1)))
    own_start = None
    is_begun = folder is not None and has_checkpoint(folder.checkpoints)
    if "start_fingerprint" in ready.fingerprints and not is_begun:
        own_start = _start_model(ready, start).restart(number)
    return RunSettings(
        store=ready.store,
        config=config,
        folder=folder,
        start=own_start,
        start_fingerprint=ready.fingerprints.get("start_fingerprint"),
        extends=extends,
        like=ready.state,
    )


def _start_model(ready: Ready, start: Model | None) -> Model:
    if start is not None:
        return start
    path = ready.config.start
    if path is None or not Path(path).exists():
        raise StreammimlError(
            f"{ready.folder and ready.folder.path} has a restart that did not begin yet, and it "
            "needs the model that the run began from; give that model as start"
        )
    model = Model.load(path)
    if ready.folder is not None:
        check_start(ready.folder, model.fingerprint, ready.fingerprints["start_fingerprint"])
    return model


def _offset(ready: Ready, model: Model) -> float:
    """Offset of the threshold: from trials, or fitted on held-out bags to the joined scores."""
    config, validation = ready.config, ready.plan.validation
    if ready.offset is not None or config.threshold in (None, "none") or validation is None:
        return model.rule.offset
    min_labels = label_rule(ready.store, config).min_labels
    deadline = ready.plan.budget.read.deadline
    counts = validation.counts(ready.state.lift, weights_of(model), deadline, min_labels)
    return fitted_offset(counts, config.threshold)
