"""Training with replicas against one replica: steps, seconds, bytes, and what a cluster would do.

*steps*: parallel steps of one replica divided by those of 8 replicas, to the same ranking loss of
held-out bags, and the ranking loss of bags that neither training nor early stopping saw, under the
model that each run returns after the same number of visits. Three seeds; both runs look equally
often for each visit. Corpora: planted rows (20 000 bags, d = 200, L = 100), and, if STREAMMIML_DATA
names the folder, sentences of Reuters-21578 (sparse) and bags of MNIST's digits.

*level*: ranking loss of the same bags that nothing saw, under the models that early stopping
returns with default looks and patience.

*seconds*: seconds to the same ranking loss, without looks and compiling, of one thread divided by
those of two replicas on two threads, and of two threads that share weights without locks. The three
take turns. All runs begin with random weights (``--preset plain``).

*shares*: how the time of long rounds is spent, on worker processes of this machine, once rounds
have ``round_steps`` steps; and the inputs of the model of time: bytes that a replica receives and
sends in a round, seconds that the driver needs for a result. STREAMMIML_BENCH_WORKERS gives the
numbers of worker processes (default "2,8,32"); with more processes than cores, only bytes and
seconds of the driver mean something.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import streammiml as sm
from streammiml.bags.store import BagStore, open_one
from streammiml.bags.views import Bags
from streammiml.config import TrainConfig
from streammiml.learn.progress import TrainProgress
from streammiml.learn.train import train
from streammiml_tools.corpora.mnist import Drawn, write_bags
from streammiml_tools.corpora.reuters import fit_vocabulary, write_documents
from streammiml_tools.corpora.synth import write_corpus

R = 8
SEEDS = 3
PLANTED = {
    "n_features": 200,
    "n_labels": 100,
    "subconcepts": 3,
    "noise": 1.5,
    "rows_per_bag": (9, 9),
    "codec": "none",
}
LOSSES = {
    "planted": (0.02, 0.005, 0.001),
    "reuters21578": (0.03, 0.02, 0.01),
    "mnist": (0.03, 0.02, 0.015),
}
VISITS = {"planted": 640_000, "reuters21578": 480_000, "mnist": 480_000}
LOOK_VISITS = 2000
ENDLESS = 10**9


def corpora(folder: Path, smoke: bool) -> Iterator[tuple[str, Bags]]:
    """The corpora that are here, by name."""
    n_bags = 2000 if smoke else 20_000
    write_corpus(folder / "planted.zarr", n_bags=n_bags, **PLANTED)
    yield "planted", open_one(folder / "planted.zarr")
    root = os.environ.get("STREAMMIML_DATA")
    if not root or smoke:
        return
    documents = Path(root) / "reuters21578" / "documents.jsonl.gz"
    path = folder / "reuters.zarr"
    write_documents(documents, {"": path}, fit_vocabulary(documents))
    yield "reuters21578", open_one(path)
    drawn = Drawn(n_bags=n_bags)
    yield "mnist", write_bags(Path(root) / "mnist", folder / "mnist.zarr", drawn)


class Looks:
    """Records the looks of a run, and the time that is neither looking nor compiling."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.last: TrainProgress | None = None

    def __call__(self, progress: TrainProgress) -> None:
        self.last = progress
        if progress.validation_loss is None:
            return
        total = progress.total
        self.steps.append(progress.step)
        self.losses.append(progress.validation_loss)
        self.seconds.append(total["all"] - total["validation"] - total["compiling"])

    def first_at(self, loss: float) -> int | None:
        """Index of the first look with at most this loss."""
        return next((i for i, value in enumerate(self.losses) if value <= loss), None)


def run_of(bags: Bags, config: TrainConfig, **where: Any) -> tuple[sm.Model, Looks]:
    looks = Looks()
    return train(bags, config, watch=looks, **where), looks


