"""Writes ``paper.md`` from measured lines: means, standard deviations and paired tests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paper_sets import (
    FIGURES,
    HIGHER,
    PUBLISHED,
    PUBLISHED_VARIED,
    SHORT,
    TARGETS,
    TITLES,
)
from streammiml.rivals.registry import METHODS
from streammiml.search.comparison_table import mark, short, table, with_spread

Line = dict[str, Any]

RIVALS = ("dba", "kisar", "mimlboost", "mimlknn", "mimlsvm", "ranklosssim")
"""The methods of the paper's Table 2, in its order."""
COLUMNS = {
    "paper": "ours: paper mode",
    "default": "ours: default",
    "best": "ours: best",
    **{name: METHODS[name].title for name in RIVALS},
    "forest": "random forest",
    "logistic": "logistic regression",
    "plt": "napkinXC PLT",
    "torch_warp": "PyTorch WARP",
    "lightfm": "LightFM WARP",
}
POOLED = ("forest", "logistic", "plt")
PEERS = (*RIVALS, *POOLED, "torch_warp", "lightfm")
VARIED = {
    "Table 4: number of sub-concepts": ("K=1", "K=5", "K=10", "K=15"),
    "Table 5: variants (V1: no shared space, V2: the top r labels)": ("default", "V1", "V2"),
}
# Splits below this number were seen while defaults were settled.
SEEN_SPLITS = 10


class Results:
    """Figures by set, method and split."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = list(lines)

    def sets(self) -> list[str]:
        names = {line["set"] for line in self.lines}
        return [*(name for name in TITLES if name in names), *sorted(names - set(TITLES))]

    def values(self, name: str, method: str, figure: str) -> dict[int, float]:
        """The values of a figure, by split."""
        values = {}
        for line in self.lines:
            if (line["set"], line["method"]) == (name, method):
                value = line.get("figures", {}).get(figure)
                if value is not None:
                    values[line["split"]] = float(value)
        return values

    def skipped(self) -> dict[tuple[str, str, str], int]:
        """Number of splits on which a method has no figures, by set, method and reason."""
        counts: dict[tuple[str, str, str], int] = {}
        for line in self.lines:
            if "skipped" in line:
                case = line["set"], line["method"], line["skipped"]
                counts[case] = counts.get(case, 0) + 1
        return counts


def standard_error(values: dict[int, float]) -> float:
    numbers = list(values.values())
    return float(np.std(numbers, ddof=1) / math.sqrt(len(numbers))) if len(numbers) > 1 else 0.0


def compared(ours: dict[int, float], theirs: dict[int, float], figure: str) -> str:
    """● if ours is significantly better on the splits that both have, ○ if worse, else empty."""
    return mark(ours, theirs, higher_is_better=figure in HIGHER)


def set_table(results: Results, name: str) -> list[str]:
    """Rows are figures, columns methods; marks compare *best* with each peer."""
    methods = [m for m in COLUMNS if results.values(name, m, "ranking_loss")]
    rows = []
    for at, figure in enumerate(FIGURES):
        best = results.values(name, "best", figure)
        cells = []
        for method in methods:
            values = results.values(name, method, figure)
            cells.append(
                with_spread(values, compared(best, values, figure) if method in PEERS else "")
            )
        if any(text != "–" for text in cells):
            published = PUBLISHED[name][at] if name in PUBLISHED else "–"
            rows.append([f"{SHORT[figure]} {'↑' if figure in HIGHER else '↓'}", published, *cells])
    counts = [str(len(results.values(name, m, "ranking_loss"))) for m in methods]
    rows.append(["splits", "30", *counts])
    title = f"### {TITLES.get(name, name)}"
    return [title, "", *table(["", "published", *(COLUMNS[m] for m in methods)], rows)]


def targets_table(results: Results) -> list[str]:
    rows = []
    for name, goals_of_set in TARGETS.items():
        for figure, goals in goals_of_set.items():
            row = [TITLES[name], SHORT[figure]]
            for mode, goal in zip(("default", "best"), goals, strict=True):
                values = results.values(name, mode, figure)
                if goal is None or not values:
                    row += ["–" if goal is None else short(goal), with_spread(values), ""]
                    continue
                got = with_spread(values, f"({len(values)})")
                row += [short(goal), got, reached(values, goal, figure)]
            rows.append(row)
    header = ["set", "figure", "default: goal", "got", "", "best: goal", "got", ""]
    return table(header, rows)


def reached(values: dict[int, float], goal: float, figure: str) -> str:
    """Whether the mean reaches the goal, or misses it by at most one standard error."""
    mean = float(np.mean(list(values.values())))
    short_by = (goal - mean) if figure in HIGHER else (mean - goal)
    if short_by <= 0:
        return "yes"
    return "within 1 s.e." if short_by <= standard_error(values) else "**no**"


def peers_notes(results: Results) -> list[str]:
    """List where a peer's mean is ahead of *best* in ranking loss or average precision."""
    notes = []
    for name in results.sets():
        for figure in ("ranking_loss", "average_precision"):
            best = results.values(name, "best", figure)
            for method in PEERS:
                theirs = results.values(name, method, figure)
                both = sorted(best.keys() & theirs.keys())
                if not both:
                    continue
                ours, peer = (np.mean([side[i] for i in both]) for side in (best, theirs))
                if (peer - ours if figure in HIGHER else ours - peer) > 0:
                    mark = compared(best, theirs, figure)
                    adverb = "significantly" if mark else "not significantly"
                    notes.append(
                        f"- {TITLES.get(name, name)}, {SHORT[figure]}: {COLUMNS[method]} "
                        f"{short(float(peer))} is {adverb} ahead of *best* {short(float(ours))} "
                        f"({len(both)} splits)."
                    )
    return notes or ["- Nowhere: no peer has a better mean than *best* in any measured row."]


