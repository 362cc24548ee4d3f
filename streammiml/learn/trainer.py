"""``train``: plan → read-ahead → sweep → checkpoint, resumable to the bit."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import SparseRows
from streammiml.bags.store import open_store
from streammiml.bags.views import Bags
from streammiml.blocks.budget import row_bytes
from streammiml.blocks.prefetch import ReadAhead
from streammiml.blocks.stream import Batch, Stream
from streammiml.config import LiftSpec, ScaleSpec, TrainConfig, check_whole, parse_size
from streammiml.drawing import shuffled
from streammiml.errors import StoreError, StreammimlError, unknown
from streammiml.jit import compile_seconds
from streammiml.kernel.lift import lift_width
from streammiml.kernel.score import Weights
from streammiml.kernel.step import Settings
from streammiml.kernel.sweep import Learner, make_tally
from streammiml.learn.clock import CHECKPOINTS, KERNEL, VALIDATION, Clock, Work
from streammiml.learn.holdout import Holdout
from streammiml.learn.prepare import mixing_in_words, prepare
from streammiml.learn.progress import Progress
from streammiml.learn.run import FINGERPRINTS, PLACES, SETTINGS, RunFolder
from streammiml.learn.scaler import Fit, ScalerFit, needs_rows
from streammiml.learn.start import check_follows, settings_from, state_from
from streammiml.learn.state import (
    has_checkpoint,
    load_checkpoint,
    new_state,
    save_checkpoint,
    tally_of,
)
from streammiml.learn.sweeping import Sweeper
from streammiml.learn.usual import FOLDS, epochs_of, fold_settings, is_folded, resolved
from streammiml.learn.validation import NothingRanked
from streammiml.model import LabelRule, LiftArrays, Model

STRETCH_BYTES = 1 << 20
CALL_SECONDS = 0.25
"""Of one call of the kernel, about: signals are heard between two. What is learned does not depend
on where calls are cut."""
FIRST_CALL = 64
"""Steps of the first one, when nobody knows how long they take."""
MOST_GROWTH = 16
"""A call has at most this many times the steps of the call before, whose time may be measured too
short: seconds in which other threads compile are taken off it."""


class Stopped(Exception):
    """A signal asked to stop a run in a folder, and all is saved; ``number`` is the signal's."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped at step {step:,}")
        self.number = number


class _Interrupted(Exception):
    """A signal came while nothing but a read was waited for."""


