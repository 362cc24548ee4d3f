"""``paper.md`` from the lines that were measured: means, spreads, and paired tests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_rel

from benchmarks.paper_sets import (
    FIGURES,
    HIGHER,
    PUBLISHED,
    PUBLISHED_VARIED,
    SHORT,
    TARGETS,
    TITLES,
)

Line = dict[str, Any]

COLUMNS = {
    "paper": "ours: paper mode",
    "default": "ours: default",
    "best": "ours: best",
    "forest": "random forest",
    "logistic": "logistic regression",
    "plt": "napkinXC PLT",
    "torch_warp": "PyTorch WARP",
    "lightfm": "LightFM WARP",
}
# The methods that the paper compares with get columns here once they are there.
PEERS = ("forest", "logistic", "plt", "torch_warp", "lightfm")
VARIED = {
    "Table 4: number of sub-concepts": ("K=1", "K=5", "K=10", "K=15"),
    "Table 5: variants (V1: no shared space, V2: the top r labels)": ("default", "V1", "V2"),
}
LEVEL = 0.05
SEEN_SPLITS = 10


class Results:
    """Figures by set, method and split."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = list(lines)

    def sets(self) -> list[str]:
        found = {line["set"] for line in self.lines}
        return [*(name for name in TITLES if name in found), *sorted(found - set(TITLES))]

    def values(self, name: str, method: str, figure: str) -> dict[int, float]:
        """By split."""
        found = {}
        for line in self.lines:
            if (line["set"], line["method"]) == (name, method):
                value = line.get("figures", {}).get(figure)
                if value is not None:
                    found[line["split"]] = float(value)
        return found

    def skipped(self, method: str) -> str | None:
        return next(
            (x["skipped"] for x in self.lines if x["method"] == method and "skipped" in x), None
        )


def short(value: float, beside: float | None = None) -> str:
    """Four digits below .01, so that figures can be told apart, or if the one ``beside`` is."""
    digits = 4 if (value if beside is None else beside) < 0.01 else 3
    return f"{value:.{digits}f}".removeprefix("0")


def cell(values: dict[int, float], mark: str = "") -> str:
    if not values:
        return "–"
    numbers = list(values.values())
    mean = float(np.mean(numbers))
    if len(numbers) == 1:
        return short(mean) + mark
    spread = np.std(numbers, ddof=1)
    return f"{short(mean)}±{short(float(spread), mean)}{mark}"


def standard_error(values: dict[int, float]) -> float:
    numbers = list(values.values())
    return float(np.std(numbers, ddof=1) / math.sqrt(len(numbers))) if len(numbers) > 1 else 0.0


def compared(ours: dict[int, float], theirs: dict[int, float], figure: str) -> str:
    """● where ours is significantly better on the splits that both have, ○ where worse."""
    both = sorted(ours.keys() & theirs.keys())
    if len(both) < 3:
        return ""
    one, other = ([side[split] for split in both] for side in (ours, theirs))
    if np.allclose(one, other):
        return ""
    if float(ttest_rel(one, other).pvalue) >= LEVEL:
        return ""
    better = (np.mean(one) > np.mean(other)) == (figure in HIGHER)
    return " ●" if better else " ○"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def set_table(results: Results, name: str) -> list[str]:
    """Rows are figures, columns methods; marks compare *best* with each peer."""
    methods = [m for m in COLUMNS if results.values(name, m, "ranking_loss")]
    rows = []
    for at, figure in enumerate(FIGURES):
        best = results.values(name, "best", figure)
        cells = []
        for method in methods:
            values = results.values(name, method, figure)
            cells.append(cell(values, compared(best, values, figure) if method in PEERS else ""))
        if any(each != "–" for each in cells):
            published = PUBLISHED[name][at] if name in PUBLISHED else "–"
            rows.append([f"{SHORT[figure]} {'↑' if figure in HIGHER else '↓'}", published, *cells])
    counts = [str(len(results.values(name, m, "ranking_loss"))) for m in methods]
    rows.append(["splits", "30", *counts])
    title = f"### {TITLES.get(name, name)}"
    return [title, "", *table(["", "published", *(COLUMNS[m] for m in methods)], rows)]


def targets_table(results: Results) -> list[str]:
    rows = []
    for name, wanted in TARGETS.items():
        for figure, goals in wanted.items():
            row = [TITLES[name], SHORT[figure]]
            for mode, goal in zip(("default", "best"), goals, strict=True):
                values = results.values(name, mode, figure)
                if goal is None or not values:
                    row += ["–" if goal is None else short(goal), cell(values), ""]
                    continue
                got = cell(values, f" ({len(values)})")
                row += [short(goal), got, reached(values, goal, figure)]
            rows.append(row)
    header = ["set", "figure", "default: goal", "got", "", "best: goal", "got", ""]
    return table(header, rows)