def varied_tables(results: Results) -> list[str]:
    lines: list[str] = []
    for title, methods in VARIED.items():
        known = [n for n in results.sets() if results.values(n, methods[-1], "coverage")]
        lines += [f"## {title}", ""] if known else []
        for name in known:
            rows = []
            for at, figure in enumerate(FIGURES[:-1]):
                by = {m: results.values(name, m, figure) for m in methods}
                first = by[methods[0]]
                cells = []
                for m in methods:
                    published = PUBLISHED_VARIED.get(name, {}).get(m)
                    beside = f" ({published[at]})" if published else ""
                    cells.append(with_spread(by[m], compared(by[m], first, figure)) + beside)
                rows.append([SHORT[figure], *cells])
            counts = [str(len(results.values(name, m, "coverage"))) for m in methods]
            rows.append(["splits", *counts])
            lines += [f"### {TITLES.get(name, name)}", "", *table(["", *methods], rows)]
    if lines:
        text = "● better, ○ worse than the first column, paired t-test at 95 %."
        lines.append(f"{text} In brackets: the paper's figures (ten folds in its Table 4).\n")
    return lines


def digits_table(results: Results) -> list[str]:
    name = "digits in groups"
    methods = [m for m in ("K=1", "K=2", "K=5", "K=10") if results.values(name, m, "ranking_loss")]
    if not methods:
        return []
    names = ("ranking_loss", "average_precision", "key_instance_accuracy", "adjusted_rand_index")
    rows = []
    for figure in names:
        first = results.values(name, methods[0], figure)
        cells = []
        for method in methods:
            values = results.values(name, method, figure)
            known = HIGHER if figure in FIGURES else (*HIGHER, figure)
            mark = compared(values, first, figure) if known is HIGHER else ""
            cells.append(with_spread(values, mark))
        rows.append([figure.replace("_", " "), *cells])
    text = (
        "Labels are five pairs of digits; rows are pictures, projected on 12 principal axes. "
        "Training and test bags share no picture. The adjusted Rand index compares sub-concept and "
        "digit of the test rows."
    )
    return ["## Known sub-concepts: digits in groups", "", text, "", *table(["", *methods], rows)]


