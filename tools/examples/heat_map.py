"""Heat map of a slide: where in the picture the rows lie that speak for a label.

    python tools/examples/heat_map.py MODEL STORE OUT.png --label tumour [--bag 0]

STORE keeps the column ``coords``: x and y of each row (``streammiml convert … --keep coords``). The
picture has a square for each row: red where the row scores high, blue where it scores low.
``streammiml report`` and ``explain`` draw such maps of typical bags by themselves.
"""

from __future__ import annotations

import cyclopts
import matplotlib.pyplot as plt
import numpy as np

import streammiml as sm


def main(model: str, store: str, out: str, /, *, label: str, bag: int = 0) -> None:
    """Score the rows of a slide, and draw the scores where the rows are."""
    slide = sm.open_store(store).view([bag])
    rows = sm.row_scores(model, slide, label).read_pandas()
    x, y = np.stack(rows["kept_coords"]).T
    plt.scatter(x, y, c=rows["score"], cmap="coolwarm", marker="s")

    plt.gca().set_aspect("equal")
    plt.gca().invert_yaxis()
    plt.colorbar(label=f"score on {label}")
    plt.savefig(out)
    best, share = rows["score"].argmax(), rows["above_dummy"].mean()
    print(f"{label}: {share:.1%} of {len(rows):,} rows above the threshold, ", end="")
    print(f"most at {x[best]}, {y[best]}")


if __name__ == "__main__":
    cyclopts.run(main)
