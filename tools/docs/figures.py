"""Pictures of the README from ``benchmarks/results``: ``python -m streammiml_tools.docs.figures``.

They are SVG with text as paths and without a date, so the same results give the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / ".github"
SETS = {
    "letter_frost": "Letter Frost",
    "msrcv2": "MSRC v2",
    "reuters": "Reuters",
    "scene": "Scene",
    "miml_birds.arff": "bird song",
}
METHODS = {
    "best": "streammiml, best",
    "default": "streammiml, default",
    "forest": "random forest, pooled",
    "logistic": "logistic regression, pooled",
}
PEERS = ("lance", "annbatch", "zarr-python", "tensorstore")
COLOURS = ("#1a5fb4", "#8ab8f0", "#c0bfbc", "#77767b")


def lines_of(name: str) -> list[dict[str, Any]]:
    """Return the lines of a file of results."""
    text = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def quality() -> dict[str, dict[str, float]]:
    """Return the mean average precision over splits: set to method to figure."""
    values: dict[tuple[str, str], list[float]] = {}
    for line in lines_of("paper"):
        if "average_precision" in line.get("figures", {}):
            key = (line["set"], line["method"])
            values.setdefault(key, []).append(line["figures"]["average_precision"])
    return {
        name: {method: mean(values[name, method]) for method in METHODS if (name, method) in values}
        for name in SETS
    }


def speed() -> dict[str, tuple[float, float]]:
    """Return the GB a second of our loader and of each peer, cold, in the same runs."""
    lines = [line for line in lines_of("loader") if line["what"] == "against a peer"]
    return {line["case"]["peer"]: (line["ours_gb_s"], line["peer_gb_s"]) for line in lines}


def draw_quality(out: Path) -> None:
    """Draw a group of bars for each set, a bar for each method."""
    figures = quality()
    with _style():
        figure, panel = plt.subplots(figsize=(6.2, 2.4))
        for number, ((method, title), colour) in enumerate(
            zip(METHODS.items(), COLOURS, strict=True)
        ):
            heights = [figures[name][method] for name in SETS]
            places = [place + 0.2 * (number - 1.5) for place in range(len(SETS))]
            panel.bar(places, heights, 0.18, label=title, color=colour)
        panel.set_xticks(range(len(SETS)), SETS.values())
        panel.set(ylim=(0.5, 1), ylabel="average precision")
        panel.set_title("Higher is better; the axis begins at 0.5", fontsize=9)
        panel.legend(ncols=2, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, -0.46))
        _save(figure, out)


def draw_speed(out: Path) -> None:
    """Draw a bar for each loader, over that of ours in the same run."""
    figures = speed()
    with _style():
        figure, panel = plt.subplots(figsize=(6.2, 1.8))
        ratios = {peer: theirs / ours for peer, (ours, theirs) in figures.items()}
        names = ["streammiml, every byte checked", *sorted(PEERS, key=lambda peer: -ratios[peer])]
        widths = [1.0, *(ratios[peer] for peer in names[1:])]
        bars = panel.barh(names, widths, color=[COLOURS[0], *[COLOURS[2]] * len(PEERS)])
        panel.bar_label(bars, [f"{width:.2f}" for width in widths], padding=3, fontsize=8)
        panel.invert_yaxis()
        panel.set_xlim(0, 1.45)
        panel.set_title("Mixed bags from a cold disk, GB a second, ours = 1", fontsize=9)
        _save(figure, out)


def _style() -> Any:
    return mpl.rc_context(
        {
            "svg.fonttype": "path",
            "svg.hashsalt": "streammiml",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "font.size": 9,
            "legend.frameon": False,
        }
    )


def _save(figure: Any, out: Path) -> None:
    figure.savefig(
        out, bbox_inches="tight", facecolor="white", metadata={"Date": None, "Creator": None}
    )
    plt.close(figure)


def main(folder: Path = PICTURES) -> None:
    """Draw both pictures."""
    draw_quality(folder / "quality.svg")
    draw_speed(folder / "speed.svg")


if __name__ == "__main__":
    main()