def elsewhere_table(results: Results) -> list[str]:
    """Settings chosen on the other half of the sets, on the splits that all three columns have."""
    methods = {"default": "default", "elsewhere": "chosen on other sets", "best": "best"}
    rows = []
    for name in results.sets():
        for figure in ("ranking_loss", "average_precision"):
            by = {method: results.values(name, method, figure) for method in methods}
            both = set.intersection(*(set(values) for values in by.values()))
            if both:
                cells = [with_spread({i: values[i] for i in both}) for values in by.values()]
                rows.append([TITLES.get(name, name), SHORT[figure], *cells, str(len(both))])
    if not rows:
        return []
    text = (
        "*Chosen on other sets* is the setting from the grid of *best* that is best on the other "
        "half of the sets, on the first fold of the same split. One half is Letter Frost and "
        "Reuters, the other MSRC v2 and Scene."
    )
    header = ["set", "figure", *methods.values(), "splits"]
    return ["## Settings chosen on other sets", "", text, "", *table(header, rows)]


def untouched_table(results: Results) -> list[str]:
    """Figures of the splits that were not seen while defaults were settled."""
    methods = ("default", "best", *POOLED)
    rows = []
    for name in TARGETS:
        for figure in ("ranking_loss", "average_precision"):
            by = {
                m: {i: v for i, v in results.values(name, m, figure).items() if i >= SEEN_SPLITS}
                for m in methods
            }
            if by["best"]:
                cells = [
                    with_spread(by[m], compared(by["best"], by[m], figure) if m in PEERS else "")
                    for m in methods
                ]
                counts = sorted({len(values) for values in by.values()})
                rows.append([TITLES[name], SHORT[figure], *cells, " to ".join(map(str, counts))])
    if not rows:
        return []
    header = ["set", "figure", *(COLUMNS[m] for m in methods), "splits"]
    title = f"## Splits from {SEEN_SPLITS} on, by which no default was settled"
    return [title, "", *table(header, rows)]


def times_table(results: Results) -> list[str]:
    lines = [line for line in results.lines if line["method"] == "time"]
    if not lines:
        return []
    rows = [
        [
            x["set"],
            f"{x['split']:,}",
            f"{x['seconds']:.1f}",
            f"{x['steps']:,}",
            f"{x['us_a_step']:.1f}",
        ]
        for x in sorted(lines, key=lambda x: (x["set"], x["split"]))
    ]
    text = (
        "Training from a store on disk up to early stopping, with default settings, one thread and "
        "compiled kernels. The paper needed 12 minutes for all of MSRA."
    )
    header = ["corpus", "bags", "seconds", "steps", "µs per step, all work included"]
    return ["## Time by number of bags (Figures 4 and 5)", "", text, "", *table(header, rows)]


PREFACE = """# The paper's tables

Seeds 0 to N − 1 split each set at random into two thirds for training and one third for testing.
3-fold cross validation on the training bags chooses, by ranking loss, from at most 32 settings, and
discards most of them early. Figures are mean ± standard deviation over splits.

- *Paper mode*: last iterate, the paper's step sizes, no lift; 32 of the paper's 288 settings (its K
  and γ0, C of 1 and 10, m = 100, η = 1e-5); early stopping on a tenth of the training bags; rows
  scaled as by default, since the paper does not say how.
- *Default*: no option given. With so few bags, training itself tries some settings and chooses its
  number of epochs by cross validation (`--preset auto`). The variants of Tables 4 and 5, and what
  was chosen on other sets, have `--preset plain`, which tries no settings.
- *Best*: {best}.
  All settings are tried on the first fold, the better third also on the other folds.
- Peers have the same splits and folds and choose in the same way: {peers}.
  The forest sees minimum and maximum of each feature, logistic regression and PLT see mean, maximum
  and minimum, LightFM the mean, PyTorch the rows themselves.

● *best* is significantly better than this peer, ○ significantly worse: paired t-test, 95 %, on the
splits that both have; no mark if both have fewer than three. Columns may have different numbers of
splits; their means are then over different bags. *Published* is MIMLfast in the paper, on 30 splits
of its own.
"""

