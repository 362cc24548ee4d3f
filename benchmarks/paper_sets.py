"""The sets of the paper's tables, their splits and folds, and the paper's figures."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.memory import MemoryBags
from streammiml.bags.store import open_store
from streammiml.measure.registry import PAPER_FIGURES as FIGURES
from streammiml.search.folds import Folds
from streammiml_tools.convert import convert
from streammiml_tools.corpora.reuters import fit_vocabulary, write_documents

I64 = NDArray[np.int64]

SHORT = dict(zip(FIGURES, ("h.l.", "o.e.", "co.", "r.l.", "a.p.", "key"), strict=True))
# Figures that are better when higher.
HIGHER = ("average_precision", "key_instance_accuracy")
FOLDS = 3
FILES = {
    "letter_frost": "letter_frost/letter_frost.mat",
    "msrcv2": "msrcv2/MSCV2.mat",
    "reuters": "reuters/miml-text-data.mat",
    "scene": "scene/miml-image-data.mat",
}
DOCUMENTS = {"reuters21578": "reuters21578/documents.jsonl.gz"}
"""Files of documents, which are turned into bags of word counts first."""
TITLES = {
    "letter_frost": "Letter Frost",
    "msrcv2": "MSRC v2",
    "reuters": "Reuters",
    "scene": "Scene",
    "reuters21578": "Reuters-21578, sentences",
}
# MIMLfast in Tables 2 and 3 of the paper, in the order of FIGURES.
PUBLISHED: dict[str, tuple[str, ...]] = {
    "letter_frost": (".136±.014", ".151±.041", ".375±.042", ".134±.019", ".704±.034", ".67±.03"),
    "msrcv2": (".100±.007", ".295±.025", ".238±.014", ".108±.009", ".688±.017", ".66±.03"),
    "reuters": (".028±.004", ".044±.008", ".035±.004", ".014±.004", ".972±.005", "–"),
    "scene": (".188±.009", ".351±.023", ".207±.012", ".189±.014", ".770±.015", "–"),
}
# Tables 4 and 5, in the order of FIGURES without key instances. Table 4 (K=…) used ten folds.
PUBLISHED_VARIED: dict[str, dict[str, tuple[str, ...]]] = {
    "scene": {
        "K=1": (".191±.011", ".366±.038", ".224±.018", ".209±.020", ".754±.023"),
        "K=5": (".186±.009", ".354±.026", ".213±.015", ".196±.017", ".764±.018"),
        "K=10": (".182±.014", ".338±.030", ".202±.017", ".184±.018", ".777±.020"),
        "K=15": (".181±.011", ".344±.031", ".210±.014", ".192±.016", ".769±.019"),
        "default": (".188±.009", ".351±.023", ".207±.012", ".189±.014", ".770±.015"),
        "V1": (".211±.009", ".409±.023", ".239±.011", ".228±.013", ".730±.014"),
        "V2": (".196±.012", ".358±.030", ".208±.014", ".192±.016", ".767±.018"),
    },
    "reuters": {
        "K=1": (".027±.008", ".042±.013", ".036±.007", ".015±.006", ".972±.010"),
        "K=5": (".026±.006", ".040±.009", ".035±.006", ".014±.005", ".974±.007"),
        "K=10": (".025±.006", ".037±.007", ".034±.006", ".013±.005", ".976±.006"),
        "K=15": (".025±.007", ".040±.010", ".035±.007", ".014±.006", ".974±.008"),
        "default": (".028±.004", ".044±.008", ".035±.004", ".014±.004", ".972±.005"),
        "V1": (".038±.004", ".060±.011", ".038±.005", ".019±.004", ".963±.007"),
        "V2": (".035±.003", ".046±.010", ".035±.004", ".015±.003", ".971±.006"),
    },
}
# Goals for the modes (default, best); None: no goal.
TARGETS: dict[str, dict[str, tuple[float, float | None]]] = {
    "letter_frost": {
        "ranking_loss": (0.127, 0.120),
        "average_precision": (0.715, 0.735),
        "hamming_loss": (0.120, None),
        "key_instance_accuracy": (0.67, None),
    },
    "msrcv2": {
        "ranking_loss": (0.096, 0.062),
        "average_precision": (0.714, 0.790),
        "hamming_loss": (0.082, 0.066),
        "key_instance_accuracy": (0.66, None),
    },
    "reuters": {
        "ranking_loss": (0.013, 0.012),
        "average_precision": (0.972, 0.974),
        "hamming_loss": (0.027, None),
    },
    "scene": {
        "ranking_loss": (0.172, 0.160),
        "average_precision": (0.792, 0.803),
        "hamming_loss": (0.180, 0.172),
    },
}


@dataclass(frozen=True, slots=True)
class PaperSet:
    """All bags of a set in memory."""

    name: str
    block: BagBlock
    n_labels: int

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name)

    def bags(self, chosen: I64) -> MemoryBags:
        return MemoryBags(self.block.take(chosen), n_labels=self.n_labels, name=self.name)


def load(named: str) -> PaperSet:
    """Load a set by name from STREAMMIML_DATA, or by path any file that ``convert`` reads."""
    path, known = Path(named), FILES | DOCUMENTS
    if named in known:
        path = Path(os.environ["STREAMMIML_DATA"]) / known[named]
    with tempfile.TemporaryDirectory() as folder:
        store_path = Path(folder) / "set.zarr"
        if named in DOCUMENTS:
            write_documents(path, {"": store_path}, fit_vocabulary(path))
        else:
            convert(path, store_path)
        store = open_store(store_path)
        block = store.read(0, store.n_bags)
        return PaperSet(named if named in known else path.name, block, store.n_labels)


def random_set() -> PaperSet:
    """A random set, small enough for a smoke run."""
    rng = np.random.default_rng(0)
    bags = [rng.normal(size=(2 + i % 3, 6)).astype(np.float32) for i in range(72)]
    labels = [sorted({int(bag[0].argmax()), int(bag[1].argmax())}) for bag in bags]
    rows = [bag.argmax(axis=1).tolist() for bag in bags]
    return PaperSet("made", BagBlock.from_bags(bags, labels, row_labels=rows), 6)


def split(n_bags: int, seed: int) -> tuple[I64, I64]:
    """Two thirds to train on and one third to test on, both in the order of the set."""
    order = np.random.default_rng(seed).permutation(n_bags)
    cut = round(n_bags * 2 / 3)
    return np.sort(order[:cut]), np.sort(order[cut:])


def folds(n_bags: int) -> I64:
    """The fold of each training bag; ``tune`` makes the same folds, so all methods share them."""
    return Folds(n_bags, FOLDS).of_bag()
