"""``streammiml train``: a model from one store or several, in a run folder."""

from __future__ import annotations

import sys
import tomllib
from contextlib import nullcontext
from dataclasses import asdict, fields
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from streammiml.bags.store import open_store
from streammiml.config import TrainConfig, format_size
from streammiml.errors import StreammimlError, unknown
from streammiml.learn.events import EventFiles
from streammiml.learn.forecast import Forecast, forecast
from streammiml.learn.origin import Witness
from streammiml.learn.progress import Progress
from streammiml.learn.run import FINGERPRINTS
from streammiml.learn.trainer import Stopped
from streammiml.learn.trainer import train as train_model
from streammiml.verbs.machine import lacking
from streammiml.verbs.showing import Show, spoken


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
    json: bool = False,
    tensorboard: Path | None = None,
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
        Say what would be held and read, how well bags are mixed, and about how long it would take;
        train nothing.
    json
        Say it, or what was made, as one JSON object.
    tensorboard
        Folder for TensorBoard's event files.
    config
        TOML file of options, named as on the command line; the command line wins.
    """
    if len(paths) < 2:
        raise StreammimlError("train needs a store and a folder for the run")
    *stores, run = paths
    settings = merged(options, config)
    if dry_run:
        found = forecast(stores, settings)
        print(dumps(asdict(found))) if json else _say(found)
        return 0
    # Told when training begins: whoever is refused gets one line.
    notices = lacking()
    if settings.threads > 1:
        notices.insert(0, "several kernel threads: results vary from run to run")
    events = EventFiles(tensorboard) if tensorboard is not None else None
    show = Show()
    store = open_store(stores)
    witness = Witness(store, Path(run))

    def watch(progress: Progress) -> None:
        show(progress)
        while notices:
            print(f"streammiml: {notices.pop(0)}", file=sys.stderr)
        witness(progress)
        if events is not None:
            events(progress)

    try:
        with show, events or nullcontext():
            model = train_model(store, settings, run=run, resume=resume, extend=extend, watch=watch)
    except Stopped as stop:
        witness.finish()
        print(f"streammiml: {stop}; the same command with --resume goes on", file=sys.stderr)
        return 128 + stop.number
    witness.finish()
    for line in show.summary():
        print(line, file=sys.stderr)
    if json:
        print(dumps({"run": run, **model.provenance}))
    else:
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


def _say(found: Forecast) -> None:
    memory = {f"memory, {name}": format_size(size) for name, size in found.memory.items()}
    lines = {
        "bags to train on": f"{found.training_bags:,}",
        "bags held out": f"{found.held_out_bags:,}, looked at every {found.validate_every:,} steps",
        "blocks": f"{found.n_blocks:,} of {found.block_bags} bags, {found.mix_blocks} mixed",
        "variance inflation": f"{found.vif:.2f} of label counts, if the store is sorted by label",
        **memory,
        "memory, all": f"{format_size(found.memory_total)} of {format_size(found.memory_allowed)}",
        "steps": f"{found.steps:,}, {found.steps_per_epoch:,} an epoch",
        "reads, about": f"{format_size(found.read_total)}, "
        f"{format_size(found.read_per_epoch)} an epoch",
        "time, about": f"{spoken(found.seconds)} without early stop, by "
        f"{found.seconds_per_step * 1e6:,.0f} µs a step and {found.seconds_per_look:.2g} s a look, "
        "measured on an untrained model",
    }
    for name, value in lines.items():
        print(f"{name:<19} {value}")
