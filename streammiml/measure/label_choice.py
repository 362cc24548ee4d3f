"""Labels that a user asks for, by name or number, as numbers of a model's labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from streammiml.errors import StreammimlError

Labels = str | int | Iterable[str | int]
"""A name or number, several of them, or a text with names joined by commas, or ``all``."""

ALL = "all"
MOST_SHOWN = 20
"""Upper limit for the names that a message lists."""


def chosen_labels(
    labels: Labels | None, names: Sequence[str] | None, n_labels: int
) -> tuple[int, ...]:
    """Numbers of the labels asked for, in that order; None and ``all`` mean every label.

    A text is a name; if no label has this name, it is a number, names joined by commas, or
    ``all``.
    """
    if labels is None:
        return tuple(range(n_labels))
    known = {name: number for number, name in enumerate(names or ())}
    if isinstance(labels, str) and labels not in known:
        if labels == ALL:
            return tuple(range(n_labels))
        labels = [part.strip() for part in labels.split(",")]
    elif isinstance(labels, str) or not isinstance(labels, Iterable):
        labels = [labels]
    numbers = tuple(_number(label, known, n_labels) for label in labels)
    if not numbers:
        raise StreammimlError(f"labels is empty; known: {_shown(names, n_labels)}")
    for number in numbers:
        if numbers.count(number) > 1:
            name = names[number] if names else number
            raise StreammimlError(f"labels has {name!r} twice; give each label once")
    return numbers


def _number(label: object, known: dict[str, int], n_labels: int) -> int:
    """Number of one label; a number may be a text, as the command line gives it."""
    number: object = label
    if isinstance(label, str):
        number = known.get(label, int(label) if label.isdecimal() else None)
    elif isinstance(label, np.integer):
        number = int(label)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < n_labels:
        shown = _shown([*known] or None, n_labels)
        raise StreammimlError(f"no label is called {label!r}; known: {shown}")
    return number


def _shown(names: Sequence[str] | None, n_labels: int) -> str:
    """The names of all labels, or the first of many; the range of numbers without names."""
    if names is None:
        return f"0 to {n_labels - 1}"
    more = len(names) - MOST_SHOWN
    return ", ".join(names[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
