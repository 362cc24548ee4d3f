"""``streammiml train``: train a model on one or several stores, in a run folder."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

from streammiml._base.display import format_duration
from streammiml.bags.store import open_store
from streammiml.config import format_size
from streammiml.learn.dry_run import DryRun
from streammiml.learn.dry_run import dry_run as dry_run_of
from streammiml.learn.machines import HERE, TrainMachines
from streammiml.learn.progress import TrainProgress
from streammiml.learn.run_facts import FactsWriter
from streammiml.learn.run_folder import finish_extension
from streammiml.learn.stop_signals import Stopped
from streammiml.learn.tensorboard import EventFiles
from streammiml.learn.train import open_run, train_run
from streammiml.learn.train_display import RunDisplay
from streammiml.verbs.machine import missing_fast_paths
from streammiml.verbs.options import FLAT_FLAGS, AsJson, Flag
from streammiml.verbs.train_options import (
    ConfigFile,
    StoresAndFolder,
    Training,
    merged,
    stores_and_folder,
)


def train(
    *paths: StoresAndFolder,
    resume: Flag = False,
    extend: int = 0,
    dry_run: Flag = False,
    json: AsJson = False,
    tensorboard: Path | None = None,
    config: ConfigFile = None,
    machines: Annotated[TrainMachines | None, FLAT_FLAGS] = None,
    options: Training = None,
) -> int:
    """Train a model on one or several stores; the last path is the run folder.

    Parameters
    ----------
    paths
        Stores (folders or URLs), then the run folder.
    resume
        Continue the run in the folder, or begin a run if the folder has none.
    extend
        Continue the run for this many epochs beyond its last one. A run that stopped early gets
        its full patience again. If the extension is killed, the same command continues to the same
        end, and so does --resume.
    dry_run
        Train nothing; print how much memory and reading training needs, how well bags are mixed,
        and about how long training takes.
    tensorboard
        Folder for TensorBoard's event files.
    """
    stores, run = stores_and_folder(paths, "train", "run")
    settings = merged(options, config)
    if dry_run:
        planned = dry_run_of(stores, settings, machines=machines or HERE)
        print(dumps(asdict(planned))) if json else _print_dry_run(planned)
        return 0
    # Printed when training begins: a command that is refused prints one line only.
    notices = missing_fast_paths()
    if settings.threads > 1:
        notices.insert(0, "several kernel threads: results vary from run to run")
    events = EventFiles(tensorboard) if tensorboard is not None else None
    display = RunDisplay()
    store = open_store(stores)
    facts_writer = FactsWriter(store, Path(run))

    def watch(progress: TrainProgress) -> None:
        display.watch(progress)
        while notices:
            print(f"streammiml: {notices.pop(0)}", file=sys.stderr)
        facts_writer(progress)
        if events is not None:
            events(progress)

    try:
        with display, events or nullcontext():
            folder = open_run(run, resume=resume, extend=extend)
            model = train_run(
                store,
                settings,
                folder,
                extend=extend,
                machines=machines or HERE,
                watch=watch,
                watch_choice=display.watch_choice,
            )
    except Stopped as stop:
        facts_writer.finish()
        print(f"streammiml: {stop}; the same command with --resume continues", file=sys.stderr)
        return 128 + stop.number
    facts_writer.finish()
    for line in display.training.summary():
        print(line, file=sys.stderr)
    if not display.training.has_trained:
        line = "nothing was left to train: the run had ended before; --extend continues it"
        print(line, file=sys.stderr)
    if json:
        print(dumps({"run": run, **model.provenance}))
    else:
        print(f"{run}: {model}")
    sys.stdout.flush()
    finish_extension(Path(run))
    return 0


def _print_dry_run(run: DryRun) -> None:
    memory = {f"memory, {name}": format_size(size) for name, size in run.memory.items()}
    lines = {
        "bags to train on": f"{run.training_bags:,}",
        "bags held out": f"{run.held_out_bags:,}, looked at every {run.validate_every:,} steps",
        "blocks": f"{run.n_blocks:,} of {run.block_bags} bags, {run.mix_blocks} mixed",
        "variance inflation": f"{run.vif:.2f} of label counts, if the store is sorted by label",
        **memory,
        "memory, all": f"{format_size(run.memory_total)} of {format_size(run.memory_allowed)}",
        "trials": f"{run.trials} before training, {run.trial_steps:,} steps",
        "steps": f"{run.steps:,}, {run.steps_per_epoch:,} per epoch",
        "reads, about": f"{format_size(run.read_total)}, "
        f"{format_size(run.read_per_epoch)} per epoch",
        "time of trials": f"about {format_duration(run.seconds_of_trials)}, before training",
        "time, about": f"{format_duration(run.seconds)} without early stopping, from "
        f"{run.seconds_per_step * 1e6:,.0f} µs per step and {run.seconds_per_look:.2g} s per look, "
        "measured on an untrained model",
    }
    if run.restarts > 1:
        lines["steps"] += f", in each of {run.restarts} restarts"
    if run.calibration_steps:
        lines["calibration"] = (
            f"{run.calibration_steps:,} steps, about "
            f"{format_duration(run.seconds_of_calibration)}, after training"
        )
    if run.replicas > 1:
        lines |= {
            "replicas": f"{run.replicas}, rounds of up to {run.round_steps:,} steps",
            "on a cluster": f"at most {format_size(run.round_bytes)} are moved in a round; in "
            f"memory: driver {format_size(run.driver_memory)}, each worker "
            f"{format_size(run.worker_memory)}; expected efficiency of long rounds "
            f"{run.efficiency:.0%}, with a worker for each replica and a network of 1 GB/s",
        }
    for name, value in lines.items():
        if run.trials or "trials" not in name:
            print(f"{name:<19} {value}")