def train(
    stores: Bags | str | Path | list[str],
    config: TrainConfig | None = None,
    *,
    run: str | Path | None = None,
    resume: bool = False,
    extend: int = 0,
    start: Model | None = None,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Model:
    """Train a model on a store, several, or a view; with ``run``, in a folder that can be resumed.

    Training stops after ``config.epochs``, or when the ranking loss of held-out bags has not
    fallen for ``config.patience`` looks, and returns the best model. A resumed run keeps its
    settings; those of ``config`` that are not the default may change how long it goes on
    (``epochs``, ``max_steps``, ``patience``) and what memory it takes, and are refused if they
    contradict anything else.

    ``extend`` goes on with the run in ``run``, finished or not, for so many epochs more than it was
    to have. If it had stopped early, its patience grows by as much as it was, from the looks that
    have passed. The result is, to the byte, that of the run begun with the longer settings, which
    are recorded at once: after a kill, ``resume`` goes on.

    ``start`` (or the path ``config.start``) is a model to go on from, as ``partial_fit`` would,
    with ``TrainConfig(epochs=1, validation=0)`` for one pass over new bags. Its weights, scaling
    and lift are taken over; steps, step size and the means of iterates begin anew. The store has
    the model's features, and its labels are those of the model in the same order, then any new
    ones; label names of the result are the store's. With validation, what is returned is no worse
    on the held-out bags than the model was.
    """
    store = stores if isinstance(stores, Bags) else open_store(stores)
    config = config or TrainConfig()
    check_whole("extend", extend, 0)
    if extend and run is None:
        raise StreammimlError("extend goes on with a run; name its folder")
    folder = RunFolder(Path(run), resume=resume or extend > 0) if run is not None else None
    with folder or nullcontext():
        return _Training(store, config, folder, watch).run(extend, start)


class _Training:
    """One run from where it stands to its end."""

    def __init__(
        self,
        store: Bags,
        config: TrainConfig,
        folder: RunFolder | None,
        watch: Callable[[Progress], None],
        holdout: Holdout | None = None,
    ) -> None:
        self._store, self._folder, self._watch = store, folder, watch
        self._holdout = holdout
        self._config = config
        self._signal = 0
        self._waiting = False
        self._at_once = FIRST_CALL
        self._compiled_waiting = 0.0
        self._saved_at = (0, time.monotonic())

    def run(self, extend: int, start: Model | None) -> Model:
        folder = self._folder
        asked = start is not None or "start" in self._config.given()
        if folder is not None and folder.exists:
            self._adopt(folder, extend)
        elif folder is not None and extend:
            raise StreammimlError(f"{folder.path} holds no run to extend; leave --extend out")
        begins = folder is None or not has_checkpoint(folder.checkpoints)
        start = self._checked_start(start, needed=begins or asked)
        if folder is None or not folder.exists:
            with self._listening():
                self._config = self._filled(start)
        ready = prepare(self._store, self._config, self._holdout)
        self._plan, self._read = ready.budget.plan, ready.budget.read
        self._visits, self._looks, self._every = ready.visits, ready.looks, ready.every
        self._config = replace(
            self._config,
            block_bags=self._plan.block_bags,
            mix_blocks=self._plan.mix_blocks,
            validate_every=self._every,
        )
        self._check_looks(folder)
        found = load_checkpoint(folder.checkpoints) if folder is not None else None
        if found is None and start is not None:
            self._state = state_from(start, self._config, self._store.n_labels)
        elif found is None:
            fitted = self._fitted()
            self._state = new_state(self._config, fitted.lift, self._store.n_labels)
            self._state.at.scale = fitted.scale
        else:
            self._state, key = found
            if key != self._key():
                raise StreammimlError(
                    f"the checkpoints of {folder.path} belong to another run"  # type: ignore[union-attr]
                )
            self._check_goes_on()
        if extend and self._stopped_early():
            patience = self._state.at.bad_checks + self._config.patience
            self._config = replace(self._config, patience=patience)
        if folder is not None:
            # Again on every resume: it may have been told to go on for longer.
            folder.record({**self._config.recorded(), **self._made_of()})
            folder.cut_history(self._state.at.history_bytes)
            if found is None and start is not None:
                # From now on the model may go: the run has what it needs of it.
                save_checkpoint(folder.checkpoints, self._state, self._key())
        del found, start
        self._clock = Clock()
        self._noted = self._first = Work()
        self._mixing = mixing_in_words(self._plan)
        self._before, self._done_before = self._state.at.seconds, self._share_done()
        with self._listening():
            self._loop()
            if folder is not None:
                self._save()
            self._last_look()
        model = self._model()
        if folder is not None:
            model.save(folder.model)
        return model

    def _filled(self, start: Model | None) -> TrainConfig:
        """Settings of a run that begins, with what was left open; see ``learn/usual.py``."""
        store, config = self._store, self._config
        if not is_folded(config, store.n_bags):
            return resolved(config, store.n_bags)
        curves: list[dict[int, float]] = []
        every = 0

        def note(progress: Progress) -> None:
            if self._signal:
                raise Stopped(self._signal, 0)
            if progress.validation_loss is not None:
                curves[-1][progress.step] = progress.validation_loss

        for fold in range(FOLDS):
            held_out = Holdout.of_fold(fold, FOLDS, store.n_bags)
            settings = fold_settings(config, store.n_bags, every)
            try:
                if not every:
                    open_every = replace(settings, validate_every=None)
                    every = prepare(store, open_every, held_out).every
                    settings = fold_settings(config, store.n_bags, every)
                curves.append({})
                _Training(store, settings, None, note, held_out).run(0, start)
            except NothingRanked:
                return resolved(config, store.n_bags)
        return replace(config, validation=0.0, epochs=epochs_of(curves, store.n_bags))

    def _checked_start(self, start: Model | None, *, needed: bool) -> Model | None:
        """The model to go on from, read if it is needed; the run must have begun with the same."""
        folder, path = self._folder, self._config.start
        begun = folder is not None and folder.exists
        recorded = folder.settings().get("start_fingerprint") if folder and begun else None
        if start is None and path is not None and needed:
            start = Model.load(path)
        self._start_fingerprint = start.fingerprint if start is not None else recorded
        if begun and self._start_fingerprint != recorded:
            raise StreammimlError(
                f"{folder and folder.path} was begun from a model of fingerprint {recorded}, "
                f"not {self._start_fingerprint}; leave --start out, or begin another run"
            )
        if begun and needed and recorded is not None and start is None:
            raise StreammimlError(
                f"{folder and folder.path} was stopped before its first checkpoint and needs the "
                f"model that it began from, of fingerprint {recorded}; give it as start"
            )
        if start is not None:
            check_follows(start, self._store)
            if not begun:
                self._config = settings_from(start, self._config)
        return start

    def _check_goes_on(self) -> None:
        """Refuse an end that the run has passed: its model would not be what the settings say."""
        at, config = self._state.at, self._config
        done = (("epochs", config.n_epochs, at.epoch), ("max_steps", config.max_steps, at.step))
        for name, most, so_far in done:
            if most is not None and so_far > most:
                raise StreammimlError(
                    f"--{name.replace('_', '-')} {most} is less than the {so_far} that the run has "
                    "done; leave it out, or begin another run"
                )

    def _made_of(self) -> dict[str, Any]:
        """Fingerprints of what decides the result beside the settings."""
        found: dict[str, Any] = {"fingerprint": self._store.fingerprint}
        found["sparse"] = self._store.sparse
        if self._config.validation_store is not None and self._looks is not None:
            found["validation_fingerprint"] = self._looks.store.fingerprint
        if self._start_fingerprint is not None:
            found["start_fingerprint"] = self._start_fingerprint
        return found

    def _check_looks(self, folder: RunFolder | None) -> None:
        """Refuse to go on with another validation store than the run began with."""
        if folder is None or not folder.exists:
            return
        recorded = folder.settings().get("validation_fingerprint")
        here = self._made_of().get("validation_fingerprint")
        if recorded != here:
            raise StreammimlError(
                f"{folder.path} was begun with a validation store of fingerprint {recorded}, "
                f"{self._config.validation_store} has {here}"
            )

    def _adopt(self, folder: RunFolder, extend: int) -> None:
        """Take over what was resolved when the run began; refuse what contradicts it."""
        recorded = folder.settings()
        if recorded.get("fingerprint") != self._store.fingerprint:
            raise StreammimlError(
                f"{folder.path} was begun on a store of fingerprint {recorded.get('fingerprint')}, "
                f"{self._store.name} has {self._store.fingerprint}"
            )
        if recorded.get("sparse", self._store.sparse) != self._store.sparse:
            raise StreammimlError(
                f"{folder.path} was begun on {'sparse' if recorded['sparse'] else 'dense'} rows, "
                f"and those of {self._store.name} are not; they are scaled otherwise: go on with "
                "the store it was begun on, or begin another run"
            )
        given = self._config.given()
        folder.check_same(given)
        for name in FINGERPRINTS:
            recorded.pop(name, None)
        known = TrainConfig().recorded()
        try:
            for name in recorded:
                if name not in known:
                    raise unknown("option", name, known)
            found = replace(TrainConfig(), **{**recorded, **given})
        except StreammimlError as error:
            raise StreammimlError(f"{folder.path / SETTINGS}: {error}") from None
        epochs = recorded.get("epochs", found.epochs)
        if extend and found.epochs != epochs:
            raise StreammimlError(
                f"--extend {extend} is beyond the {epochs} epochs of {folder.path}, and "
                f"--epochs {found.epochs} says otherwise; give one of them"
            )
        if extend and found.max_steps is not None:
            raise StreammimlError(
                f"{folder.path} ends after {found.max_steps:,} steps, whatever its epochs; "
                "--resume with a larger --max-steps goes on"
            )
        found = resolved(found, self._store.n_bags)
        self._config = replace(found, epochs=found.n_epochs + extend)

    def _key(self) -> dict[str, Any]:
        """What a checkpoint must agree with."""
        return {"fingerprint": self._store.fingerprint, "seed": self._config.seed}

    def _fitted(self) -> Fit:
        """Fit scaler and lift on training bags: a seeded sample of stretches, or all of them."""
        config, store = self._config, self._store
        scale, lift = ScaleSpec.parse(config.scale), LiftSpec.parse(config.lift)
        fit = ScalerFit(store.n_features, scale, lift, seed=config.seed, sparse=store.sparse)
        # Whole blocks, and as many as a disk reads at once: blocks of tiny bags are short.
        bags = self._plan.block_bags
        block_bytes = row_bytes(store) * store.n_rows / store.n_bags * bags
        bags *= max(1, int(STRETCH_BYTES / block_bytes))
        parts: Iterator[int] = iter(range(-(-store.n_bags // bags)))
        limit = float("inf")
        if config.fit_scaler != "full":
            limit = parse_size(config.fit_scaler, option="fit_scaler")
            parts = shuffled(-(-store.n_bags // bags), config.seed, 0x5CA1E)
        everything = needs_rows(scale, lift)

        def read(part: int) -> NDArray[Any] | SparseRows:
            start, stop = part * bags, min((part + 1) * bags, store.n_bags)
            kept = np.flatnonzero(~self._visits.holdout.chosen(np.arange(start, stop)))
            return store.read(start, stop, row_labels=False).take(kept).rows

        seen = 0
        with ReadAhead(read, parts, depth=2, deadline=self._read.deadline) as ahead:
            for rows in ahead:
                if isinstance(rows, np.ndarray):
                    fit.update_dense(rows)
                    seen += 4 * rows.size
                else:
                    fit.update_sparse(len(rows), rows.columns, rows.values)
                    seen += 8 * len(rows.values)
                if seen >= limit or (fit.n_nonzero and not everything):
                    break
        found = fit.finish()
        if not fit.n_nonzero or found.n_constant == store.n_features:
            what = "no feature varies" if fit.n_nonzero else "every feature is zero"
            raise StreammimlError(
                f"{what} over the {found.n_rows:,} rows of {store.name} that were looked at; "
                "there is nothing to learn from"
            )
        return found

    # The loop.

    def _loop(self) -> None:
        at, config = self._state.at, self._config
        if self._done():
            return
        learner = Learner(
            self._state.weights,
            self._state.averages,
            Settings(config.seed, config.step_size, config.decay, config.max_norm),
            self._state.lift,
        )
        self._tally = tally_of(at)
        self._watch(self._progress(None, is_line=False))
        if at.step == 0 and self._start_fingerprint is not None:
            at.history_bytes = self._note(self._look())
        with (
            Stream(
                self._visits.listed,
                self._plan,
                epoch=at.epoch,
                place=at.place,
                read=self._read,
                leave_out=self._visits.left_out,
            ) as stream,
            Sweeper(learner, config.threads) as sweeper,
        ):
            self._stream = stream
            for batch in self._batches(stream):
                done = 0
                while done < len(batch.numbers):
                    if batch.epoch >= config.n_epochs:
                        at.epoch, at.place = batch.epoch, 0
                        return
                    many = min(len(batch.numbers) - done, self._until_event(), self._at_once)
                    with self._clock.spending(KERNEL) as spent:
                        visit = batch.visit[done : done + many]
                        wrong = sweeper.sweep(batch.bags, visit, at.step, self._tally)
                    if wrong >= 0:
                        raise StreammimlError(
                            f"training diverged at step {wrong:,}: a score or weight is no finite "
                            f"number; a smaller --step-size than {config.step_size} may help"
                        )
                    growth = min(MOST_GROWTH, CALL_SECONDS / max(spent(), 1e-6))
                    self._at_once = max(1, int(many * growth))
                    ends = batch.bags.bag_offsets
                    n_rows = int((ends[visit + 1] - ends[visit]).sum())
                    n_bytes = batch.bags.nbytes * n_rows // max(1, batch.bags.n_rows)
                    self._clock.did(many, n_rows, n_bytes)
                    done += many
                    at.step += many
                    at.epoch, at.place = batch.epoch, int(batch.places[done - 1]) + 1
                    if not self._first.steps:
                        # Loading kernels makes the first call slow: the pace is that of the rest.
                        self._first, self._done_before = self._clock.work(), self._share_done()
                    self._events()
                    if self._done():
                        return

    def _batches(self, stream: Stream) -> Iterator[Batch]:
        """What comes; what was learned is saved if no more can be read, or a signal interrupts."""
        batches = iter(stream)
        while True:
            try:
                self._waiting = True
                if self._signal:
                    raise _Interrupted
                compiled, waited = compile_seconds(), stream.waited
                batch = next(batches, None)
                compiled, waited = compile_seconds() - compiled, stream.waited - waited
                self._compiled_waiting += min(compiled, waited)
            except _Interrupted:
                self._waiting = False
                self._stop()
            except StoreError:
                self._waiting = False
                if self._folder is not None:
                    self._save()
                raise
            finally:
                self._waiting = False
            if batch is None:
                return
            yield batch

    def _until_event(self) -> int:
        """Steps until something must happen at an exact step."""
        at, config = self._state.at, self._config
        ends = [self._every - at.step % self._every]
        steps, _ = config.checkpoint_interval()
        ends += [steps - at.step % steps] if steps else []
        ends += [config.max_steps - at.step] if config.max_steps else []
        return min(ends)

    def _done(self) -> bool:
        at, config = self._state.at, self._config
        if config.max_steps is not None and at.step >= config.max_steps:
            return True
        return at.epoch >= config.n_epochs or self._stopped_early()

    def _stopped_early(self) -> bool:
        return self._looks is not None and self._state.at.bad_checks >= self._config.patience

    def _events(self) -> None:
        at, config = self._state.at, self._config
        # Threads that read compile what they read with, and this one waits for them.
        self._clock.waited(self._stream.waited - self._compiled_waiting)
        at.tally_counts, at.tally_loss = self._tally.counts.tolist(), float(self._tally.loss[0])
        if at.step % self._every == 0:
            at.history_bytes = self._note(self._look())
            self._tally = make_tally()
            at.tally_counts, at.tally_loss = self._tally.counts.tolist(), 0.0
            self._noted = self._clock.work()
        else:
            self._watch(self._progress(None, is_line=False))
        steps, seconds = config.checkpoint_interval()
        saved_step, saved_time = self._saved_at
        due = (steps and at.step % steps == 0) or (
            seconds is not None and time.monotonic() - saved_time >= seconds
        )
        if self._folder is not None and due and at.step != saved_step:
            self._save()
        if self._signal:
            self._stop()

    def _stop(self) -> NoReturn:
        """Save what there is, and say that a signal asked for it."""
        if self._folder is not None:
            self._save()
        raise Stopped(self._signal, self._state.at.step)

    def _look(self) -> float | None:
        """Ranking loss of the held-out bags under the weights that would be returned."""
        if self._looks is None:
            return None
        at, weights = self._state.at, self._state.returned()
        loss = self._validation_loss(weights)
        if at.best_loss is None or loss < at.best_loss:
            at.best_loss, at.best_step, at.bad_checks = loss, at.step, 0
            self._state.best = weights
        else:
            at.bad_checks += 1
        return loss

    def _last_look(self) -> None:
        """Look at where the run ended, so that what is returned is no worse than that.

        No checkpoint knows of it: a run that goes on must be the one that never ended here.
        """
        if self._state.at.step % self._every:
            self._note(self._look())

    def _validation_loss(self, weights: Weights) -> float:
        assert self._looks is not None, "asked only where there are bags to look at"
        with self._clock.spending(VALIDATION):
            return self._looks.loss(self._state.lift, weights, self._read.deadline)

    def _note(self, loss: float | None) -> int:
        """A line of the history; the size of the file with it."""
        progress = self._progress(loss, is_line=True)
        size = self._folder.note(progress.line()) if self._folder is not None else 0
        self._watch(progress)
        return size

    def _progress(self, loss: float | None, *, is_line: bool) -> Progress:
        at, now = self._state.at, self._clock.work()
        at.seconds = self._before + now.seconds
        work, n_steps = now - self._noted, max(1, at.tally_counts[0])
        steady = now - max(self._noted, self._first, key=lambda before: before.steps)
        rates = steady if steady.steps else work
        return Progress(
            epoch=at.epoch,
            step=at.step,
            seconds=round(at.seconds, 3),
            steps_per_second=round(rates.a_second(rates.steps), 1),
            rows_per_second=round(rates.a_second(rates.rows), 1),
            mb_per_second=round(rates.a_second(rates.n_bytes) / 1e6, 3),
            loss=at.tally_loss / n_steps,
            share_of_violations=at.tally_counts[1] / n_steps,
            time=work.times(),
            validation_loss=loss,
            best_loss=at.best_loss,
            is_line=is_line,
            epochs=self._config.n_epochs,
            mixing=self._mixing,
            stopped_early=self._stopped_early(),
            done=self._share_done(),
            seconds_left=self._seconds_left(now),
            total={**now.times(), "all": now.seconds},
        )

    def _share_done(self) -> float:
        at, config = self._state.at, self._config
        done = (at.epoch + at.place / self._plan.n_bags) / config.n_epochs
        return min(1.0, max(done, at.step / config.max_steps if config.max_steps else 0.0))

    def _seconds_left(self, now: Work) -> float | None:
        """To the last epoch or step, at the pace of this process."""
        done = self._share_done()
        here = done - self._done_before
        return (now - self._first).seconds_at_work / here * (1 - done) if here > 0 else None

    def _save(self) -> None:
        folder = self._folder
        assert folder is not None, "only runs in a folder are saved"
        with self._clock.spending(CHECKPOINTS):
            save_checkpoint(folder.checkpoints, self._state, self._key())
        self._saved_at = (self._state.at.step, time.monotonic())

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Note SIGINT and SIGTERM and stop at the next step; a second one ends at once.

        Without a folder there is nothing to save, and signals do what they always do: Ctrl-C
        raises KeyboardInterrupt.
        """
        if self._folder is None:
            yield
            return

        def note(number: int, _: object) -> None:
            self._signal = number
            for each in kinds:
                signal.signal(each, signal.SIG_DFL)
            if self._waiting:
                raise _Interrupted

        kinds = (signal.SIGINT, signal.SIGTERM)
        try:
            before = {each: signal.signal(each, note) for each in kinds}
        except ValueError:  # Not the main thread: signals are not ours to hear.
            yield
            return
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _model(self) -> Model:
        state, store, config = self._state, self._store, self._config
        weights = state.best if state.best is not None else state.returned()
        m = config.shared_dim if config.shared_space else lift_width(state.lift)
        recorded = config.recorded()
        for name in ("memory", "checkpoint_every", *PLACES):
            del recorded[name]
        return Model(
            shared=weights.shared[:, :m],
            labels=weights.labels[:, :, :m],
            lift=LiftArrays(*state.lift),
            rule=self._rule(),
            label_names=None if store.label_names is None else tuple(store.label_names),
            settings={**recorded, "scale": state.at.scale},
            provenance={
                **self._made_of(),
                "steps": state.at.step,
                "best_step": state.at.best_step,
            },
        )

    def _rule(self) -> LabelRule:
        store, unlabelled = self._store, 0
        for start in range(0, store.n_bags, 65536):
            offsets, _ = store.labels(start, min(start + 65536, store.n_bags))
            unlabelled += int((np.diff(offsets) == 0).sum())
        return LabelRule.fitted(
            self._config.rule,
            self._config.min_labels,
            n_bags=store.n_bags,
            n_pairs=store.n_label_entries,
            n_unlabelled=unlabelled,
        )
