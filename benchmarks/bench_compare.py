"""``streammiml compare``: time of each method by number of bags, and two workers against one.

*Times*: a synthetic corpus of 9 rows a bag, 225 features and 99 labels, as large as the paper's
MSRA. MIMLfast with the preset plain, MIMLfast as users get it, and the paper's six methods with
their default settings are trained on 1 000 to 30 000 bags, one after the other, each in a process
of its own with one thread and the time limit. Methods that exceed it are not tried on more bags.
``over_plain`` is the fit of a method divided by the fit of MIMLfast with the preset plain.

*Workers*: seconds of a whole comparison of three methods with one worker process, divided by those
with two, in turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.bench_msra import CORPUS
from streammiml.bags.store import BagStore
from streammiml.config import TrainConfig
from streammiml.measure.tasks import all_bags
from streammiml.search.cells import CellSettings, MethodCell, run_cell
from streammiml.search.comparison import CompareProgress
from streammiml.search.contestants import contestants
from streammiml.tell.compare import compare
from streammiml_tools.corpora.synth import write_corpus

SIZES = (1000, 3000, 10_000, 20_000, 30_000)
RIVALS = ("ranklosssim", "mimlknn", "kisar", "mimlsvm", "dba", "mimlboost")
LIMIT, MEMORY = "5min", "8GiB"
PLAIN, DEFAULT = "mimlfast, preset plain", "mimlfast"
PAIRS = 3


def times(folder: Path, smoke: bool) -> Iterator[dict[str, Any]]:
    sizes = (40, 80) if smoke else SIZES
    # Two thirds of the bags are for training.
    store = write_corpus(folder / "times.zarr", n_bags=sizes[-1] * 3 // 2, **CORPUS)
    config = TrainConfig(epochs=1, validation=0.0) if smoke else TrainConfig()
    methods = {
        PLAIN: contestants(DEFAULT, replace(config, preset="plain"), MEMORY)[0],
        DEFAULT: contestants(DEFAULT, config, MEMORY)[0],
        **{name: contestants(name, config, MEMORY)[0] for name in RIVALS[: 2 if smoke else None]},
    }
    settings = CellSettings(seed=0, folds=3, time_limit=LIMIT, owner="benchmark")
    bags = all_bags(store, remote=True)
    plain_seconds: dict[int, float] = {}
    for name, contestant in methods.items():
        for size in sizes:
            result = run_cell((MethodCell(contestant.name, 0, size), contestant), bags, settings)
            line = {"what": "time by number of bags", "case": {"method": name, "bags": size}}
            if result.fit_seconds is None:
                yield {**line, "skipped": result.reason}
                break
            if name == PLAIN:
                plain_seconds[size] = result.fit_seconds
            yield {
                **line,
                "fit_seconds": round(result.fit_seconds, 3),
                "score_seconds": round(result.score_seconds or 0.0, 3),
                "ranking_loss": result.figures["ranking_loss"],
                "over_plain": round(result.fit_seconds / plain_seconds[size], 2),
            }


def workers(folder: Path, smoke: bool) -> dict[str, Any]:
    n_bags, splits = (60, 1) if smoke else (1500, 8)
    store = write_corpus(folder / "workers.zarr", n_bags=n_bags, n_features=50, n_labels=10)
    methods = "mimlknn" if smoke else "mimlfast,mimlknn,forest"

    def seconds(n_workers: int, turn: int) -> float:
        return _timed(store, folder / f"{n_workers}-{turn}", methods, splits, n_workers)

    pairs = [(seconds(1, turn), seconds(2, turn)) for turn in range(1 if smoke else PAIRS)]
    return {
        "what": "two workers",
        "case": {"methods": methods, "bags": n_bags, "splits": splits},
        "seconds_one": round(statistics.median(one for one, _ in pairs), 1),
        "one_over_two": round(statistics.median(one / two for one, two in pairs), 2),
        "pairs": len(pairs),
    }


def _timed(store: BagStore, out: Path, methods: str, splits: int, n_workers: int) -> float:
    """Seconds from the first report, when workers are there, to the last."""
    reports: list[float] = []

    def watch(_: CompareProgress) -> None:
        reports.append(time.perf_counter())

    compare(store, out, methods=methods, splits=splits, workers=n_workers, watch=watch)
    return reports[-1] - reports[0]


def cases(smoke: bool) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        yield workers(Path(folder), smoke)
        yield from times(Path(folder), smoke)
