"""Time against the number of bags, as in the paper's Figures 4 and 5: from disk to an early stop.

Corel5k as tokens, where STREAMMIML_DATA has it, and a made corpus as large as MSRA: a fifth of the
bags, two fifths and so on, each a store, default settings, one thread, kernels compiled before.
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
from streammiml.bags.checks import StoreSpec
from streammiml.bags.views import Bags
from streammiml.bags.writer import BagWriter
from streammiml.config import TrainConfig
from streammiml.learn.trainer import train
from streammiml_tools.synth import write_corpus

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
COREL = "Corel5k"
MSRA = "as large as MSRA"
METHOD = "time"


def corel(path: Path, share: float) -> Bags | None:
    """Tokens are one-hot rows; bags in random order, so that a share is a sample."""
    file = Path(os.environ.get("STREAMMIML_DATA", "")) / "corel5k_tokens" / "data.npz"
    if not file.is_file():
        return None
    found = np.load(file)
    tokens = found["instances"].argmax(axis=1).astype(np.uint32)
    rows = SparseRows(
        np.arange(len(tokens) + 1),
        tokens,
        np.ones(len(tokens), np.float32),
        found["instances"].shape[1],
    )
    labels = found["label_indices"].astype(np.int32)
    block = BagBlock(found["offsets"].astype(np.int64), rows, found["label_indptr"], labels)
    order = np.random.default_rng(0).permutation(len(block))[: round(len(block) * share)]
    spec = StoreSpec(n_features=rows.n_features, n_labels=int(found["n_labels"]), sparse=True)
    with BagWriter.begin(path, spec) as writer:
        writer.write_part(0, block.take(order))
        return writer.finish(1)


def lines(smoke: bool) -> Iterator[dict[str, Any]]:
    for share in SHARES[-1:] if smoke else SHARES:
        for name in (MSRA,) if smoke else (COREL, MSRA):
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder) / "set.zarr"
                if name == COREL:
                    store = corel(place, share)
                else:
                    n_bags = 200 if smoke else round(30_000 * share)
                    store = write_corpus(place, n_bags=n_bags, **CORPUS)
                if store is not None:
                    yield {"set": name, "split": store.n_bags, "method": METHOD, **timed(store)}


def timed(store: Bags) -> dict[str, Any]:
    train(store, TrainConfig(max_steps=64, validation=0.0))
    begin = time.perf_counter()
    model = train(store)
    seconds, steps = time.perf_counter() - begin, model.provenance["steps"]
    return {"seconds": round(seconds, 2), "steps": steps, "us_a_step": seconds / steps * 1e6}
