"""``streammiml demo``: the whole way on real data that needs no download."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np

import streammiml as sm
from streammiml.bags.checks import StoreSpec
from streammiml.bags.store import BagStore
from streammiml.bags.writer import BagWriter
from streammiml.errors import StreammimlError
from streammiml_tools.digits import digit_bags

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


def demo(out: Path = Path("streammiml-demo"), /) -> None:
    """Turn real handwritten digits into bags, write stores, check them, train and evaluate.

    Parameters
    ----------
    out
        Folder for what is made; one that an earlier demo made is replaced.
    """
    _fresh(out)
    begun = time.monotonic()
    for part, n_bags, half in (("train", 4000, 0), ("test", 1000, 1)):
        store = write_digits(out / f"digits-{part}.zarr", n_bags, seed=half, half=half)
        print(f"{store.name}: {store.n_bags:,} bags of {store.n_rows:,} digits, 10 labels, checked")
    first = store.read(0, 3)
    for bag in range(3):
        names = ", ".join(NAMES[label] for label in first.labels_of(bag))
        print(f"bag {bag}: {len(first.rows_of(bag))} pictures, labels {names}")
    print("training (the first time, kernels are compiled for about half a minute)", flush=True)
    run = out / "run"
    model = sm.train(out / "digits-train.zarr", sm.TrainConfig(epochs=20), run=run)
    print(f"{run}: {model}")
    figures = sm.evaluate(model, out / "digits-test.zarr")
    for name in SHOWN:
        print(f"{name.replace('_', ' '):<22} {figures[name]:.4f}")
    print(f"all of it took {time.monotonic() - begun:.0f} s; {out} holds stores and run")


def write_digits(path: Path, n_bags: int, *, seed: int, half: int) -> BagStore:
    """Write bags of digits to a store and compare it with what was written."""
    block, _ = digit_bags(n_bags, seed=seed, half=half)
    spec = StoreSpec(n_features=64, dtype="uint8", label_names=NAMES, row_labels=True)
    with BagWriter.begin(path, spec) as writer:
        writer.write_part(0, block)
        store = writer.finish(1)
    problems = store.check()
    if problems:
        raise StreammimlError(problems[0])
    again = store.read(0, store.n_bags)
    if not (
        np.array_equal(again.rows, block.rows)  # type: ignore[arg-type]
        and np.array_equal(again.label_indices, block.label_indices)
    ):
        raise StreammimlError(f"{path} does not hold what was written to it")
    return store


def _fresh(out: Path) -> None:
    if (out / MARK).exists():
        shutil.rmtree(out)
    elif out.exists() and any(out.iterdir()):
        raise StreammimlError(f"{out} exists and was not made by a demo; name another folder")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
