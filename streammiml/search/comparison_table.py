"""The table of a comparison: means over splits, and tests whether MIMLfast is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from streammiml.measure.registry import METRICS, PAPER_FIGURES, spoken
from streammiml.search.cells import CellResult
from streammiml.search.contestants import CRITERIA, OURS

LEVEL = 0.05
FEWEST_SPLITS = 3
"""With fewer splits no difference is called significant."""
BETTER, WORSE = "●", "○"

ByCell = Mapping[int, float]
"""Values of a figure by split."""


@dataclass(frozen=True, slots=True)
class MethodComparison:
    """Results of all cells of a comparison."""

    methods: Mapping[str, str]
    """Title of each method, by name, in the order of the columns."""
    n_splits: int
    cells: Sequence[CellResult]

    @property
    def reference(self) -> str | None:
        """The mode of MIMLfast that the others are tested against; None if there is none.

        It is the mode with figures of the most splits; of several, the one with a search.
        """
        finished = {name: len(self.values(name, CRITERIA[0])) for name in reversed([*OURS])}
        most = max(finished, key=lambda name: finished[name])
        return most if finished[most] else None

    @property
    def criteria(self) -> list[str]:
        """Names of the figures that any method has; those of the paper come first."""
        known = dict.fromkeys(PAPER_FIGURES) | dict.fromkeys(CRITERIA)
        measured = {
            name
            for result in self.cells
            for name, value in result.figures.items()
            if value is not None
        }
        return [name for name in known if name in measured]

    def values(self, method: str, figure: str) -> dict[int, float]:
        """Values of a figure by split, from the cells with all training bags."""
        return {
            result.cell.split: value
            for result in self.of_method(method)
            if (value := result.figures.get(figure)) is not None
        }

    def seconds(self, method: str, name: str) -> dict[int, float]:
        """Seconds of ``choose``, ``fit`` or ``score`` by split."""
        return {
            result.cell.split: value
            for result in self.of_method(method)
            if (value := getattr(result, f"{name}_seconds")) is not None
        }

    def of_method(self, method: str) -> list[CellResult]:
        """Results of a method with all training bags."""
        return [x for x in self.cells if x.cell.method == method and x.cell.n_train is None]

    def entry(self, method: str, figure: str) -> dict[str, float | int | str | None]:
        """Mean, standard deviation, number of splits and mark of a method."""
        values = list(self.values(method, figure).values())
        return {
            "mean": fmean(values) if values else None,
            "std": stdev(values) if len(values) > 1 else None,
            "splits": len(values),
            "mark": self.mark(method, figure),
        }

    def mark(self, method: str, figure: str) -> str:
        """● if the reference is significantly better than a method, ○ if worse, else empty."""
        if self.reference is None or method == self.reference:
            return ""
        ours, theirs = self.values(self.reference, figure), self.values(method, figure)
        return mark(ours, theirs, higher_is_better=METRICS[figure].better == "higher")

    def mean_ranks(self) -> dict[str, float]:
        """Mean rank of each method over splits and the paper's criteria; 1 is the best rank.

        Only methods with figures of all splits are ranked. Methods with equal figures share the
        mean of their ranks.
        """
        figures = [name for name in PAPER_FIGURES[:-1] if name in self.criteria]
        values = {
            method: [self.values(method, figure) for figure in figures] for method in self.methods
        }
        complete = [m for m in values if all(len(by) == self.n_splits for by in values[m])]
        ranks: dict[str, list[float]] = {method: [] for method in complete}
        for number, figure in enumerate(figures):
            sign = -1 if METRICS[figure].better == "higher" else 1
            for split in range(self.n_splits):
                losses = {method: sign * values[method][number][split] for method in complete}
                for method, own in losses.items():
                    lower = sum(loss < own for loss in losses.values())
                    equal = sum(loss == own for loss in losses.values())
                    ranks[method].append(lower + (equal + 1) / 2)
        return {method: fmean(own) for method, own in ranks.items() if own}

    def missing(self) -> list[str]:
        """One sentence for each method and reason for which cells have no figures."""
        reasons: dict[tuple[str, str], list[CellResult]] = {}
        for result in self.cells:
            if result.reason is not None:
                reasons.setdefault((result.cell.method, result.reason), []).append(result)
        return [
            f"{self.methods[method]}: N/A {_cells_in_words(results)}: {reason}"
            for (method, reason), results in reasons.items()
        ]

    def markdown(self) -> str:
        """The table as Markdown: figures, what they mean, missing cells, and seconds."""
        names = list(self.methods)
        header = ["", *(self.methods[name] for name in names)]
        rows = [
            [
                f"{spoken(figure)} {arrow(figure)}",
                *(
                    with_spread(self.values(name, figure), self.mark(name, figure))
                    if self.values(name, figure)
                    else "N/A"
                    for name in names
                ),
            ]
            for figure in self.criteria
        ]
        counts = [str(len(self.values(name, CRITERIA[0]))) for name in names]
        lines = [*table(header, [*rows, ["splits", *counts]]), self.legend(), ""]
        lines += [f"- {sentence}" for sentence in self.missing()]
        seconds = [
            [f"seconds to {name}", *(mean_seconds(self.seconds(m, name)) for m in names)]
            for name in ("choose", "fit", "score")
        ]
        lines += ["", "## Seconds", "", *table(header, seconds)]
        return "\n".join(lines).rstrip() + "\n"

    def legend(self) -> str:
        """What the cells of the table mean, as one paragraph."""
        text = "Mean ± standard deviation over splits; ↓ lower is better, ↑ higher is better."
        if self.reference is not None:
            text += (
                f" {BETTER} {self.methods[self.reference]} is significantly better than the method "
                f"of the column, {WORSE} significantly worse: paired t-test at "
                f"{100 * (1 - LEVEL):.0f} % on the splits that both have, if they are at least "
                f"{FEWEST_SPLITS}."
            )
        return text


def mark(ours: ByCell, theirs: ByCell, *, higher_is_better: bool) -> str:
    """● if ours is significantly better on the splits that both have, ○ if worse, else empty."""
    both = sorted(ours.keys() & theirs.keys())
    differences = [ours[split] - theirs[split] for split in both]
    if len(both) < FEWEST_SPLITS or paired_p_value(differences) >= LEVEL:
        return ""
    return BETTER if (fmean(differences) > 0) == higher_is_better else WORSE


def paired_p_value(differences: Sequence[float]) -> float:
    """Probability of a mean difference at least so far from 0 if there is none: Student's t-test.

    Differences that are equal but for rounding have the probability 0, or 1 if they are 0.
    """
    n, mean = len(differences), fmean(differences)
    largest = max(map(abs, differences))
    if largest < 1e-12:
        return 1.0
    spread = stdev(differences)
    if spread < 1e-12 * largest:
        return 0.0
    return two_sided_t(mean / (spread / math.sqrt(n)), n - 1)


def two_sided_t(t: float, freedom: int) -> float:
    """Probability of a value at least as far from 0 as ``t``, for whole degrees of freedom.

    The finite series 26.7.3 and 26.7.4 of Abramowitz and Stegun.
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    if freedom % 2:
        term, first = cosine, 3
        total = cosine if freedom > 1 else 0.0
    else:
        term, first = 1.0, 2
        total = 1.0
    for k in range(first, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    within = 2 / math.pi * (angle + sine * total) if freedom % 2 else sine * total
    return max(0.0, 1.0 - within)


def arrow(figure: str) -> str:
    """↓ for figures that are better when lower, ↑ for the others."""
    return "↓" if METRICS[figure].better == "lower" else "↑"


def with_spread(values: ByCell, mark: str = "") -> str:
    """Mean ± standard deviation over splits, and a mark; empty values become a dash."""
    numbers = list(values.values())
    if not numbers:
        return "–"
    text = short(fmean(numbers))
    if len(numbers) > 1:
        text += f"±{short(stdev(numbers), fmean(numbers))}"
    return f"{text} {mark}".rstrip()


def short(value: float, beside: float | None = None) -> str:
    """Three digits; four if the value, or the mean ``beside`` it, is below .01."""
    digits = 4 if (value if beside is None else beside) < 0.01 else 3
    return f"{value:.{digits}f}".removeprefix("0")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table, and an empty line."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def mean_seconds(values: ByCell) -> str:
    """Mean seconds with three digits; N/A if there are none, 0 below a millisecond."""
    mean = fmean(values.values()) if values else None
    return "N/A" if mean is None else "0" if mean < 0.001 else f"{mean:.3g}"


def _cells_in_words(results: Sequence[CellResult]) -> str:
    sizes = [f"{r.n_train:,}" for r in results if r.cell.n_train is not None]
    splits = [str(r.cell.split) for r in results if r.cell.n_train is None]
    words = []
    if splits:
        number = "1 split" if len(splits) == 1 else f"{len(splits)} splits"
        words.append(f"in {number} ({', '.join(splits)})")
    if sizes:
        words.append(f"with {', '.join(sizes)} training bags")
    return " and ".join(words)