def reached(values: dict[int, float], goal: float, figure: str) -> str:
    """Within one standard error of the mean counts."""
    mean = float(np.mean(list(values.values())))
    short_by = (goal - mean) if figure in HIGHER else (mean - goal)
    if short_by <= 0:
        return "yes"
    return "within 1 s.e." if short_by <= standard_error(values) else "**no**"


def peers_notes(results: Results) -> list[str]:
    """Where a peer's mean is ahead of *best* in ranking loss or average precision."""
    found = []
    for name in results.sets():
        for figure in ("ranking_loss", "average_precision"):
            best = results.values(name, "best", figure)
            for method in PEERS:
                theirs = results.values(name, method, figure)
                both = sorted(best.keys() & theirs.keys())
                if not both:
                    continue
                one, other = (np.mean([side[i] for i in both]) for side in (best, theirs))
                if (other - one if figure in HIGHER else one - other) > 0:
                    mark = compared(best, theirs, figure)
                    say = "significantly" if mark else "not significantly"
                    found.append(
                        f"- {TITLES.get(name, name)}, {SHORT[figure]}: {COLUMNS[method]} "
                        f"{short(float(other))} is {say} ahead of *best* {short(float(one))} "
                        f"({len(both)} splits)."
                    )
    return found or [
        "- Nowhere: *best* is at or ahead of every peer in every row that is measured."
    ]


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
                    cells.append(cell(by[m], compared(by[m], first, figure)) + beside)
                rows.append([SHORT[figure], *cells])
            counts = [str(len(results.values(name, m, "coverage"))) for m in methods]
            rows.append(["splits", *counts])
            lines += [f"### {TITLES.get(name, name)}", "", *table(["", *methods], rows)]
    if lines:
        text = "● better, ○ worse than the first column, paired t-test at 95 %."
        lines.append(f"{text} In brackets what the paper published (its Table 4 of ten folds).\n")
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
            cells.append(cell(values, mark))
        rows.append([figure.replace("_", " "), *cells])
    text = (
        "Labels are five pairs of digits, rows 12 principal axes of a picture; training and test "
        "bags share no picture. The index compares sub-concept and digit of each test row."
    )
    return ["## Known sub-concepts: digits in groups", "", text, "", *table(["", *methods], rows)]


def elsewhere_table(results: Results) -> list[str]:
    """What was chosen on the other half of the sets, on the splits that all three have."""
    methods = {"default": "default", "elsewhere": "chosen on other sets", "best": "best"}
    rows = []
    for name in results.sets():
        for figure in ("ranking_loss", "average_precision"):
            by = {method: results.values(name, method, figure) for method in methods}
            both = set.intersection(*(set(values) for values in by.values()))
            if both:
                cells = [cell({i: values[i] for i in both}) for values in by.values()]
                rows.append([TITLES.get(name, name), SHORT[figure], *cells, str(len(both))])
    if not rows:
        return []
    text = (
        "Of the settings that *best* chooses from, the one that is best on the other half of the "
        "sets (Letter Frost and Reuters, MSRC v2 and Scene; first fold of the same split)."
    )
    header = ["set", "figure", *methods.values(), "splits"]
    return ["## Sets that the choice never saw", "", text, "", *table(header, rows)]


def untouched_table(results: Results) -> list[str]:
    """The first splits were seen while settings were settled; the others were not."""
    methods = ("default", "best", *PEERS[:3])
    rows = []
    for name in TARGETS:
        for figure in ("ranking_loss", "average_precision"):
            by = {
                m: {i: v for i, v in results.values(name, m, figure).items() if i >= SEEN_SPLITS}
                for m in methods
            }
            if by["best"]:
                cells = [
                    cell(by[m], compared(by["best"], by[m], figure) if m in PEERS else "")
                    for m in methods
                ]
                counts = sorted({len(values) for values in by.values()})
                rows.append([TITLES[name], SHORT[figure], *cells, " to ".join(map(str, counts))])
    if not rows:
        return []
    header = ["set", "figure", *(COLUMNS[m] for m in methods), "splits"]
    title = f"## Splits from {SEEN_SPLITS} on, which nothing was settled by"
    return [title, "", *table(header, rows)]


def times_table(results: Results) -> list[str]:
    found = [line for line in results.lines if line["method"] == "time"]
    if not found:
        return []
    rows = [
        [
            x["set"],
            f"{x['split']:,}",
            f"{x['seconds']:.1f}",
            f"{x['steps']:,}",
            f"{x['us_a_step']:.1f}",
        ]
        for x in sorted(found, key=lambda x: (x["set"], x["split"]))
    ]
    text = (
        "From a store on disk to an early stop, default settings, one thread, compiled before. "
        "The paper needed 12 minutes for all of MSRA."
    )
    header = ["corpus", "bags", "seconds", "steps", "µs a step, all in all"]
    return ["## Time against number of bags (Figures 4 and 5)", "", text, "", *table(header, rows)]


