"""What ``--preset auto`` chooses, against ``--preset plain``, on random splits of real sets.

``STREAMMIML_CHOICE_SETS`` names sets (default: those of ``SETS``), ``STREAMMIML_CHOICE_SPLITS`` the
splits (default 0 to 9, as ``0:10``). A split trains on two thirds of the bags; the figures are
those of the other third. Sets are read from the folder that STREAMMIML_DATA names; without it there
is only a random set.

``one_restart`` has the figures of the first restart alone, which is the model that ``--restarts 1``
gives. ``cpu_seconds`` of a training contain its trials; ``cpu_over_plain`` is the ratio of the two
presets on the same split. ``predicted_over_true`` is the number of predicted labels over that of
true ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.paper_sets import PaperSet, load, random_set, split
from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.learn.train import train
from streammiml.measure.evaluate import evaluate
from streammiml.model import Model

SETS = ("letter_frost", "msrcv2", "scene", "reuters", "birds", "azotobacter", "corel_tokens")
MORE_FILES = {
    "birds": "miml_birds/miml_birds.arff",
    "azotobacter": "protein_azotobacter",
    "corel_tokens": "corel5k_tokens/data.npz",
}
FIGURES = ("ranking_loss", "average_precision", "hamming_loss", "micro_f1", "key_instance_accuracy")
CHOSEN = ("lift", "shared_space", "subconcepts", "max_norm", "epochs")


def figures_of(model: Model, bags: MemoryBags) -> dict[str, float]:
    """Figures of a model on test bags."""
    figures = evaluate(model, bags, threads=1)
    n_predicted = sum(label["predicted"] for label in figures["per_label"])
    return {
        **{name: round(figures[name], 5) for name in FIGURES if figures.get(name) is not None},
        "predicted_over_true": round(n_predicted / bags.n_label_entries, 3),
    }


def measured(data: PaperSet, seed: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train on a split with these settings, and measure on its test bags."""
    learn, test = split(len(data.block), seed)
    begun = time.process_time()
    model = train(data.bags(learn), TrainConfig(**settings))
    seconds = time.process_time() - begun
    bags = data.bags(test)
    one = {}
    if model.restarts > 1:
        one = {"restarts": model.restarts, "one_restart": figures_of(model.restart(0), bags)}
    return {
        **figures_of(model, bags),
        **one,
        "chosen": {name: model.settings[name] for name in CHOSEN},
        "cpu_seconds": round(seconds, 2),
    }


def compared(data: PaperSet, name: str, seed: int, common: dict[str, Any]) -> dict[str, Any]:
    auto = measured(data, seed, common)
    plain = measured(data, seed, {**common, "preset": "plain"})
    ratio = auto["cpu_seconds"] / max(plain["cpu_seconds"], 1e-9)
    case = {"set": name, "split": seed}
    return {"case": case, "auto": auto, "plain": plain, "cpu_over_plain": round(ratio, 1)}


def cases(smoke: bool) -> Iterator[dict[str, Any]]:
    if smoke or "STREAMMIML_DATA" not in os.environ:
        yield compared(random_set(), "made", 0, {"time_limit": "1s"} if smoke else {})
        return
    names = os.environ.get("STREAMMIML_CHOICE_SETS", ",".join(SETS)).split(",")
    first, stop = map(int, os.environ.get("STREAMMIML_CHOICE_SPLITS", "0:10").split(":"))
    folder = os.environ["STREAMMIML_DATA"]
    sets = {
        name: load(f"{folder}/{MORE_FILES[name]}" if name in MORE_FILES else name) for name in names
    }
    for seed in range(first, stop):
        for name, data in sets.items():
            yield compared(data, name, seed, {})
