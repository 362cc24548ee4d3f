"""The paper's tables: our three modes, the paper's methods, and peers that a user could take.

``python -m benchmarks paper [--sets NAME_OR_FILE,…] [--splits N]``. Seeds 0 to N - 1 split a set at
random into two thirds for training and one third for testing. 3-fold cross validation on the
training bags chooses from at most 32 settings and discards most of them early. Test bags are used
only for the final figures.

Known sets are read from STREAMMIML_DATA, any other MIML file by its path. Two names stand for
experiments without a set: ``digits in groups`` (known sub-concepts) and ``times`` (training time by
number of bags). Peers run in the interpreter that STREAMMIML_PEERS_PYTHON names; without it they
are skipped. The paper's methods are measured as ``streammiml compare`` measures them, each in a
process with a time limit, on the splits of this benchmark. STREAMMIML_PAPER_METHODS limits a run
to some methods, separated by commas.

Each (set, split, method) is written to ``results/paper.jsonl`` as soon as it is measured, so a
killed run resumes. A line that was measured with other settings is measured again.
``results/paper.md`` is written from all lines at the end; ``--splits 0`` only writes that page.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import paper_peers, paper_times
from benchmarks.__main__ import commit
from benchmarks.paper_digits import SUBCONCEPTS, grouped_digits
from benchmarks.paper_ours import MODES, PLAIN, chosen_elsewhere, measured, trained
from benchmarks.paper_sets import (
    DOCUMENTS,
    FIGURES,
    FILES,
    FOLDS,
    PaperSet,
    folds,
    load,
    random_set,
    split,
)
from benchmarks.paper_table import RIVALS, write_page
from streammiml.bags.block import SparseRows
from streammiml.config import TrainConfig
from streammiml.learn.scaler import auto_scale
from streammiml.measure.metric import ScoredBlock
from streammiml.measure.registry import chosen
from streammiml.rivals.registry import METHODS
from streammiml.search.cells import CellSettings, SplitFigures, attempted, measure_split
from streammiml.search.contestants import contestants
from streammiml.search.grid import key_of

RESULTS = Path(__file__).with_name("results")
OURS = ("default", "paper", "best")
PEERS = ("forest", "logistic", "plt", "lightfm", "torch_warp")
# Tables 4 and 5 of the paper compare these variants on these sets.
VARIANTS = ("K=1", "K=5", "K=10", "K=15", "V1", "V2")
VARIED = ("scene", "reuters", "made")
DIGITS = "digits in groups"
# A setting that is chosen on one half of the sets is measured on the other half.
HALVES = (("letter_frost", "reuters"), ("msrcv2", "scene"))
ELSEWHERE = "elsewhere"
TIMES = "times"
LONGEST_SECONDS = 3600
RIVAL_TIME, RIVAL_MEMORY = "10min", "4GiB"
OVER_TIME = f"over the time limit of {RIVAL_TIME}"
TOO_SLOW = f"not tried, since another split was {OVER_TIME}"
# Settings that were added after lines had been measured, with the values of training as before.
ADDED_LATER = {
    "bag_weights": None,
    "calibrate": None,
    "init": "auto",
    "loss": "warp",
    "preset": "plain",
    "prefer": "both",
    "threshold": None,
    "time_limit": None,
    "replicas": 1,
    "restarts": None,
    "round_steps": None,
}


class Lines:
    """The lines of ``paper.jsonl`` by set, split and method; ``add`` appends to the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.by_case: dict[tuple[str, int, str], dict[str, Any]] = {}
        if path.exists():
            for text in path.read_text("utf-8").splitlines():
                line = json.loads(text)
                self.by_case[line["set"], line["split"], line["method"]] = line

    def has(self, name: str, seed: int, method: str, key: str) -> bool:
        """Whether this case was measured with the settings that ``key`` names."""
        return self.by_case.get((name, seed, method), {}).get("key") == key

    def too_slow(self, name: str, method: str, key: str) -> bool:
        """Whether a rival was over the time limit on a split of this set; all are as large."""
        return any(
            (line["set"], line["method"], line.get("key")) == (name, method, key)
            and line.get("skipped") == OVER_TIME
            for line in self.by_case.values()
        )

    def add(self, line: dict[str, Any]) -> None:
        self.by_case[line["set"], line["split"], line["method"]] = line
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def methods_of(name: str, smoke: bool) -> list[str]:
    peers = list(PEERS) if "STREAMMIML_PEERS_PYTHON" in os.environ else []
    selected = os.environ.get("STREAMMIML_PAPER_METHODS")
    methods = [*OURS, *(VARIANTS if name in VARIED else ()), *RIVALS, *peers]
    if smoke:
        methods = [*OURS, "V2", "mimlknn", "ranklosssim", *peers[:2]]
    return [method for method in methods if selected is None or method in selected.split(",")]


