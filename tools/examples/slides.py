"""Slides as bags of tiles: which label a slide carries, and where on the slide it comes from.

    python tools/examples/slides.py OUT

The slides are made here: a patch of tissue on a grid of tiles, with regions of tumour, necrosis or
inflammation in some. Each tile has 32 features, as the network of a foundation model would give,
and its coordinates, which are kept beside the features. A slide carries the names of its regions;
the model never learns where they lie.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cyclopts
import matplotlib.pyplot as plt
import numpy as np

import streammiml as sm

Arrays = list[np.ndarray]
LABELS = ("inflammation", "necrosis", "tumour")
WIDTH, HEIGHT, N_FEATURES, TILE = 36, 26, 32, 256


def make_slides(n_slides: int, *, seed: int) -> tuple[Arrays, list[list[str]], Arrays, Arrays]:
    """Return features, labels, labels of tiles (−1: none) and coordinates of each slide."""
    looks = np.random.default_rng(0).normal(size=(6, N_FEATURES))  # three tissues, three labels
    rng = np.random.default_rng([seed, n_slides])
    x, y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    slides = []
    for _ in range(n_slides):
        wave = 0.25 * np.sin(3 * np.arctan2(y - 13, x - 18) + rng.uniform(0, 6))
        inside = np.hypot((x - 18) / 17, (y - 13) / 12.5) < 0.75 + wave
        region = np.full((HEIGHT, WIDTH), -1)
        for label in rng.choice(3, rng.integers(0, 3), replace=False):
            centre = rng.choice(np.argwhere(inside & (region < 0)))
            size = rng.uniform(2.5, 5)
            region[np.hypot(y - centre[0], x - centre[1]) < size] = label
        tissue = (np.sin(x / rng.uniform(3, 6)) + np.cos(y / rng.uniform(3, 6)) > 0).astype(int)
        kind = np.where(region >= 0, region + 3, tissue + rng.integers(2))[inside]
        features = looks[kind] + 2.0 * rng.normal(size=(kind.size, N_FEATURES))
        tiles = region[inside]
        names = sorted({LABELS[label] for label in tiles if label >= 0})
        slides.append((features, names, tiles, TILE * np.argwhere(inside)[:, ::-1]))
    rows, labels, regions, places = zip(*slides, strict=True)
    return [*rows], [*labels], [*regions], [*places]


def train(folder: Path) -> tuple[sm.Model, dict[str, Any]]:
    """Write stores of slides with their coordinates, train, and measure on slides not seen."""
    for part, n_slides, seed in (("train", 300, 1), ("test", 100, 2)):
        features, names, tiles, coordinates = make_slides(n_slides, seed=seed)
        store = sm.write_store(
            folder / f"{part}.zarr",
            features,
            names,
            # Training does not read them; they tell whether the key tiles are right.
            row_labels=[regions.tolist() for regions in tiles],
            label_names=LABELS,
            keep={"coords": coordinates},
        )
        print(f"{part}: {store.n_bags} slides, {store.n_rows:,} tiles")
    model = sm.train(folder / "train.zarr", sm.TrainConfig(epochs=15), run=folder / "run")
    return model, sm.evaluate(model, folder / "test.zarr")


def heat_maps(model: sm.Model, store: Path, slide: int, out: Path) -> None:
    """Draw how strongly each tile speaks for each label, and outline the regions."""
    bag = sm.open_store(store).read(slide, slide + 1)
    scores = sm.row_scores(model, [bag.rows])
    margins = scores.scores - scores.dummy_score  # above 0: speaks for the label
    column, row = (bag.kept["coords"] // TILE).T
    figure, panels = plt.subplots(1, 3, figsize=(11, 2.9), layout="constrained")
    for label, panel in enumerate(panels):
        grid = np.full((HEIGHT, WIDTH), np.nan)
        grid[row, column] = margins[:, label]
        shown = panel.imshow(grid, cmap="inferno", vmin=margins.min(), vmax=margins.max())
        region = np.zeros((HEIGHT, WIDTH))
        region[row, column] = np.asarray(bag.row_labels) == label
        if region.any():
            panel.contour(region, [0.5], colors="white", linewidths=1.5)
        panel.set(title=LABELS[label], xticks=[], yticks=[])
    figure.colorbar(shown, ax=panels, label="score − threshold", shrink=0.9)
    figure.savefig(out, dpi=110)


def main(out: str) -> None:
    """Make slides, train, measure, and draw a slide of the test store."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    model, figures = train(folder)
    print(f"average precision {figures['average_precision']:.3f}")
    print(f"key instance accuracy {figures['key_instance_accuracy']:.3f}")
    test = sm.open_store(folder / "test.zarr")
    slide = next(i for i in range(test.n_bags) if len(test[i].labels) == 2)
    print(f"slide {slide} carries", " and ".join(LABELS[label] for label in test[slide].labels))
    answer = sm.predict(model, [test[slide].rows])
    for label, tile in zip(answer.labels[0], answer.key_instances[0], strict=True):
        x, y = test[slide].kept["coords"][tile]
        print(f"predicted: {LABELS[label]}, most of all at pixel {x}, {y}")
    heat_maps(model, folder / "test.zarr", slide, folder / "slides.png")


if __name__ == "__main__":
    cyclopts.run(main)
