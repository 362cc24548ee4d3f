"""``streammiml demo``: the whole way on real data that needs no download.

Every step is one that a user can take alone; what it does is printed as the command that would.
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
from typing import Any

import numpy as np

import streammiml as sm
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.config import TrainConfig, format_size, parse_size
from streammiml.errors import StreammimlError
from streammiml.learn.origin import Witness, read_origin
from streammiml_tools.convert import convert
from streammiml_tools.digits import digit_bags
from streammiml_tools.docstrings import page_bags, read_library
from streammiml_tools.synth import Planted, write_corpus
from streammiml_tools.verify import compare

SHOWN = (
    "hamming_loss",
    "one_error",
    "coverage",
    "ranking_loss",
    "average_precision",
    "key_instance_accuracy",
)
MARK = "made-by-streammiml-demo"
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TRAIN_BAGS, TEST_BAGS = 4000, 1000
LARGE_MEMORY = "256MiB"
LARGE_FEATURES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Bags to learn from and bags that share no row with them."""

    name: str
    train: BagBlock
    test: BagBlock
    label_names: tuple[str, ...]
    feature_names: tuple[str, ...] | None
    settings: dict[str, Any]
    """Options of training, found on a part of the training rows that was held out."""
    image: str | None = None
    rows: str
    """What rows are called."""


def demo(
    out: Path = Path("streammiml-demo"), /, *, text: bool = False, large: str | None = None
) -> None:
    """Real handwritten digits to bags, to stores, to a model, its figures and a page on it.

    Parameters
    ----------
    out
        Folder for what is made; one that an earlier demo made is replaced.
    text
        Sentences of the documentation of Python's library instead, as sparse rows.
    large
        Instead, stream a made-up store of this size, such as 4GB, through far less memory.
    """
    if text and large is not None:
        raise StreammimlError("--text and --large are two demos; give one of them")
    if large is not None:
        _large(out, parse_size(large, option="large"))
    else:
        _story(out, _sentences if text else _digits)


def _digits() -> Corpus:
    train, test = (
        digit_bags(n_bags, seed=half, half=half)[0]
        for half, n_bags in enumerate((TRAIN_BAGS, TEST_BAGS))
    )
    return Corpus(
        name="digits",
        train=train,
        test=test,
        label_names=NAMES,
        feature_names=None,
        settings={"epochs": 20, "validation": 0.1},
        image="8x8",
        rows="pictures",
    )


def _sentences() -> Corpus:
    library = read_library()
    train, test = (
        page_bags(library, n_bags, seed=half, half=half)
        for half, n_bags in enumerate((TRAIN_BAGS, TEST_BAGS))
    )
    return Corpus(
        name="pages",
        train=train,
        test=test,
        label_names=library.modules,
        feature_names=library.vocabulary,
        settings={"epochs": 20, "validation": 0.1, "subconcepts": 2, "max_norm": 3.0},
        rows="sentences",
    )


def _story(out: Path, make: Any) -> None:
    """Files, stores, training, figures, explanations, a page."""
    begun = time.monotonic()
    corpus = make()
    _fresh(out)
    stores = {}
    for part, block in (("train", corpus.train), ("test", corpus.test)):
        source, path = out / f"{corpus.name}-{part}.npz", out / f"{corpus.name}-{part}.zarr"
        write_npz(source, block, corpus.label_names, corpus.feature_names)
        stores[part] = path
        _say("convert", source, path)
        convert(source, path)
        if not compare(path, source).is_same:
            raise StreammimlError(f"{path} does not hold what {source} does")
    first = corpus.test
    print(f"  {TRAIN_BAGS:,} and {TEST_BAGS:,} bags, compared with their sources; among them")
    for bag in range(2):
        names = ", ".join(corpus.label_names[label] for label in first.labels_of(bag))
        n_rows = int(first.bag_offsets[bag + 1] - first.bag_offsets[bag])
        print(f"  {n_rows} {corpus.rows} with the labels {names}")
    with rivals_beside(stores["train"], stores["test"]) as rivals:
        run = out / "run"
        config = TrainConfig(**corpus.settings)
        options = (
            word
            for name, value in corpus.settings.items()
            for word in (f"--{name.replace('_', '-')}", value)
        )
        _say("train", stores["train"], run, *options)
        store = sm.open_store(stores["train"])
        witness = Witness(store, run)
        model = sm.train(store, config, run=run, watch=witness)
        witness.finish()
        print(f"  {model}")
        _say("evaluate", run, stores["test"])
        figures = sm.evaluate(model, stores["test"])
        _say("explain", run, stores["test"], out / "why")
        said = sm.explain(model, stores["test"], out / "why")
        for line in _typical(said["labels"][:3]):
            print(f"  {line}")
        print("comparing with classifiers of scikit-learn on pooled bags, in the same run")
        found = rivals()
    for line in table({"streammiml": figures, **found}):
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
        others=found,
    )
    print(f"all of it took {time.monotonic() - begun:.0f} s; open {page.absolute().as_uri()}")


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
    """A line a figure, a column a method; what a method does not have is left blank."""
    yield " " * 22 + "  ".join(columns)
    for name in SHOWN:
        cells = (
            f"{found[name]:.4f}".rjust(len(method)) if name in found else " " * len(method)
            for method, found in columns.items()
        )
        yield f"{name.replace('_', ' '):<22}{'  '.join(cells)}".rstrip()