def settings_key(method: str, *, sparse: bool = False) -> str:
    """A hash of the settings of a method, or of a peer's source, comments included."""
    if method in (*RIVALS, *paper_peers.PEERS):
        return key_of({"peer": method, "source": paper_peers.source_of(method)})
    mode = MODES[method]
    preset = {name: mode.given[name] for name in PLAIN if name in mode.given}
    grid, steps = mode.search(sparse=sparse)
    ours = {"given": without_neutral(mode.given), "grid": dict(grid), "steps": steps}
    return key_of({**ours, "base": base_settings(TrainConfig(**preset))})


def digits_key(method: str) -> str:
    """A hash of the settings of the experiment with known sub-concepts."""
    return key_of({"digits": method, "base": base_settings(TrainConfig())})


def base_settings(config: TrainConfig) -> dict[str, Any]:
    """All settings that decide the result of a training with ``config``."""
    # The scale that ``auto`` chooses is not recorded as a setting, but changes results as well.
    names = ("sparse", "negative", "fractional")
    rule = [
        str(auto_scale(zero_share=share, **dict(zip(names, facts, strict=True))))
        for share in (0.0, 0.5)
        for facts in product((False, True), repeat=3)
    ]
    return {**without_neutral(config.recorded()), "auto": rule}


def without_neutral(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those of ``ADDED_LATER`` that have the value of training as before."""
    return {
        name: value
        for name, value in settings.items()
        if name not in ADDED_LATER or value != ADDED_LATER[name]
    }


def is_current(line: dict[str, Any]) -> bool:
    """Whether a line was measured with today's settings; always true of derived lines and times."""
    method = line["method"]
    if method in (ELSEWHERE, paper_times.METHOD):
        return True
    if line["set"] == DIGITS:
        return bool(line["key"] == digits_key(method))
    return bool(line["key"] == settings_key(method, sparse=line["set"] in DOCUMENTS))


def rival_line(method: str, data: PaperSet, seed: int) -> dict[str, Any]:
    """Measure a method of the paper as ``compare`` does."""
    learn, test = split(len(data.block), seed)
    [contestant] = contestants(method, TrainConfig(), RIVAL_MEMORY)
    settings = CellSettings(seed=seed, folds=FOLDS, time_limit=RIVAL_TIME, owner="benchmark")
    parts = (contestant, data.bags(learn), data.bags(test), FOLDS)
    attempt = attempted(measure_split, *parts, settings=settings)
    if attempt.reason is not None:
        return {"skipped": attempt.reason}
    split_figures: SplitFigures = attempt.result
    figures = {
        name: split_figures.figures[name] for name in FIGURES if name in split_figures.figures
    }
    return {
        "figures": figures,
        "chosen": split_figures.chosen,
        "n_settings": len(METHODS[method].grid),
        "fit_seconds": round(split_figures.fit_seconds, 3),
        "score_seconds": round(split_figures.score_seconds, 3),
    }


def peer_line(method: str, data: PaperSet, seed: int, smoke: bool) -> dict[str, Any]:
    """Run a peer in its own interpreter; its scores are measured by the same metrics as ours."""
    learn, test = split(len(data.block), seed)
    block = data.block
    truth = np.zeros((len(block), data.n_labels), bool)
    truth[np.repeat(np.arange(len(block)), np.diff(block.label_offsets)), block.label_indices] = (
        True
    )
    rows: dict[str, Any] = {"rows": block.rows}
    if isinstance(block.rows, SparseRows):
        rows = {"values": block.rows.values, "columns": block.rows.columns}
        rows |= {"row_offsets": block.rows.offsets, "n_features": block.rows.n_features}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(
            folder / "in.npz",
            **rows,
            bag_offsets=block.bag_offsets,
            truth=truth,
            learn=learn,
            test=test,
            fold=folds(len(learn)),
        )
        script = Path(__file__).with_name("paper_peers.py")
        command = [os.environ["STREAMMIML_PEERS_PYTHON"], script, method]
        command += [folder / "in.npz", folder / "out.npz", int(smoke)]
        process = subprocess.run(
            [*map(str, command)],
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(Path(__file__).parent.parent),
            },
        )
        if process.returncode:
            return {"skipped": (process.stderr.strip().splitlines() or ["no message"])[-1]}
        output = np.load(folder / "out.npz")
        search_result = json.loads(str(output["search_result"]))
        return {"figures": figures_of(block.take(test), output), **search_result}


def figures_of(block: Any, output: Any) -> dict[str, float]:
    """Figures of a peer from its ``output``; key instances only if peer and set have them."""
    has_key_rows = "key_rows" in output and block.row_labels is not None
    scores = np.ascontiguousarray(output["scores"], np.float32)
    scored = ScoredBlock(
        scores=scores,
        dummy=np.zeros(len(scores), np.float32),
        predicted=output["predicted"],
        label_offsets=block.label_offsets,
        labels=block.label_indices,
        key_rows=output["key_rows"] if has_key_rows else None,
        bag_offsets=block.bag_offsets,
        row_labels=block.row_labels if has_key_rows else None,
    )
    metrics = chosen(FIGURES[: None if has_key_rows else -1], row_labels=has_key_rows)
    return {metric.name: float(metric.finish(metric.block(scored)).value) for metric in metrics}