PREFACE = """# The paper's tables

Random splits, two thirds to train on and one third to test on, seeds 0 to N − 1; settings by 3-fold
cross validation on ranking loss inside the training part, at most 32 a split, most discarded early;
mean ± standard deviation over splits. *Paper mode*: last iterate, the paper's step sizes, no lift
(32 of its 288 settings: its K and γ0, C of 1 and 10, m = 100, η = 1e-5), early stopping on a tenth
of the training bags, rows scaled as by default (the paper does not say how). *Default*: no option
given, nothing chosen from outside (with so few bags, training itself cross-validates its number of
epochs). *Best*: {best}, all of them
tried on the first fold and the better third on the others. Peers have the same splits and folds and
choose in the same way: {peers}.
The forest sees minimum and maximum of each feature, logistic regression and PLT mean, maximum and
minimum, LightFM the mean, PyTorch the rows themselves.

● *best* is significantly better than this peer, ○ significantly worse (paired t-test, 95 %, on the
splits that both have; no mark below three). Columns may have different numbers of splits: their
means are then not over the same bags. *Published* is MIMLfast in the paper, on 30 splits of its
own.
"""

NOTES = """## Notes

- What is the default (none of few bags held out and epochs by cross validation, scales of `auto`)
  and what *best* chooses from was settled on other splits (seeds 100 to 108) of the same four sets
  and of a protein set, whose bags are those of the splits here. Test figures of splits 0 to 9 were
  seen on the way, too, of an older default and of three older *best*; after them came lifts that
  pool Fourier features, K of 1, roots of histograms (logistic regression, a peer, chose roots on
  every split of MSRC v2, which is how we came to try them) and leaving out the shared space, each
  by seeds from 100 on. So default and *best* are flattered by an unknown amount, *best* the more;
  splits from 10 on were first seen here. Birds took no part in these choices.
- On Letter Frost early stopping in paper mode looks at nine bags or ten, and stops at random; what
  is left of the gap to the published figure we do not know (raw, unit or standardised rows: .15).
- On Reuters-21578 the default scores a document by one sentence, and peers that see the mean of all
  of them are ahead of it; *best* may join that mean to each sentence. This context of sparse rows,
  and the norms and dimensions of its grid, were found by looking at split 0 of that set; the others
  were first seen here. In ranking loss logistic regression stays ahead by a twentieth: not on rare
  topics, but on those of twenty documents and more (.0013 of its loss on split 0, .0019 of ours).
  Training weighs the top of a list, which average precision looks at; ranking loss counts every
  pair alike. PyTorch would hold all rows as dense ones and a forest took more than half an hour a
  split, so neither was run there.
- Context joins each bag's extremes or mean to its rows: better ranking, worse key instances.
  Where those matter, take the default.
- The six methods that the paper compares with are not in here yet.
"""


def write_page(path: Path, lines: Sequence[Line], commit: str) -> None:
    results = Results(lines)
    budgets: dict[str, int] = {}
    for line in lines:
        # Where rows are sparse some settings cannot be: the most counts.
        method, many = line["method"], line.get("n_settings", 0)
        budgets[method] = max(many, budgets.get(method, 0))
    peers = ", ".join(f"{COLUMNS[m]} {budgets[m]} settings" for m in PEERS if budgets.get(m))
    best = (
        f"lift, scale, K and shared space (or none) from {budgets.get('best', 0)} settings (of "
        "sparse rows: context, K, C and m from 16)"
    )
    page = [PREFACE.format(best=best, peers=peers or "none was there")]
    known = [name for name in results.sets() if results.values(name, "default", "coverage")]
    page += ["## Goals\n", "In brackets the number of splits.\n", *targets_table(results)]
    page += untouched_table(results)
    page += ["## Tables 2 and 3: criteria and key instances\n"]
    for name in known:
        page += set_table(results, name)
    page += ["## Where a peer is ahead\n", *peers_notes(results), ""]
    for method in PEERS:
        if results.skipped(method):
            page.append(f"- {COLUMNS[method]} did not run: {results.skipped(method)}\n")
    page += [*varied_tables(results), *digits_table(results), *elsewhere_table(results)]
    page += [*times_table(results), NOTES]
    commits = sorted({line["commit"] for line in lines if "commit" in line})
    page += [
        "## How to repeat it\n",
        "`STREAMMIML_DATA=… STREAMMIML_PEERS_PYTHON=… python -m benchmarks paper --splits 30`; "
        f"every line is in `paper.jsonl`. Page made at {commit}, lines measured at "
        f"{', '.join(commits)}.",
    ]
    path.write_text("\n".join(page).rstrip() + "\n", encoding="utf-8")