@contextmanager
def rivals_beside(train: Path, test: Path) -> Iterator[Any]:
    """Begin the comparison in a process of its own; calling what is yielded waits for it."""
    # One thread each: this and the training share the machine.
    calm = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    process = subprocess.Popen(
        [sys.executable, "-m", "streammiml_tools.pooled", str(train), str(test)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **calm},
        text=True,
    )

    def result() -> Any:
        found, complaint = process.communicate()
        if process.returncode:
            last = complaint.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
            raise StreammimlError(f"the comparison failed: {last[0].removeprefix('streammiml: ')}")
        return json.loads(found)

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
    """Bags as a file that ``convert`` reads and others can write: plain NumPy arrays."""
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
    """A store of about ``n_bytes``, trained on and scored by processes of little memory."""
    low, high = Planted().rows_per_bag
    n_bags = max(100, round(n_bytes / ((low + high) / 2 * LARGE_FEATURES * 4)))
    free = shutil.disk_usage(_existing(out)).free
    if n_bytes * 1.1 > free:
        raise StreammimlError(
            f"--large {format_size(n_bytes)} needs about {format_size(int(n_bytes * 1.1))} below "
            f"{out}, where {format_size(free)} are free; ask for less, or name another folder"
        )
    _fresh(out)
    begun = time.monotonic()
    store, run = out / "planted.zarr", out / "run"
    settings: dict[str, Any] = {"n_bags": n_bags, "n_features": LARGE_FEATURES, "n_labels": 50}
    words = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings.items())
    print(f"$ python -m streammiml_tools.synth {store} {words}", flush=True)
    written = write_corpus(store, **settings)
    size = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
    print(f"  {written.n_bags:,} bags of {written.n_rows:,} rows, {format_size(size)} on disk")
    # In processes of their own, so that what each holds at most is its own.
    options = ["--memory", LARGE_MEMORY, "--epochs", "1", "--shared-dim", "50"]
    _command("train", store, run, *options)
    origin = read_origin(run)
    if origin is not None and origin.peak_bytes is not None:
        print(
            f"  read {format_size(size)} and held {format_size(origin.peak_bytes)} at most, "
            f"{format_size(origin.bytes_before or 0)} of it before the first step: "
            "interpreter, libraries, weights"
        )
    _command("report", run, "--out", out / "report.html")
    page = (out / "report.html").absolute().as_uri()
    print(f"all of it took {time.monotonic() - begun:.0f} s; open {page}")


def _command(verb: str, *words: object) -> None:
    _say(verb, *words)
    done = subprocess.run([sys.executable, "-m", "streammiml", verb, *map(str, words)])
    if done.returncode:
        raise StreammimlError(f"{verb} ended with exit code {done.returncode}; see above")


def _existing(path: Path) -> Path:
    """The folder, or the first of those it lies in that is there."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())


def _fresh(out: Path) -> None:
    if (out / MARK).exists():
        shutil.rmtree(out)
    elif out.exists() and any(out.iterdir()):
        raise StreammimlError(f"{out} exists and was not made by a demo; name another folder")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
