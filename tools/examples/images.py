"""Pictures as rows of uint8: bags of MNIST digits whose labels are groups of digits.

    python tools/examples/images.py FOLDER OUT [BAGS]

FOLDER holds the idx files of MNIST. A bag carries ``even`` or ``odd`` digits, or both; nobody says
which picture is which, nor that each label is made of five shapes. Sub-concepts part them, as far
as one linear model is not enough.
"""

from __future__ import annotations

from pathlib import Path

import cyclopts

import streammiml as sm
from streammiml_tools.corpora.mnist import Drawn, write_bags


def main(pictures: str, out: str, bags: str = "20000") -> None:
    """Draw bags, train, explain, report."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    stores = {}
    for part, n_bags in (("train", int(bags)), ("test", int(bags) // 10)):
        drawn = Drawn(
            n_bags=n_bags, groups=("02468", "13579"), rows_per_bag=(1, 3), digits_per_bag=2
        )
        stores[part] = write_bags(Path(pictures), folder / f"{part}.zarr", drawn, part=part)
        # A byte a pixel on disk, widened to float32 in the kernel.
        print(stores[part])
    side = round(stores["train"].n_features ** 0.5)
    # With short first steps, one sub-concept of a label would win all of its rows.
    config = sm.TrainConfig(subconcepts=10, epochs=20, step_size=0.1)
    sm.train(stores["train"], config, run=folder / "run", resume=True)
    explanation = sm.explain(folder / "run", stores["test"], folder / "why")
    for label in explanation["labels"]:
        shares = [f"{concept['share']:.0%}" for concept in label["subconcepts"]]
        print(f"{label['name']}: sub-concepts hold {', '.join(shares)}")
    print(
        sm.report(
            folder / "run",
            folder / "report.html",
            store=stores["test"],
            image=f"{side}x{side}",
        )
    )


if __name__ == "__main__":
    cyclopts.run(main)