NOTES = """## Notes

- We settled the defaults (small sets hold out no bags and choose epochs by cross validation; scales
  of `auto`) and the grid of *best* on other splits (seeds 100 to 108) of the same four sets and of
  a protein set. Those splits contain the same bags as the splits here. On the way we also saw test
  figures of splits 0 to 9, of an older default and of three older versions of *best*. After that
  came four changes, each chosen by seeds from 100 on: lifts that pool Fourier features, K of 1,
  roots of histograms, and leaving out the shared space. We tried roots because logistic regression,
  a peer, chose them on every split of MSRC v2. So the figures of default and *best* are too good by
  an unknown amount, those of *best* more so. Splits from 10 on were first seen here. The set Birds
  took no part in these choices.
- On Letter Frost, early stopping in paper mode validates on nine or ten bags, so it stops at
  random. We do not know the cause of the remaining gap to the published figure; raw, unit and
  standardised rows all give .15.
- On Reuters-21578 the default scores a document by one sentence, and peers that see the mean of all
  sentences are ahead of the default; *best* may join that mean to each sentence. We found this
  context of sparse rows, and the norms and dimensions of its grid, by looking at split 0 of that
  set; the other splits were first seen here. In ranking loss, logistic regression stays ahead by
  5 %: not on rare topics, but on topics with twenty documents or more, which add .0013 to its loss
  on split 0 and .0019 to ours. Our training gives more weight to the top of a list, as average
  precision does; ranking loss counts every pair alike. Neither PyTorch nor the forest was run on
  this set: PyTorch would hold all rows as dense rows, and the forest took more than half an hour
  per split.
- Context joins each bag's extremes or mean to its rows. Ranking becomes better and key instances
  become worse. If key instances matter, take the default.
- The six methods of the paper are those of `streammiml.rivals`, whose docstrings say
  what we chose where the literature is open. Each of them has ten minutes and 4 GiB for a split; an
  hour on Scene and Reuters, which were measured beside other work.
- Forest, logistic regression and PLT were partly measured before they became part of
  `streammiml.rivals`. Where both were measured, on three to ten splits, forest and logistic
  regression have the same ranking loss (71 of 72 lines; one differs by .0001), and PLT differs by
  chance. Seconds in lines of 62af595 were measured beside other work.
"""


def write_page(path: Path, lines: Sequence[Line], commit: str) -> None:
    results = Results(lines)
    budgets: dict[str, int] = {}
    for line in lines:
        # Sparse rows allow fewer settings, so the page gives the largest number.
        method, n_settings = line["method"], line.get("n_settings", 0)
        budgets[method] = max(n_settings, budgets.get(method, 0))
    peers = ", ".join(f"{COLUMNS[m]} {budgets[m]} settings" for m in PEERS if budgets.get(m))
    best = (
        f"chooses lift, scale, K and whether there is a shared space from {budgets.get('best', 0)} "
        "settings (for sparse rows: context, K, C and m from 16)"
    )
    page = [PREFACE.format(best=best, peers=peers or "none was installed")]
    known = [name for name in results.sets() if results.values(name, "default", "coverage")]
    page += ["## Goals\n", "In brackets: number of splits.\n", *targets_table(results)]
    page += untouched_table(results)
    page += ["## Tables 2 and 3: criteria and key instances\n"]
    for name in known:
        page += set_table(results, name)
    page += ["## Where a peer is ahead\n", *peers_notes(results), ""]
    for (name, method, reason), count in results.skipped().items():
        where = f"{TITLES.get(name, name)}, {COLUMNS[method]}"
        page.append(f"- {where}: N/A on {count} splits: {reason}\n")
    page += [*varied_tables(results), *digits_table(results), *elsewhere_table(results)]
    page += [*times_table(results), NOTES]
    commits = sorted({line["commit"] for line in lines if "commit" in line})
    page += [
        "## How to repeat it\n",
        "`STREAMMIML_DATA=… STREAMMIML_PEERS_PYTHON=… python -m benchmarks paper --splits 30`; "
        f"`paper.jsonl` has every line. Page written at {commit}, lines measured at "
        f"{', '.join(commits)}.",
    ]
    path.write_text("\n".join(page).rstrip() + "\n", encoding="utf-8")
