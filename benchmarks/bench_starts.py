"""Starts of training (``--init``): what is learned from random weights, means and clusters.

*steps*: steps until the ranking loss of held-out bags falls to a bound, on a planted corpus; the
ratio is that to a random start. *groups*: MNIST's digits in two groups, default settings: how many
sub-concepts score at least 5 % of a group's bags, and the adjusted Rand index of sub-concepts and
digits of the key rows. *sets*: the default training on splits of real sets, figures of the test
bags, and how often clusters have a lower ranking loss than a random start of the same split. The
last two need STREAMMIML_DATA.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.paper_sets import PaperSet, load
from streammiml.bags.store import BagStore, open_one
from streammiml.config import TrainConfig
from streammiml.learn.progress import TrainProgress
from streammiml.learn.train import train
from streammiml.measure.evaluate import evaluate
from streammiml.model import Model
from streammiml.scorer import Scorer
from streammiml_tools.corpora.mnist import Drawn, load_pictures, write_bags
from streammiml_tools.corpora.synth import write_corpus

INITS = ("random", "means", "clusters")
SETS = ("letter_frost", "msrcv2", "scene", "reuters", "miml_birds/miml_birds.arff")
BOUNDS = (0.02, 0.005, 0.001)
GROUPS = ("02468", "13579")
LEAST_SHARE = 0.05
SEEDS, SPLITS = 3, 4


def steps_cases(folder: Path, smoke: bool) -> Iterator[dict]:
    n_bags, most_steps = (600, 2000) if smoke else (20_000, 80_000)
    path = folder / "planted.zarr"
    planted = {"n_features": 200, "n_labels": 100, "rows_per_bag": (5, 13), "subconcepts": 3}
    write_corpus(path, n_bags=n_bags, **planted)
    store, first_steps = open_one(path), {}
    for init, seed in product(INITS, range(1 if smoke else SEEDS)):
        config = TrainConfig(
            init=init, seed=seed, validation=0.1, validate_every=1000, max_steps=most_steps
        )
        losses: dict[int, float] = {}

        def note(progress: TrainProgress, losses: dict[int, float] = losses) -> None:
            if progress.validation_loss is not None:
                losses[progress.step] = progress.validation_loss

        train(store, config, watch=note)
        for bound in BOUNDS:
            steps = min((step for step, loss in losses.items() if loss <= bound), default=None)
            first_steps[init, seed, bound] = steps
            random_steps = first_steps["random", seed, bound]
            share = steps / random_steps if steps and random_steps else None
            yield {
                "what": "steps",
                "case": {"bags": n_bags, "init": init, "seed": seed, "ranking_loss": bound},
                "steps": steps,
                "share_of_random": share and round(share, 3),
            }


def used_subconcepts(model: Model, store: BagStore) -> tuple[list[int], list[float]]:
    """Sub-concepts that score enough of a group's bags, and their adjusted Rand index."""
    bags, n_used, index = store.read(0, store.n_bags), [], []
    scores = Scorer(model).scores(bags)
    pictures, digits = load_pictures(Path(os.environ["STREAMMIML_DATA"]) / "mnist", "test")
    digit_of = {
        picture.tobytes(): digit for picture, digit in zip(pictures, digits.tolist(), strict=True)
    }
    for label in range(len(GROUPS)):
        own = [bag for bag in range(len(bags)) if label in bags.labels_of(bag)]
        subs = scores.subconcept[own, label]
        keys = bags.rows[bags.bag_offsets[own] + scores.row[own, label]]
        shares = np.bincount(subs, minlength=model.subconcepts) / len(own)
        n_used.append(int((shares >= LEAST_SHARE).sum()))
        index.append(round(adjusted_rand_score([digit_of[row.tobytes()] for row in keys], subs), 2))
    return n_used, index


def groups_cases(folder: Path, smoke: bool) -> Iterator[dict]:
    pictures = Path(os.environ["STREAMMIML_DATA"]) / "mnist"
    for part, n_bags in (("train", 20_000), ("test", 3000)):
        drawn = Drawn(n_bags=n_bags // (100 if smoke else 1), groups=GROUPS, seed=len(part))
        write_bags(pictures, folder / f"{part}.zarr", drawn, part=part)
    training, test = (open_one(folder / f"{part}.zarr") for part in ("train", "test"))
    for init, n_sub, seed in product(("random", "clusters"), (5, 1), range(1 if smoke else SEEDS)):
        model = train(training, TrainConfig(init=init, subconcepts=n_sub, seed=seed, epochs=8))
        n_used, index = used_subconcepts(model, test)
        figures = evaluate(model, test)
        yield {
            "what": "groups",
            "case": {"init": init, "subconcepts": n_sub, "seed": seed},
            "used": n_used,
            "adjusted_rand_index": index,
            "ranking_loss": round(figures["ranking_loss"], 4),
            "hamming_loss": round(figures["hamming_loss"], 4),
        }


def split_of(corpus: PaperSet, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two thirds of the bags for training, one third for the test."""
    order = np.random.default_rng([seed, 77]).permutation(len(corpus.block))
    n_training = len(order) * 2 // 3
    return np.sort(order[:n_training]), np.sort(order[n_training:])


def used_of_a_label(model: Model, corpus: PaperSet, test: np.ndarray) -> float | None:
    """Mean number of sub-concepts that score enough bags, over labels of 20 test bags or more."""
    bags, n_used = corpus.block.take(test), []
    subs = Scorer(model).scores(bags).subconcept
    for label in range(corpus.n_labels):
        own = [bag for bag in range(len(bags)) if label in bags.labels_of(bag)]
        if len(own) >= 20:
            shares = np.bincount(subs[own, label], minlength=model.subconcepts) / len(own)
            n_used.append(int((shares >= LEAST_SHARE).sum()))
    return statistics.fmean(n_used) if n_used else None


def sets_cases(smoke: bool) -> Iterator[dict]:
    short = {"max_steps": 500} if smoke else {}
    for name in SETS[:1] if smoke else SETS:
        is_file = "/" in name
        corpus = load(str(Path(os.environ["STREAMMIML_DATA"]) / name) if is_file else name)
        losses: dict[str, list[float]] = {}
        for init in INITS:
            rows, used = [], []
            for seed in range(1 if smoke else SPLITS):
                training, test = split_of(corpus, seed)
                config = TrainConfig(init=init, seed=seed, **short)
                model = train(corpus.bags(training), config)
                figures = evaluate(model, corpus.bags(test))
                rows.append(figures)
                used.append(used_of_a_label(model, corpus, test))
            losses[init] = [row["ranking_loss"] for row in rows]
            names = ("ranking_loss", "average_precision", "hamming_loss", "key_instance_accuracy")
            means = {
                figure: round(statistics.fmean(row[figure] for row in rows), 4)
                for figure in names
                if figure in rows[0]
            }
            pairs = zip(losses[init], losses["random"], strict=True)
            yield {
                "what": "sets",
                "case": {"set": Path(name).stem, "init": init, "splits": len(rows)},
                **means,
                "splits_better_than_random": sum(own < random for own, random in pairs),
                "subconcepts_used": None if None in used else round(statistics.fmean(used), 2),
            }


def cases(smoke: bool) -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as folder:
        yield from steps_cases(Path(folder), smoke)
        if "STREAMMIML_DATA" in os.environ:
            yield from groups_cases(Path(folder), smoke)
            yield from sets_cases(smoke)