def one_line(method: str, data: PaperSet, seed: int, smoke: bool) -> dict[str, Any]:
    """Measure one method on one split."""
    begun = time.perf_counter()
    if method in MODES:
        learn, test = split(len(data.block), seed)
        result = measured(MODES[method], data, learn, test, smoke)
    elif method in RIVALS:
        result = rival_line(method, data, seed)
    else:
        result = peer_line(method, data, seed, smoke)
    key = settings_key(method, sparse=data.name in DOCUMENTS)
    case = {"set": data.name, "split": seed, "method": method, "key": key}
    return {**case, **result, "seconds": round(time.perf_counter() - begun, 1), "commit": commit()}


def elsewhere_lines(
    lines: Lines, sets: list[PaperSet], seed: int, smoke: bool
) -> Iterator[dict[str, Any]]:
    """Measure the settings that were best on the other half of the sets, on the same split."""
    halves = (("made",), ("made",)) if smoke else HALVES
    for here, there in (halves, halves[::-1]):
        best = [lines.by_case.get((name, seed, "best")) for name in there]
        looks = [line["first_fold"] for line in best if line is not None and is_current(line)]
        if len(looks) < len(there):
            continue
        settings = chosen_elsewhere(looks)
        key = key_of({"settings": settings, "base": settings_key("best")})
        for data in sets:
            if data.name in here and not lines.has(data.name, seed, ELSEWHERE, key):
                result = trained({**PLAIN, **settings}, data, *split(len(data.block), seed))
                case = {"set": data.name, "split": seed, "method": ELSEWHERE, "key": key}
                lines.add({**case, "chosen": settings, **result, "commit": commit()})
                yield lines.by_case[data.name, seed, ELSEWHERE]


def time_lines(lines: Lines, smoke: bool) -> Iterator[dict[str, Any]]:
    for line in paper_times.lines(smoke):
        lines.add({**line, "key": paper_times.METHOD, "commit": commit()})
        yield line


def digits_lines(lines: Lines, n_splits: int, smoke: bool) -> Iterator[dict[str, Any]]:
    for seed in range(n_splits):
        for k in SUBCONCEPTS:
            method = f"K={k}"
            if not lines.has(DIGITS, seed, method, digits_key(method)):
                result = grouped_digits(k, seed, smoke)
                case = {"set": DIGITS, "split": seed, "method": method}
                lines.add({**case, "key": digits_key(method), **result, "commit": commit()})
                yield lines.by_case[DIGITS, seed, method]


def cases(
    smoke: bool, *, sets: str | None = None, splits: int | None = None
) -> Iterator[dict[str, Any]]:
    if smoke:
        with tempfile.TemporaryDirectory() as folder:
            yield from _cases([random_set()], 1, Path(folder), smoke=True)
        return
    known = [*FILES, *DOCUMENTS]
    names = known if sets is None else sets.split(",")
    if "STREAMMIML_DATA" not in os.environ:
        names = [name for name in names if name not in known]
    n_splits = 30 if splits is None else splits
    more = {
        "digits": n_splits > 0 and (sets is None or DIGITS in names),
        "times": n_splits > 0 and (sets is None or TIMES in names),
    }
    chosen_sets = [load(name) for name in names if name not in (DIGITS, TIMES)]
    yield from _cases(chosen_sets, n_splits, RESULTS, smoke=False, **more)


def _cases(
    sets: list[PaperSet],
    n_splits: int,
    folder: Path,
    *,
    smoke: bool,
    digits: bool = True,
    times: bool = True,
) -> Iterator[dict[str, Any]]:
    lines = Lines(folder / "paper.jsonl")
    if digits:
        yield from digits_lines(lines, n_splits, smoke)
    if times:
        yield from time_lines(lines, smoke)
    # Split by split, so that a stopped run has about as many splits of every set and method.
    for seed in range(n_splits):
        for data in sets:
            for method in methods_of(data.name, smoke):
                key = settings_key(method, sparse=data.name in DOCUMENTS)
                if not lines.has(data.name, seed, method, key):
                    case = {"set": data.name, "split": seed, "method": method, "key": key}
                    slow = lines.too_slow(data.name, method, key)
                    skipped = {**case, "skipped": TOO_SLOW, "commit": commit()}
                    lines.add(skipped if slow else one_line(method, data, seed, smoke))
                    yield lines.by_case[data.name, seed, method]
        yield from elsewhere_lines(lines, sets, seed, smoke)
    write_page(folder / "paper.md", [*filter(is_current, lines.by_case.values())], commit())
