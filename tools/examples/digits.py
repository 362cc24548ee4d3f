"""Bags of handwritten digits: which digits are there, and which picture shows each.

    python tools/examples/digits.py OUT

The pictures, of 8 × 8 pixels, come with scikit-learn. In the first part a bag carries the digits
that it shows. In the second it carries ``even``, ``odd`` or both, and sub-concepts find the shapes
behind these words.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

import cyclopts
import matplotlib.pyplot as plt

import streammiml as sm
from streammiml_tools.corpora.digits import digit_bags

SIDE = 8


def bags_of_digits(n_bags: int, half: int, groups: list[range] | None = None) -> tuple[Any, Any]:
    """Return bags of pictures and their labels; training and test share no picture."""
    block, _ = digit_bags(n_bags, seed=half, half=half, groups=groups)
    return [block.rows_of(i) for i in range(n_bags)], [block.labels_of(i) for i in range(n_bags)]


def which_picture(out: Path) -> None:
    """Train on the digits of bags, and draw test bags with the key picture of each label."""
    model = sm.MIMLfast(shared_dim=30, epochs=20, lift="fourier:200")
    model.fit(*bags_of_digits(2000, half=0))
    bags, labels = bags_of_digits(400, half=1)
    print(f"digits: average precision {model.score(bags, labels):.3f}")
    predicted, keys = model.predict(bags[:6]), model.key_instances(bags[:6])
    figure, panels = plt.subplots(6, 7, figsize=(7, 6.6))
    for bag in range(6):
        key_of = {keys[bag, label]: label for label in predicted[bag]}
        for row in range(7):
            panel = panels[bag, row]
            panel.set(xticks=[], yticks=[])
            if row >= len(bags[bag]):
                panel.axis("off")
                continue
            panel.imshow(bags[bag][row].reshape(SIDE, SIDE), cmap="Greys")
            if row in key_of:
                plt.setp(panel.spines.values(), color="tab:red", linewidth=3)
                panel.set_title(key_of[row], color="tab:red", fontsize=10, pad=3)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def which_shapes(folder: Path) -> None:
    """Train on even and odd, and draw the most typical pictures of each sub-concept."""
    groups = [range(0, 10, 2), range(1, 10, 2)]
    for part, half in (("train", 0), ("test", 1)):
        bags, labels = bags_of_digits(3000, half, groups)
        sm.write_store(folder / f"{part}.zarr", bags, labels, label_names=["even", "odd"])
    config = sm.TrainConfig(subconcepts=8, epochs=30, step_size=0.1)
    model = sm.train(folder / "train.zarr", config, run=folder / "run")
    summary = sm.explain(model, folder / "test.zarr", folder / "why", typical=200)
    test = sm.open_store(folder / "test.zarr")
    found = [
        (label["name"], concept)
        for label in summary["labels"]
        for concept in label["subconcepts"]
        if concept["share"] >= 0.02
    ]
    figure, panels = plt.subplots(len(found), 8, figsize=(7, 0.95 * len(found)))
    for line, (name, concept) in zip(panels, found, strict=True):
        print(f"{name}: a sub-concept behind {concept['share']:.0%} of the bags")
        rows = [test[typical["bag"]].rows[typical["row"]] for typical in concept["typical"]]
        # Several bags may show the same picture.
        pictures = list({row.tobytes(): row for row in rows}.values())
        for panel, picture in zip_longest(line, pictures[: len(line)]):
            panel.set(xticks=[], yticks=[])
            if picture is None:
                panel.axis("off")
            else:
                panel.imshow(picture.reshape(SIDE, SIDE), cmap="Greys")
        line[0].set_ylabel(f"{name}, {concept['share']:.0%}", rotation=0, ha="right", va="center")
    figure.tight_layout()
    figure.savefig(folder / "shapes.png", dpi=110)


def main(out: str) -> None:
    """Draw the key pictures of bags, then the shapes behind two words."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    which_picture(folder / "digits.png")
    which_shapes(folder)


if __name__ == "__main__":
    cyclopts.run(main)