def settings(n_visits: int, look_visits: int, seed: int, **changes: Any) -> TrainConfig:
    """Settings of a run of ``n_visits``; looks are equally far apart in visits."""
    replicas = changes.get("replicas", 1)
    return TrainConfig(
        max_steps=n_visits // replicas,
        validate_every=max(1, look_visits // replicas),
        preset="plain",
        epochs=ENDLESS,
        patience=ENDLESS,
        validation=0.1,
        seed=seed,
        **changes,
    )


def ratio(one: Looks, other: Looks, loss: float, measure: str) -> float | None:
    """``measure`` of the first run at a loss divided by that of the other; None if not reached."""
    at = (one.first_at(loss), other.first_at(loss))
    if at[0] is None or at[1] is None:
        return None
    return float(getattr(one, measure)[at[0]] / getattr(other, measure)[at[1]])


def median(values: list[float | None], digits: int = 2) -> float | None:
    """Median, or None if a value is missing."""
    if None in values:
        return None
    return round(statistics.median(value for value in values if value is not None), digits)


def steps_case(name: str, bags: BagStore, smoke: bool) -> dict[str, Any]:
    n_test = bags.n_bags // 5
    training, test = bags.view(slice(n_test, None)), bags.view(slice(0, n_test))
    n_visits = 4000 if smoke else VISITS[name]
    ratios: dict[float, list[float | None]] = {loss: [] for loss in LOSSES[name]}
    held_out: list[list[float]] = [[], []]
    tested: list[list[float]] = [[], []]
    for seed in range(1 if smoke else SEEDS):
        runs = []
        for side, changes in enumerate(({}, {"replicas": R})):
            config = settings(n_visits, LOOK_VISITS, seed, **changes)
            model, looks = run_of(training, config)
            figures = sm.evaluate(model, test)
            held_out[side].append(round(min(looks.losses), 5))
            tested[side].append(round(figures["ranking_loss"], 5))
            runs.append(looks)
        for loss in ratios:
            ratios[loss].append(ratio(*runs, loss, "steps"))
    return {
        "what": "steps",
        "case": {"corpus": name, "replicas": R, "bags": training.n_bags, "visits": n_visits},
        "speed_up_in_steps": {str(loss): median(values) for loss, values in ratios.items()},
        "of_each_seed": {
            str(loss): [None if value is None else round(value, 2) for value in values]
            for loss, values in ratios.items()
        },
        "lowest_held_out": {"one": held_out[0], "replicas": held_out[1]},
        "on_test_bags": {"one": tested[0], "replicas": tested[1]},
    }


def level_case(name: str, bags: Bags, smoke: bool) -> dict[str, Any]:
    """Train until early stopping ends the run, with default looks and patience."""
    n_test = bags.n_bags // 5
    training, test = bags.view(slice(n_test, None)), bags.view(slice(0, n_test))
    levels: dict[int, list[dict[str, float]]] = {1: [], R: []}
    for seed in range(1 if smoke else SEEDS):
        for n_replicas, of in levels.items():
            config = TrainConfig(
                seed=seed,
                preset="plain",
                validation=0.1,
                replicas=n_replicas,
                epochs=1 if smoke else 1000,
            )
            model, looks = run_of(training, config)
            of.append(
                {
                    "steps": looks.steps[-1],
                    "held_out": round(min(looks.losses), 5),
                    "test": round(sm.evaluate(model, test)["ranking_loss"], 5),
                }
            )

    def column(n_replicas: int, field: str) -> list[float]:
        return [level[field] for level in levels[n_replicas]]

    means = {n: statistics.mean(column(n, "test")) for n in levels}
    spread = statistics.stdev(column(1, "test")) if len(levels[1]) > 1 else 0.0
    return {
        "what": "level",
        "case": {"corpus": name, "replicas": R, "bags": training.n_bags},
        "test_ranking_loss": {n: round(mean, 5) for n, mean in means.items()},
        "difference_in_sd": round((means[R] - means[1]) / spread, 2) if spread else None,
        "of_each_seed": levels,
    }


def seconds_case(name: str, bags: Bags, smoke: bool) -> dict[str, Any]:
    n_visits = 2000 if smoke else VISITS[name]
    ways: dict[str, dict[str, int]] = {
        "one": {},
        "two replicas": {"replicas": 2},
        "two threads": {"threads": 2},
    }
    runs: dict[str, list[Looks]] = {way: [] for way in ways}
    for seed in range(1 if smoke else SEEDS):
        for way, changes in ways.items():
            config = settings(n_visits, LOOK_VISITS, seed, **changes)
            runs[way].append(run_of(bags, config)[1])
    ratios = {
        way: {
            str(loss): median(
                [
                    ratio(one, other, loss, "seconds")
                    for one, other in zip(runs["one"], runs[way], strict=True)
                ]
            )
            for loss in LOSSES[name]
        }
        for way in ("two replicas", "two threads")
    }
    visits = {
        way: round(
            statistics.median(
                looks.steps[-1] * ways[way].get("replicas", 1) / looks.seconds[-1] for looks in of
            )
        )
        for way, of in runs.items()
    }
    return {
        "what": "seconds",
        "case": {"corpus": name, "bags": bags.n_bags, "visits": n_visits},
        "speed_up_in_seconds": ratios,
        "visits_per_second": visits,
    }


def shares_case(
    name: str, bags: Bags, n_workers: int, *, smoke: bool, round_steps: int = 5000
) -> dict[str, Any]:
    n_rounds = 1 if smoke else 4
    growing = 200 if smoke else 16 * round_steps
    config = replace(
        settings(1, ENDLESS, 0),
        replicas=n_workers,
        round_steps=128 if smoke else round_steps,
        max_steps=growing + n_rounds * round_steps,
        validation=0.0,
        validate_every=growing,
    )
    begun: list[TrainProgress] = []
    last: list[TrainProgress] = []

    def watch(progress: TrainProgress) -> None:
        if progress.step >= growing and not begun:
            begun.append(progress)
        last[:] = [progress]

    train(bags, config, workers=n_workers, watch=watch)
    names = ("kernel", "reading", "reducing", "moving")
    spent = {part: last[0].total[part] - begun[0].total[part] for part in names}
    total = max(sum(spent.values()), 1e-9)
    # The line of the history at the last look; the rounds of the last progress came after it.
    n_turns = max(1, last[0].rounds) * n_workers
    return {
        "what": "shares",
        "case": {"corpus": name, "workers": n_workers, "round_steps": config.round_steps},
        "share": {part: round(seconds / total, 3) for part, seconds in spent.items()},
        "not_kernel": round(1 - spent["kernel"] / total, 3),
        "seconds_per_round": round(total * n_workers / n_turns, 3),
        "reducing_ms_per_turn": round(1000 * spent["reducing"] / n_turns, 2),
        "moving_ms_per_turn": round(1000 * spent["moving"] / n_turns, 2),
        "mb_per_turn": round(last[0].moved_mb / n_turns, 3),
    }


def cases(smoke: bool) -> Iterator[dict[str, Any]]:
    numbers = os.environ.get("STREAMMIML_BENCH_WORKERS", "2,8,32").split(",")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for corpus, bags in corpora(folder, smoke):
            yield seconds_case(corpus, bags, smoke)
            yield steps_case(corpus, bags, smoke)
            yield level_case(corpus, bags, smoke)
            for n_workers in (2,) if smoke else map(int, numbers):
                if corpus != "mnist":
                    yield shares_case(corpus, bags, n_workers, smoke=smoke)
