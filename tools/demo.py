"""``streammiml demo``: from files to a report, on real data that needs no download.

Every step is printed as the command with which a user can repeat it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

import streammiml as sm
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.config import TrainConfig, format_size, parse_size
from streammiml.errors import StreammimlError
from streammiml.learn.run_facts import FactsWriter, read_run_facts
from streammiml.measure.registry import PAPER_FIGURES
from streammiml_tools.convert import convert
from streammiml_tools.convert.compare import compare
from streammiml_tools.corpora.digits import digit_bags
from streammiml_tools.corpora.docstrings import page_bags, read_library
from streammiml_tools.corpora.synth import Planted, write_corpus

MARK = "made-by-streammiml-demo"
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TRAIN_BAGS, TEST_BAGS = 4000, 1000
LARGE_MEMORY = "256MiB"
LARGE_FEATURES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCorpus:
    """Training bags and test bags, which share no row."""

    name: str
    train: BagBlock
    test: BagBlock
    label_names: tuple[str, ...]
    feature_names: tuple[str, ...] | None
    settings: dict[str, Any]
    """Options of training, chosen on held-out training rows."""
    image: str | None = None
    rows: str
    """What the rows are, for messages: pictures, sentences."""


def demo(
    out: Path = Path("streammiml-demo"),
    /,
    *,
    text: Annotated[bool, Parameter(negative="")] = False,
    large: str | None = None,
) -> None:
    """Train on bags of real handwritten digits, evaluate, explain, and write a report.

    Parameters
    ----------
    out
        Folder for all files; the folder of an earlier demo is replaced.
    text
        Train on sentences of the documentation of Python's library instead, as sparse rows.
    large
        Train on a planted store of this size instead, such as 4GB, in far less memory.
    """
    if text and large is not None:
        raise StreammimlError("--text and --large are two demos; give one of them")
    if large is not None:
        _large(out, parse_size(large, option="large"))
    else:
        _story(out, _sentences if text else _digits)


def _digits() -> DemoCorpus:
    train, test = (
        digit_bags(n_bags, seed=half, half=half)[0]
        for half, n_bags in enumerate((TRAIN_BAGS, TEST_BAGS))
    )
    return DemoCorpus(
        name="digits",
        train=train,
        test=test,
        label_names=NAMES,
        feature_names=None,
        settings={"epochs": 20, "validation": 0.1},
        image="8x8",
        rows="pictures",
    )


def _sentences() -> DemoCorpus:
    library = read_library()
    train, test = (
        page_bags(library, n_bags, seed=half, half=half)
        for half, n_bags in enumerate((TRAIN_BAGS, TEST_BAGS))
    )
    return DemoCorpus(
        name="pages",
        train=train,
        test=test,
        label_names=library.modules,
        feature_names=library.vocabulary,
        settings={"epochs": 20, "validation": 0.1, "subconcepts": 2, "max_norm": 3.0},
        rows="sentences",
    )


def _story(out: Path, make_corpus: Any) -> None:
    """Convert, train, evaluate, explain and report, printing each command."""
    started = time.monotonic()
    corpus = make_corpus()
    _make_empty(out)
    stores = {}
    for part, block in (("train", corpus.train), ("test", corpus.test)):
        source, path = out / f"{corpus.name}-{part}.npz", out / f"{corpus.name}-{part}.zarr"
        write_npz(source, block, corpus.label_names, corpus.feature_names)
        stores[part] = path
        _say("convert", source, path)
        convert(source, path)
        if not compare(path, source).is_same:
            raise StreammimlError(f"{path} differs from {source}")
    print(f"  {TRAIN_BAGS:,} and {TEST_BAGS:,} bags, the same as in their sources; two of them:")
    for bag in range(2):
        names = ", ".join(corpus.label_names[label] for label in corpus.test.labels_of(bag))
        start, stop = corpus.test.bag_offsets[bag : bag + 2].tolist()
        print(f"  {stop - start} {corpus.rows} with the labels {names}")
    with baselines_beside(stores["train"], stores["test"]) as baselines:
        run = out / "run"
        config = TrainConfig(**corpus.settings)
        options = (
            word
            for name, value in corpus.settings.items()
            for word in (f"--{name.replace('_', '-')}", value)
        )
        _say("train", stores["train"], run, *options)
        store = sm.open_store(stores["train"])
        facts_writer = FactsWriter(store, run)
        model = sm.train(store, config, run=run, watch=facts_writer)
        facts_writer.finish()
        print(f"  {model}")
        _say("evaluate", run, stores["test"])
        figures = sm.evaluate(model, stores["test"])
        _say("explain", run, stores["test"], out / "why")
        explanation = sm.explain(model, stores["test"], out / "why")
        for line in _typical(explanation["labels"][:3]):
            print(f"  {line}")
        print("comparing with classifiers of scikit-learn on pooled bags, trained meanwhile")
        baseline_figures = baselines()
    for line in table({"streammiml": figures, **baseline_figures}):
        print(line)
    image = ["--image", corpus.image] if corpus.image is not None else []
    page = out / "report.html"
    _say("report", run, "--store", stores["test"], *image, "--out", page)
    sm.report(
        run,
        page,
        store=stores["test"],
        image=corpus.image,
        title=f"Bags of {corpus.rows}",
        others=baseline_figures,
    )
    print(f"all of it took {time.monotonic() - started:.0f} s; open {page.absolute().as_uri()}")


def _say(verb: str, *words: object) -> None:
    print(f"$ streammiml {verb} {' '.join(map(str, words))}", flush=True)


def _typical(labels: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for label in labels:
        if label["subconcepts"]:
            best = label["subconcepts"][0]["typical"][0]
            yield (
                f"{label['name']}: predicted for {label['n_bags']} bags; "
                f"most typical is row {best['row']} of bag {best['bag_id']}"
            )


def table(columns: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield a line for each metric and a column for each method; missing metrics are blank."""
    yield " " * 22 + "  ".join(columns)
    for name in PAPER_FIGURES:
        cells = (
            f"{figures[name]:.4f}".rjust(len(method)) if name in figures else " " * len(method)
            for method, figures in columns.items()
        )
        yield f"{name.replace('_', ' '):<22}{'  '.join(cells)}".rstrip()


