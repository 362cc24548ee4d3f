"""A run in words and numbers: what was trained on what, how fast, and how to do it again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from streammiml.bags.views import Bags
from streammiml.config import TrainConfig, format_size
from streammiml.measure.survey import Survey
from streammiml.tell.charts import Histogram
from streammiml.tell.examples import Example, LabelConcepts
from streammiml.tell.runs import RunRecord


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run's model makes of a store; without a model or a store, why there is nothing."""

    what: str
    """Which bags were looked at, or why none were."""
    store: Bags | None = None
    survey: Survey | None = None
    margins: Histogram | None = None
    concepts: list[LabelConcepts] | None = None
    examples: list[Example] | None = None
    bags: list[int] | None = None
    """Numbers of the bags that are examples."""


@dataclass(frozen=True, slots=True)
class Told:
    """A run as the page tells it."""

    name: str
    record: RunRecord
    seen: Seen
    facts: list[tuple[str, str]]
    speed: list[tuple[str, str]]
    time: list[tuple[str, float]]
    """Where it went, as shares."""
    settings: list[tuple[str, str, bool]]
    """Name, value, and whether it differs from the default."""
    command: str


def tell(name: str, record: RunRecord, seen: Seen) -> Told:
    """Everything that a page says of a run."""
    usual = TrainConfig().recorded()
    settings = [
        (key, str(value), value != usual.get(key)) for key, value in record.settings.items()
    ]
    return Told(
        name,
        record,
        seen,
        _facts(record),
        _speed(record),
        _time(record),
        settings,
        _command(record),
    )


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    """What was trained on what."""
    facts = []
    origin, model = record.origin, record.model
    if origin is not None:
        kind = f"sparse {origin.dtype}" if origin.sparse else origin.dtype
        facts += [
            ("Trained on", ", ".join(origin.stores)),
            (
                "Which holds",
                f"{origin.n_bags:,} bags, {origin.n_rows:,} rows of {origin.n_features:,} features "
                f"({kind}), {origin.n_labels:,} labels",
            ),
        ]
    facts.append(("Fingerprint of the store", record.fingerprint))
    if model is not None:
        space = f"{model.shared_dim} shared dimensions, " if model.has_shared_space else ""
        facts.append(
            (
                "Model",
                f"{space}{model.subconcepts} sub-concepts for each of {model.n_labels:,} labels, "
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
        best = [
            e["validation_loss"] for e in record.history if e.get("validation_loss") is not None
        ]
        if best:
            facts.append(("Best ranking loss of held-out bags", f"{min(best):.4f}"))
    return facts


def _speed(record: RunRecord) -> list[tuple[str, str]]:
    lines = []
    if record.history:
        last = record.history[-1]
        seconds = max(float(last["seconds"]), 1e-9)
        lines += [
            ("Time", f"{seconds:,.1f} s"),
            ("Steps a second", f"{last['step'] / seconds:,.0f}"),
        ]
        rates = [float(e.get("rows_per_second", 0)) for e in record.history]
        sizes = [float(e.get("mb_per_second", 0)) for e in record.history]
        lines += [
            ("Rows a second, at most between two looks", f"{max(rates):,.0f}"),
            ("MB of bags a second, likewise", f"{max(sizes):,.1f}"),
        ]
    origin = record.origin
    if origin is not None and origin.peak_bytes is not None:
        lines.append(("Memory of the process, at most", format_size(origin.peak_bytes)))
        if origin.bytes_before is not None:
            lines.append(("Of it when the first step began", format_size(origin.bytes_before)))
    if "memory" in record.settings:
        lines.append(("Allowed beyond interpreter and libraries", str(record.settings["memory"])))
    return lines


def _time(record: RunRecord) -> list[tuple[str, float]]:
    """Where the time went, over all lines of the history, as shares of what is accounted for."""
    total: dict[str, float] = {}
    for entry in record.history:
        for name, seconds in (entry.get("time") or {}).items():
            total[name] = total.get(name, 0.0) + float(seconds)
    everything = sum(total.values())
    return [(name, part / everything) for name, part in total.items()] if everything else []


def _command(record: RunRecord) -> str:
    """The command that does it again."""
    usual = TrainConfig().recorded()
    stores = record.origin.stores if record.origin is not None else ("STORE",)
    words = ["streammiml", "train", *stores, "RUN"]
    for name, value in record.options.items():
        if value == usual.get(name):
            continue
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", str(value)]
    return shlex.join(words)
