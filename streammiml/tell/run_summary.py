"""The summary of a run on a page: store, model, speed, and the command that repeats the run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from streammiml.bags.views import Bags
from streammiml.config import TrainConfig, format_size
from streammiml.learn.run_folder import choice_reasons
from streammiml.measure.full_evaluation import FullEvaluation
from streammiml.tell.charts import Histogram
from streammiml.tell.examples import Example, LabelConcepts
from streammiml.tell.run_record import RunRecord


@dataclass(frozen=True, slots=True)
class ScoredStore:
    """Results of the model of a run on a store; without model or store, only ``note``."""

    note: str
    """Which bags were scored, or why none were."""
    store: Bags | None = None
    survey: FullEvaluation | None = None
    margins: Histogram | None = None
    concepts: list[LabelConcepts] | None = None
    examples: list[Example] | None = None
    bags: list[int] | None = None
    """Numbers of the bags in ``examples``."""
    coordinates: str = ""
    """Names of the kept columns that say where rows lie; empty if there are none."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Everything that the page says about one run."""

    name: str
    record: RunRecord
    scored: ScoredStore
    facts: list[tuple[str, str]]
    speed: list[tuple[str, str]]
    time: list[tuple[str, float]]
    """Name and share of each part of the time."""
    settings: list[tuple[str, str, bool]]
    """Name, value, and whether the value differs from the default."""
    command: str
    """Command that repeats the run."""
    reasons: list[str]
    """What trials chose before the run, and why; empty if there were none."""


def summarize(name: str, record: RunRecord, scored: ScoredStore) -> RunSummary:
    """Put together everything that the page says about a run."""
    defaults = TrainConfig().recorded()
    settings = [
        (key, str(value), value != defaults.get(key)) for key, value in record.settings.items()
    ]
    return RunSummary(
        name,
        record,
        scored,
        _facts(record),
        _speed(record),
        _time(record),
        settings,
        _command(record),
        choice_reasons(record.path),
    )


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    """Describe store, model and length of the run."""
    facts = []
    origin, model = record.origin, record.model
    if origin is not None:
        kind = f"sparse {origin.dtype}" if origin.sparse else origin.dtype
        facts += [
            ("Trained on", ", ".join(origin.stores)),
            (
                "Contents of the store",
                f"{origin.n_bags:,} bags, {origin.n_rows:,} rows of {origin.n_features:,} features "
                f"({kind}), {origin.n_labels:,} labels",
            ),
        ]
    facts.append(("Fingerprint of the store", record.fingerprint))
    if model is not None:
        space = f"{model.shared_dim} shared dimensions, " if model.has_shared_space else ""
        restarts = f"mean of {model.restarts} restarts, " if model.restarts > 1 else ""
        facts.append(
            (
                "Model",
                f"{restarts}{space}{model.subconcepts} sub-concepts for each of "
                f"{model.n_labels:,} labels, "
                f"rows of {model.n_features:,} features",
            )
        )
        scale = model.settings.get("scale")
        if scale is not None:
            lift = model.settings.get("lift", "none")
            facts.append(("Features", f"scaled {scale}" + f", lift {lift}" * (lift != "none")))
    else:
        facts.append(("Model", "not finished"))
    if record.history:
        last = record.history[-1]
        facts.append(("Length", f"{last['step']:,} steps, {last.get('epoch', '?')} epochs"))
        losses = [
            entry["validation_loss"]
            for entry in record.history
            if entry.get("validation_loss") is not None
        ]
        if losses:
            facts.append(("Best ranking loss of held-out bags", f"{min(losses):.4f}"))
    return facts


def _speed(record: RunRecord) -> list[tuple[str, str]]:
    """Describe time, rates and memory of the run."""
    lines = []
    if record.history:
        last = record.history[-1]
        seconds = max(float(last["seconds"]), 1e-9)
        lines += [
            ("Time", f"{seconds:,.1f} s"),
            ("Steps per second", f"{last['step'] / seconds:,.0f}"),
        ]
        rates = [float(entry.get("rows_per_second", 0)) for entry in record.history]
        sizes = [float(entry.get("mb_per_second", 0)) for entry in record.history]
        lines += [
            ("Rows per second, maximum between two looks", f"{max(rates):,.0f}"),
            ("MB of bags per second, maximum between two looks", f"{max(sizes):,.1f}"),
        ]
    origin = record.origin
    if origin is not None and origin.peak_bytes is not None:
        lines.append(("Peak memory of the process", format_size(origin.peak_bytes)))
        if origin.bytes_before is not None:
            lines.append(
                ("Memory of the process before the first step", format_size(origin.bytes_before))
            )
    if "memory" in record.settings:
        lines.append(
            ("Limit (--memory), without interpreter and libraries", str(record.settings["memory"]))
        )
    return lines


def _time(record: RunRecord) -> list[tuple[str, float]]:
    """Names and shares of the parts of the time that the history records."""
    total: dict[str, float] = {}
    for entry in record.history:
        for name, seconds in (entry.get("time") or {}).items():
            total[name] = total.get(name, 0.0) + float(seconds)
    all_seconds = sum(total.values())
    if not all_seconds:
        return []
    return [(name, seconds / all_seconds) for name, seconds in total.items()]


def _command(record: RunRecord) -> str:
    """Write the command that repeats the run."""
    defaults = TrainConfig().recorded()
    stores = record.origin.stores if record.origin is not None else ("STORE",)
    words = ["streammiml", "train", *stores, "RUN"]
    for name, value in record.options.items():
        if value == defaults.get(name):
            continue
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", str(value)]
    return shlex.join(words)