@contextmanager
def baselines_beside(train: Path, test: Path) -> Iterator[Any]:
    """Run the baselines in another process; yields a function that waits for their metrics."""
    # One thread for each library, since the training runs at the same time.
    one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    process = subprocess.Popen(
        [sys.executable, "-m", "streammiml_tools.baselines", str(train), str(test)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **one_thread},
        text=True,
    )

    def result() -> Any:
        output, errors = process.communicate()
        if process.returncode:
            last = errors.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
            raise StreammimlError(f"the comparison failed: {last[0].removeprefix('streammiml: ')}")
        return json.loads(output)

    try:
        yield result
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def write_npz(
    path: Path,
    block: BagBlock,
    label_names: tuple[str, ...],
    feature_names: tuple[str, ...] | None,
) -> None:
    """Write bags as plain NumPy arrays, in a file that ``convert`` reads."""
    rows = block.rows
    arrays: dict[str, Any] = {
        "offsets": block.bag_offsets,
        "label_indptr": block.label_offsets,
        "label_indices": block.label_indices,
        "n_labels": np.int64(len(label_names)),
        "label_names": np.array(label_names),
        "row_labels": block.row_labels,
    }
    if feature_names is not None:
        arrays["feature_names"] = np.array(feature_names)
    if isinstance(rows, SparseRows):
        arrays |= {"data": rows.values, "indices": rows.columns, "indptr": rows.offsets}
        arrays["shape"] = np.array([len(rows), rows.n_features], np.int64)
    else:
        arrays["instances"] = rows
    np.savez(path, **arrays)


def _large(out: Path, n_bytes: int) -> None:
    """Write a planted store of about ``n_bytes``, and train on it in little memory."""
    low, high = Planted().rows_per_bag
    n_bags = max(100, round(n_bytes / ((low + high) / 2 * LARGE_FEATURES * 4)))
    existing = next(path for path in (out, *out.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if n_bytes * 1.1 > free:
        raise StreammimlError(
            f"--large {format_size(n_bytes)} needs about {format_size(int(n_bytes * 1.1))} below "
            f"{out}, where {format_size(free)} are free; give a smaller --large, or another folder"
        )
    _make_empty(out)
    started = time.monotonic()
    store, run = out / "planted.zarr", out / "run"
    settings: dict[str, Any] = {"n_bags": n_bags, "n_features": LARGE_FEATURES, "n_labels": 50}
    words = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings.items())
    print(f"$ python -m streammiml_tools.synth {store} {words}", flush=True)
    written = write_corpus(store, **settings)
    size = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
    print(f"  {written.n_bags:,} bags of {written.n_rows:,} rows, {format_size(size)} on disk")
    # Each command runs in a process of its own, so that its peak of memory is measured alone.
    options = ["--memory", LARGE_MEMORY, "--epochs", "1", "--shared-dim", "50"]
    _command("train", store, run, *options)
    origin = read_run_facts(run)
    if origin is not None and origin.peak_bytes is not None:
        print(
            f"  read {format_size(size)} and held {format_size(origin.peak_bytes)} at most, "
            f"{format_size(origin.bytes_before or 0)} of it before the first step: "
            "interpreter, libraries, weights"
        )
    _command("report", run, "--out", out / "report.html")
    page = (out / "report.html").absolute().as_uri()
    print(f"all of it took {time.monotonic() - started:.0f} s; open {page}")


def _command(verb: str, *words: object) -> None:
    _say(verb, *words)
    process = subprocess.run([sys.executable, "-m", "streammiml", verb, *map(str, words)])
    if process.returncode:
        raise StreammimlError(f"{verb} ended with exit code {process.returncode}; see above")


def _make_empty(out: Path) -> None:
    """Create an empty folder, deleting the folder of an earlier demo."""
    if (out / MARK).exists():
        shutil.rmtree(out)
    elif out.exists() and any(out.iterdir()):
        raise StreammimlError(f"{out} exists and was not made by a demo; name another folder")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
