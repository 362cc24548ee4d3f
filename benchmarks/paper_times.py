"""Training time by number of bags, as in the paper's Figures 4 and 5.

Two corpora: Corel5k as tokens, if STREAMMIML_DATA has it, and a synthetic corpus as large as MSRA.
A store is written for one fifth of the bags, for two fifths and so on. Each is trained from disk up
to early stopping, with default settings and one thread; kernels are compiled before.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_msra import CORPUS
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.validate import StoreSpec
from streammiml.bags.views import Bags
from streammiml.bags.writer import BagWriter
from streammiml.config import TrainConfig
from streammiml.learn.train import train
from streammiml_tools.corpora.synth import write_corpus

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
COREL = "Corel5k"
MSRA = "as large as MSRA"
METHOD = "time"


def corel(path: Path, share: float) -> Bags | None:
    """A store of a random ``share`` of Corel5k's bags, with tokens as one-hot rows."""
    file = Path(os.environ.get("STREAMMIML_DATA", "")) / "corel5k_tokens" / "data.npz"
    if not file.is_file():
        return None
    arrays = np.load(file)
    tokens = arrays["instances"].argmax(axis=1).astype(np.uint32)
    rows = SparseRows(
        np.arange(len(tokens) + 1),
        tokens,
        np.ones(len(tokens), np.float32),
        arrays["instances"].shape[1],
    )
    labels = arrays["label_indices"].astype(np.int32)
    block = BagBlock(arrays["offsets"].astype(np.int64), rows, arrays["label_indptr"], labels)
    order = np.random.default_rng(0).permutation(len(block))[: round(len(block) * share)]
    spec = StoreSpec(n_features=rows.n_features, n_labels=int(arrays["n_labels"]), sparse=True)
    with BagWriter.begin(path, spec) as writer:
        writer.write_part(0, block.take(order))
        return writer.finish(1)


def lines(smoke: bool) -> Iterator[dict[str, Any]]:
    for share in SHARES[-1:] if smoke else SHARES:
        for name in (MSRA,) if smoke else (COREL, MSRA):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "set.zarr"
                if name == COREL:
                    store = corel(path, share)
                else:
                    n_bags = 200 if smoke else round(30_000 * share)
                    store = write_corpus(path, n_bags=n_bags, **CORPUS)
                if store is not None:
                    yield {"set": name, "split": store.n_bags, "method": METHOD, **timed(store)}


def timed(store: Bags) -> dict[str, Any]:
    """Train briefly to compile the kernels, then time a training with default settings."""
    train(store, TrainConfig(max_steps=64, validation=0.0))
    begin = time.perf_counter()
    model = train(store, TrainConfig(preset="plain"))
    seconds, steps = time.perf_counter() - begin, model.provenance["steps"]
    return {"seconds": round(seconds, 2), "steps": steps, "us_a_step": seconds / steps * 1e6}
