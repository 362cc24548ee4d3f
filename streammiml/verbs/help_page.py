"""Help of verbs: options in named groups, on pages that Cyclopts draws."""

from __future__ import annotations

from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel
from rich.console import Console, ConsoleOptions

OTHER = "Other options"
"""Title for options that no group lists; a test sees to it that there are none."""
_NAMES = {
    "How the source is read": "source format bag-column feature-columns variables keep where group "
    "transposed separator header n-features span-bytes any-order subset",
    "Labels": "bag-labels label-columns row-label-column labels unknown-labels n-labels "
    "labels-transposed label-separator",
    "Which bags are written, in which order": "where-label limit empty-bags split stratify shuffle",
    "How the store is written": "dtype sparse codec chunk-bytes",
    "What is trained on": "text large",
    "The run": "resume extend start dry-run config checkpoint-every",
    "What is tried": "methods grid preset prefer splits folds sizes halving time-limit train",
    "Model": "shared-dim shared-space subconcepts max-norm lift scale fit-scaler step-size decay "
    "average init restarts loss",
    "Which labels are predicted": "rule min-labels threshold calibrate",
    "Data and order": "weights bag-weights order block-bags mix-blocks max-vif validation "
    "validation-store seed",
    "Memory": "memory block-bytes",
    "Stopping": "epochs max-steps patience validate-every",
    "Where it runs": "threads workers scheduler worker-memory replicas round-steps mixed-machines",
    "Output": "metric store speed out title image coordinates typical top-k rows jsonl tensorboard "
    "json",
}
GROUPS = {title: tuple(f"--{name}" for name in names.split()) for title, names in _NAMES.items()}
"""Titles of the groups and their options, in the order in which help shows them."""
ELSEWHERE = {("predict", "--format"): "Output", ("predict", "--labels"): "Output"}
"""Groups of options that mean something else for one verb than for the others."""
_SILENT_DEFAULTS = ("False", "()")
"""Defaults that help leaves out: they say no more than that the option was not given."""


def group_of(verb: str, option: str) -> str:
    """Title of the group of an option.

    >>> group_of("train", "--epochs")
    'Stopping'
    """
    if (verb, option) in ELSEWHERE:
        return ELSEWHERE[verb, option]
    return next((title for title, names in GROUPS.items() if option in names), OTHER)


def grouped(verb: str, panel: HelpPanel) -> list[HelpPanel]:
    """Split the panel of options into one for each group; arguments stay together."""
    entries = [
        entry.copy(default=None) if entry.default in _SILENT_DEFAULTS else entry
        for entry in panel.entries
    ]
    arguments = [entry for entry in entries if not _option(entry)]
    panels = [panel.copy(entries=arguments)] if arguments else []
    for title in (*GROUPS, OTHER):
        options = [
            entry for entry in entries if _option(entry) and group_of(verb, _option(entry)) == title
        ]
        if options:
            options.sort(key=lambda entry: _place(_option(entry)))
            panels.append(panel.copy(title=title, entries=options))
    return panels


def draw(verb: str, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
    """Print a panel of a verb's help, divided into groups."""
    formatter = DefaultFormatter()
    for part in grouped(verb, panel):
        formatter(console, options, part)


def _option(entry: HelpEntry) -> str:
    """Name of an option, empty for arguments; Cyclopts 4 has the names of arguments here too."""
    return next((name for name in entry.positive_names if name.startswith("--")), "")


def _place(option: str) -> int:
    """Place of an option among all options; those of no group come last."""
    ordered = [name for names in GROUPS.values() for name in names]
    return ordered.index(option) if option in ordered else len(ordered)
