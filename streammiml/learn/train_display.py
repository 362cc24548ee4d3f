"""Progress of a run: of the trials before it, of its steps, and of its calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from streammiml._base.display import ProgressDisplay, format_duration
from streammiml._base.platform import resident_bytes
from streammiml.config import format_size
from streammiml.learn.progress import ChoiceProgress, TrainProgress
from streammiml.learn.timing import OF_REPLICAS

TELLING_SHARE = 0.05
"""Share of the trials from which on the time left is shown: the first steps wait for kernels to
compile, so that an earlier estimate may be hours too long."""


class ChoiceDisplay(ProgressDisplay):
    """Shows trials before a run, and trainings after it that calibrate it."""

    def __init__(self) -> None:
        super().__init__()
        self._loss: float | None = None
        self._trial = ("", 0)

    def __call__(self, progress: ChoiceProgress) -> None:
        """Show the progress, unless the last line is recent."""
        trial = progress.stage, progress.trial
        if trial != self._trial:
            self._trial, self._loss = trial, None
        if progress.loss is not None:
            self._loss = progress.loss
        if progress.seconds_left is None or not self._is_due():
            return
        parts = [progress.stage]
        if progress.setting:
            parts = [f"{progress.stage}, trial {progress.trial} of {progress.n_trials}"]
            parts += [progress.setting]
        parts += [f"fold {progress.fold} of {progress.n_folds}"] if progress.n_folds > 1 else []
        parts += [f"ranking loss {self._loss:.4f}"] if self._loss is not None else []
        parts += [f"{progress.done:.0%} done"]
        if progress.done >= TELLING_SHARE:
            parts += [f"{format_duration(progress.seconds_left)} left"]
        self._draw(", ".join(parts), progress.done)


class TrainDisplay(ProgressDisplay):
    """Shows the steps of a run. Drawing begins with the first progress."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes_before = resident_bytes()
        self._loss: float | None = None
        self._stopped_early = False
        """Whether any restart stopped early."""
        self._last: TrainProgress | None = None

    def __call__(self, progress: TrainProgress) -> None:
        """Show the progress; at the first call, also print how bags are mixed.

        Progress that comes shortly after the last line, or before the pace is known, is not shown.
        """
        if self._last is None:
            self.say(progress.mixing)
        elif progress.restart != self._last.restart:
            self._loss = None
        self._last = progress
        self._stopped_early = self._stopped_early or progress.stopped_early
        if progress.validation_loss is not None:
            self._loss = progress.validation_loss
        has_pace = progress.seconds_left is not None
        if progress.is_line or (has_pace and self._is_due()):
            self._draw(", ".join(self._phrases(progress)), progress.done)

    def _phrases(self, progress: TrainProgress) -> list[str]:
        phrases = [
            f"epoch {min(progress.epoch + 1, progress.epochs)}/{progress.epochs}",
            f"step {progress.step:,}",
            f"{progress.steps_per_second:,.0f} steps/s",
            f"{progress.mb_per_second:.0f} MB/s",
            f"{format_size(max(0, resident_bytes() - self._bytes_before))} held",
            f"violations {progress.share_of_violations:.2f}",
        ]
        if progress.restarts > 1:
            phrases.insert(0, f"restart {progress.restart + 1}/{progress.restarts}")
        if progress.replicas > 1:
            spent = progress.total
            shares = [
                f"{name} {spent.get(name, 0) / max(spent['all'], 1e-9):.0%}" for name in OF_REPLICAS
            ]
            phrases.insert(2, f"{progress.rounds_here:,} rounds of {progress.replicas} replicas")
            phrases.append(f"time: {', '.join(shares)}")
        if self._loss is not None:
            phrases.append(f"ranking loss {self._loss:.4f}")
        if progress.seconds_left is not None and progress.done < 1:
            phrases.append(f"{format_duration(progress.seconds_left)} left")
        return phrases

    @property
    def has_trained(self) -> bool:
        """Whether any step was done; a run that was finished before does none."""
        return self._last is not None and self._last.steps_here > 0

    def summary(self) -> list[str]:
        """Lines for the end of a run: why it stopped early, and shares of the time."""
        if self._last is None or not self._last.steps_here:
            return []
        total = self._last.total
        early = "stopped early: no lower ranking loss in as many looks as --patience allows; "
        lines = [early + "--extend continues the run"] if self._stopped_early else []
        shares = {name: seconds / max(total["all"], 1e-9) for name, seconds in total.items()}
        del shares["all"]
        if shares.get("compiling", 0) < 0.005:
            shares.pop("compiling", None)
        parts = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        return [*lines, f"time: {format_duration(total['all'])}; {parts}"]


class RunDisplay:
    """Shows a whole run; its parts are shown one at a time."""

    def __init__(self) -> None:
        self._choice, self.training = ChoiceDisplay(), TrainDisplay()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._choice.end()
        self.training.end()

    def watch_choice(self, progress: ChoiceProgress) -> None:
        """Show trials before the run, or trainings that calibrate it."""
        self.training.end()
        self._choice(progress)

    def watch(self, progress: TrainProgress) -> None:
        """Show steps of the run."""
        self._choice.end()
        self.training(progress)


@contextmanager
def both_shown(
    watch: Callable[[TrainProgress], None],
    watch_choice: Callable[[ChoiceProgress], None],
    *,
    progress: bool,
) -> Iterator[tuple[Callable[[TrainProgress], None], Callable[[ChoiceProgress], None]]]:
    """Give what a run reports its progress to: the two functions, after a display if asked."""
    if not progress:
        yield watch, watch_choice
        return
    with RunDisplay() as display:

        def show(moment: TrainProgress) -> None:
            display.watch(moment)
            watch(moment)

        def show_choice(moment: ChoiceProgress) -> None:
            display.watch_choice(moment)
            watch_choice(moment)

        yield show, show_choice
        for line in display.training.summary():
            display.training.say(line)
