"""Labels of a source that ``--labels`` does not name: ``--unknown-labels`` drops or appends them.

The source is then read with its own labels, and they are numbered again, bag for bag. The new
labels of ``append`` come in the order that the scan has found (of columns, else of the alphabet),
which depends neither on parts nor on workers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streammiml.bags.block import BagBlock
from streammiml.bags.offsets import from_sizes
from streammiml_tools.readers.base import Scan, SourceError, SourceOptions
from streammiml_tools.readers.labelling import is_number
from streammiml_tools.readers.messages import listed

I64 = NDArray[np.int64]


class MappedBags(NamedTuple):
    """Bags with the labels of the store, and what was left out."""

    block: BagBlock
    n_dropped: int
    """Labels of bags that were dropped, each counted once for each of its bags."""
    n_bags: int
    """Bags that lost a label."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelMap:
    """The label numbers of a store for the label numbers of its source."""

    names: tuple[str, ...]
    """Names of all labels of the store."""
    numbers: I64 | None
    """Number in the store of each label of the source, −1 for a label to drop; None if labels of
    the source are numbers, which stay as they are."""
    drops: bool
    new: tuple[str, ...]
    """Labels of the source that ``--labels`` does not name; empty if labels are numbers."""

    @property
    def note(self) -> str | None:
        """A line for the user about the new labels; None if there are none."""
        if not self.new:
            return None
        count = "1 label is" if len(self.new) == 1 else f"{len(self.new):,} labels are"
        what = (
            "dropped" if self.drops else f"appended after the {len(self.names) - len(self.new):,}"
        )
        return f"{count} not in --labels and {what}: {listed(self.new)}"

    def apply(self, block: BagBlock, where: str) -> MappedBags:
        """Return the bags with the label numbers of the store; labels are not sorted.

        Unknown labels are dropped, and unknown row labels become −1.
        """
        labels = self._mapped(block.label_indices, where)
        row_labels = block.row_labels
        if row_labels is not None:
            known = row_labels >= 0
            row_labels = row_labels.copy()
            row_labels[known] = self._mapped(row_labels[known], where)
        keep = labels >= 0
        sizes = np.diff(block.label_offsets)
        bags = np.repeat(np.arange(len(sizes)), sizes)
        kept = np.bincount(bags[keep], minlength=len(sizes))
        mapped = replace(
            block,
            label_offsets=from_sizes(kept),
            label_indices=labels[keep],
            row_labels=row_labels,
        )
        return MappedBags(mapped, int((~keep).sum()), int((kept < sizes).sum()))

    def _mapped(self, labels: NDArray[np.int32], where: str) -> NDArray[np.int32]:
        if self.numbers is not None:
            return self.numbers[labels].astype(np.int32)
        unknown = labels >= len(self.names)
        if unknown.any() and not self.drops:
            raise SourceError(
                f"{where}: label {int(labels[unknown][0])} is not among the numbers 0 to "
                f"{len(self.names) - 1}, and a number has no name to append; list all labels in "
                "--labels, or give --unknown-labels drop"
            )
        return np.where(unknown, -1, labels).astype(np.int32)


def options_of_source(options: SourceOptions) -> SourceOptions:
    """Return the options to read labels by: without ``--labels``, if unknown ones are allowed."""
    if options.unknown_labels == "refuse":
        return options
    return replace(options, labels=None, unknown_labels="refuse")


def label_map(scan: Scan, options: SourceOptions, name: str) -> LabelMap | None:
    """Return the map from the labels of a scan to those of ``--labels``.

    Returns None if unknown labels are refused, which the reader does.
    """
    given = options.labels
    if options.unknown_labels == "refuse" or given is None:
        return None
    drops = options.unknown_labels == "drop"
    if scan.label_names is None:
        # Whether 7 is the number of a label or its name, nobody can tell.
        if any(is_number(label) for label in given) and given != tuple(map(str, range(len(given)))):
            raise SourceError(
                f"{name}: labels are numbers, and so are names of --labels ({listed(given)}); "
                f"leave out --unknown-labels {options.unknown_labels}"
            )
        return LabelMap(given, None, drops, ())
    place = {label: number for number, label in enumerate(given)}
    new = tuple(label for label in scan.label_names if label not in place)
    if drops and len(new) == len(scan.label_names):
        raise SourceError(
            f"{name}: none of the labels is named by --labels: {listed(scan.label_names)}; "
            f"--labels names {listed(given)}"
        )
    names = given if drops else given + new
    if not drops:
        place |= {label: len(given) + number for number, label in enumerate(new)}
    numbers = np.array([place.get(label, -1) for label in scan.label_names], np.int64)
    return LabelMap(names, numbers, drops, new)
