"""Heat map of a slide: where in the picture the rows lie that speak for a label.

    python tools/examples/heat_map.py MODEL SLIDE.npz OUT.png --label tumour [--tile 256]

SLIDE.npz has the arrays ``features`` (tiles, features), as the model was trained on, and
``coordinates`` (tiles, 2): x and y of each tile in pixels, where tiles are ``--tile`` pixels wide
and high. The picture has a square for each tile: red where the tile scores above the threshold of
its slide, blue where it scores below, and nothing where there is no tile.
"""

from __future__ import annotations

import cyclopts
import matplotlib.pyplot as plt
import numpy as np

import streammiml as sm

SIDE = 8
"""Pixels of a square's side."""


def main(model: str, slide: str, out: str, /, *, label: str, tile: int = 256) -> None:
    """Score the tiles of a slide, and draw the scores where the tiles are."""
    with np.load(slide) as arrays:
        features, coordinates = arrays["features"], arrays["coordinates"]

    # The dummy's score is the threshold, so margins above 0 speak for the label.
    scores = sm.row_scores(model, features, label)
    margins = scores.scores[:, 0] - scores.dummy_score[0]
    draw(margins, (coordinates - coordinates.min(axis=0)) // tile, out)

    x, y = coordinates[margins.argmax()]
    share = scores.above_dummy.mean()
    print(f"{label}: {share:.1%} of {len(margins):,} tiles above the threshold, most at {x}, {y}")


def draw(margins: np.ndarray, places: np.ndarray, out: str) -> None:
    """Draw a square at the place (column, row) of each tile; white is a margin of 0."""
    x, y = places.T
    picture = np.full((y.max() + 1, x.max() + 1), np.nan)
    picture[y, x] = margins
    limit = np.abs(margins).max()
    enlarged = picture.repeat(SIDE, axis=0).repeat(SIDE, axis=1)
    plt.imsave(out, enlarged, cmap="RdBu_r", vmin=-limit, vmax=limit)


if __name__ == "__main__":
    cyclopts.run(main)
