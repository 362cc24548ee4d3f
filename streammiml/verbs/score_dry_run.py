"""Prints what a dry run of ``evaluate`` or ``predict`` found."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator
from dataclasses import asdict

from streammiml._base.display import format_duration
from streammiml.config import format_size
from streammiml.measure.dry_run import ScoreDryRun


def print_dry_run(run: ScoreDryRun, *, json: bool) -> None:
    """Print one JSON object, or lines to read."""
    if json:
        print(json_format.dumps(asdict(run)))
        return
    for name, value in _lines(run):
        print(f"{name:<19} {value}")


def _lines(run: ScoreDryRun) -> Iterator[tuple[str, str]]:
    at_once = "as many as the cluster has threads" if run.tasks_at_once is None else None
    yield "bags", f"{run.n_bags:,} of {run.n_rows:,} rows"
    yield "tasks", f"{run.n_tasks:,}, {at_once or run.tasks_at_once} at the same time"
    whose = "for a task" if at_once else "for these"
    yield "memory, about", f"{format_size(run.memory)} {whose}, beside the process itself"
    yield "reads, about", format_size(run.read_bytes)
    if run.n_parts:
        size = format_size(run.write_bytes)
        parts = "1 part" if run.n_parts == 1 else f"{run.n_parts:,} parts"
        yield "writes, about", f"{size} in {parts}, before compression"
    one = f"{format_duration(run.seconds_on_one_core)} on one core"
    measured = f"measured on the first {run.sampled_bags:,} bags"
    whole = one if run.seconds is None else f"{format_duration(run.seconds)}; {one}"
    yield "time, about", f"{whole}, {measured}"
