"""Training time on a corpus as large as the paper's MSRA, up to early stopping, against PyTorch.

The corpus has 30 000 synthetic bags of 9 rows, 225 features and 99 labels. Ours: ``train`` on the
store with default settings, with one and with two kernel threads. Theirs: what a PyTorch user would
write (``msra_peer.py``), all bags in memory, two threads; of three learning rates, the best after
30 epochs is used. Both validate on the same held-out bags and stop when the ranking loss has not
fallen in ten validations. The ratio is the peer's time until its lowest loss divided by our time
until our loss was at most as high. Both times include validation.

The peer runs in the interpreter that STREAMMIML_PEERS_PYTHON names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from streammiml.bags.store import BagStore
from streammiml.config import TrainConfig
from streammiml.learn.defaults import SHARE
from streammiml.learn.holdout import Holdout
from streammiml.learn.progress import TrainProgress
from streammiml.learn.train import train
from streammiml_tools.corpora.synth import write_corpus

CORPUS = {
    "n_features": 225,
    "n_labels": 99,
    "rows_per_bag": (9, 9),
    "labels_per_bag": (1, 4),
    "subconcepts": 3,
    "noise": 3.0,
}
RATES = (0.001, 0.003, 0.01)
EPOCHS_TO_CHOOSE, MOST_EPOCHS = 30, 300


def ours(store: BagStore, threads: int, run: Path, smoke: bool) -> dict:
    """Seconds of the training, and (seconds, ranking loss) of each validation in it."""
    looks: list[tuple[float, float]] = []
    begin = time.perf_counter()

    def record(progress: TrainProgress) -> None:
        if progress.validation_loss is not None:
            looks.append((time.perf_counter() - begin, progress.validation_loss))

    config = TrainConfig(threads=threads, epochs=1 if smoke else 1000, validation=SHARE)
    train(store, config, run=run, watch=record)
    return {"seconds": time.perf_counter() - begin, "looks": looks}


class PeerMissing(Exception):
    """The peer did not run; the message is the last line of its error output."""


def peer(store: BagStore, folder: Path, smoke: bool) -> dict:
    block = store.read(0, store.n_bags)
    held_out = Holdout.of(SHARE, store.n_bags).bags
    np.savez(
        folder / "bags.npz",
        rows=block.rows.reshape(store.n_bags, -1, store.n_features),  # type: ignore[union-attr]
        labels=block.label_indices,
        label_offsets=block.label_offsets,
        held_out=held_out,
    )
    python = os.environ.get("STREAMMIML_PEERS_PYTHON", sys.executable)
    script = Path(__file__).with_name("msra_peer.py")

    def run(rate: float, epochs: int) -> dict:
        command = [python, script, folder / "bags.npz", rate, store.n_labels, epochs]
        process = subprocess.run([*map(str, command)], capture_output=True, text=True)
        if process.returncode:
            raise PeerMissing((process.stderr.strip().splitlines() or ["no message"])[-1])
        return {**json.loads(process.stdout.splitlines()[-1]), "rate": rate}

    if smoke:
        return run(RATES[0], 1)
    results = [run(rate, EPOCHS_TO_CHOOSE) for rate in RATES]
    best = min(results, key=lambda result: min(map(_loss, result["looks"])))
    return run(best["rate"], MOST_EPOCHS)


def _loss(look: tuple[float, float]) -> float:
    return look[1]


def cases(smoke: bool) -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = write_corpus(folder / "msra.zarr", n_bags=600 if smoke else 30_000, **CORPUS)
        # Compile the kernels first; users wait for compilation only once.
        train(store, TrainConfig(max_steps=64, validation=0.0))
        try:
            theirs = peer(store, folder, smoke)
        except PeerMissing as error:
            theirs = {"skipped": str(error)}
        for threads in (1, 2):
            mine = ours(store, threads, folder / f"run-{threads}", smoke)
            best_at, best = min(mine["looks"], key=_loss)
            line = {
                "what": "MSRA-sized, from disk to an early stop",
                "case": {"bags": store.n_bags, "rows": store.n_rows, "threads": threads},
                "seconds": round(mine["seconds"], 2),
                "ranking_loss": round(best, 5),
                "seconds_to_it": round(best_at, 2),
                "paper_minutes": 12,
            }
            if "skipped" in theirs:
                yield {**line, "torch_skipped": theirs["skipped"]}
                continue
            their_seconds, goal = min(theirs["looks"], key=_loss)
            our_seconds = next((at for at, loss in mine["looks"] if loss <= goal), None)
            yield {
                **line,
                "torch_ranking_loss": round(goal, 5),
                "torch_seconds_to_it": round(their_seconds, 2),
                "torch_seconds": round(theirs["looks"][-1][0], 2),
                "torch_rate": theirs["rate"],
                "torch_version": theirs["version"],
                "our_seconds_to_torch_loss": None if our_seconds is None else round(our_seconds, 2),
                "torch_over_ours": (
                    None if our_seconds is None else round(their_seconds / our_seconds, 2)
                ),
            }
