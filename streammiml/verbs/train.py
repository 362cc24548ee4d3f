"""``streammiml train``: a model from one store or several, in a run folder."""

from __future__ import annotations

import sys
import time
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from streammiml.bags.store import open_store
from streammiml.config import TrainConfig, format_size
from streammiml.errors import StreammimlError, unknown
from streammiml.learn.run import FINGERPRINTS
from streammiml.learn.trainer import Progress, Stopped, prepare
from streammiml.learn.trainer import train as train_model

SHOW_SECONDS = 5.0


class Options(TrainConfig):
    """Settings that know which of them were asked for, the default among them or not."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        object.__setattr__(self, "_given", given)

    def given(self) -> dict[str, Any]:
        """Settings that were asked for."""
        return dict(self._given)  # type: ignore[attr-defined]


def train(
    *paths: Annotated[str, Parameter(name="STORE... RUN", negative="")],
    resume: bool = False,
    extend: int = 0,
    dry_run: bool = False,
    config: Path | None = None,
    options: Annotated[Options | None, Parameter(name="*")] = None,
) -> int:
    """Train a model on one store or several; the last path is the run's folder.

    Parameters
    ----------
    paths
        Stores, folders or URLs, then the folder of the run.
    resume
        Go on with the run if the folder holds one, begin it otherwise.
    extend
        Go on with the run for so many epochs more than it was to have; one that stopped early gets
        as much patience again. After a kill, --resume goes on.
    dry_run
        Say what would be held and read, and how well bags are mixed; train nothing.
    config
        TOML file of options, named as on the command line; the command line wins.
    """
    if len(paths) < 2:
        raise StreammimlError("train needs a store and a folder for the run")
    *stores, run = paths
    settings = merged(options, config)
    if dry_run:
        _say_budget(stores, settings)
        return 0
    if settings.threads > 1:
        print("streammiml: several kernel threads: results vary from run to run", file=sys.stderr)
    show = _Show()
    try:
        model = train_model(stores, settings, run=run, resume=resume, extend=extend, watch=show)
    except Stopped as stop:
        print(f"streammiml: {stop}; the same command with --resume goes on", file=sys.stderr)
        return 128 + stop.number
    print(f"{run}: {model}")
    return 0


def merged(options: Options | None, file: Path | None) -> Options:
    """Options of the command line over those of a file over the defaults."""
    given: dict[str, Any] = {}
    if file is not None:
        try:
            given = tomllib.loads(file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise StreammimlError(f"{file} cannot be read: {error}") from None
        known = [field.name for field in fields(TrainConfig)]
        given = {name: value for name, value in given.items() if name not in FINGERPRINTS}
        try:
            for name in given:
                if name not in known:
                    raise unknown("option", name, known)
            Options(**given)
        except StreammimlError as error:
            raise StreammimlError(f"{file}: {error}") from None
    return Options(**{**given, **(options.given() if options is not None else {})})


def _say_budget(stores: list[str], settings: TrainConfig) -> None:
    store = open_store(stores)
    ready = prepare(store, settings)
    budget, plan = ready.budget, ready.budget.plan
    print(f"bags to train on  {store.n_bags - ready.visits.holdout.size:,}")
    print(f"bags held out     {ready.visits.holdout.size:,}")
    print(f"blocks            {plan.n_blocks:,} of {plan.block_bags} bags, {plan.window} mixed")
    print(f"variance inflation of label counts, at worst  {plan.vif:.2f}")
    for name, size in budget.held.items():
        print(f"memory, {name:<10} {format_size(size)}")
    print(f"memory, all        {format_size(budget.total)} of {format_size(budget.allowed)}")


class _Show:
    """A line on stderr now and then, and one for each look at the held-out bags."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.validation_loss is None and now - self._last < SHOW_SECONDS:
            return
        self._last = now
        loss = progress.validation_loss
        words = [
            f"epoch {progress.epoch}",
            f"step {progress.step:,}",
            f"{progress.steps_per_second:,.0f} steps/s",
            f"{progress.mb_per_second:.0f} MB/s",
            f"violations {progress.share_of_violations:.2f}",
            f"waited {progress.time['reading']:.1f} s",
        ]
        words += [] if loss is None else [f"ranking loss {loss:.4f}"]
        print(", ".join(words), file=sys.stderr, flush=True)
