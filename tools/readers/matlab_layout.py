"""Which variable of a MATLAB file is what: told by kind, name and shape, or asked for.

Works on outlines, without values, so that it is the same for every version of the format. What
could be two things is an error that names the option to give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streammiml_tools.readers.base import NONE, SourceError, SourceOptions

I64 = NDArray[np.int64]

BAGS = {"bags", "bag", "data", "x", "instances", "train_bags", "train_bag", "train_data"}
BAGS |= {"test_bags", "test_bag", "test_data"}
TARGETS = {"targets", "target", "labels", "label", "y", "yb", "train_targets", "train_target"}
TARGETS |= {"test_targets", "test_target", "train_labels", "train_label", "test_labels"}
TARGETS |= {"test_label", "bag_labels", "bag_targets"}
ROW_LABELS = {"y", "yr", "row_labels", "instance_labels", "inst_labels", "instance_label"}
BAG_OF_ROW = {"xtb", "bag", "bags", "bag_id", "bag_ids", "bagid", "bag_index", "bag_of_row"}
BAG_ORDER = {"b"}
CLASS_NAMES = {"class_name", "class_names", "classes", "label_name", "label_names", "classname"}


@dataclass(frozen=True, slots=True)
class Outline:
    """A variable without its values; fields of a struct are called ``DD.X``."""

    name: str
    kind: str
    """``matrix``, ``cell``, ``text``, ``other``, or ``opaque``: nothing that we dare to load."""
    shape: tuple[int, ...] = ()
    store: str = "float64"
    """Type of the values in the file, by NumPy's name."""
    sparse: bool = False
    items: tuple[Outline, ...] = ()
    """Of a cell, in MATLAB's order."""
    n_bytes: int = 0
    """That it takes when loaded, about."""

    @property
    def short(self) -> str:
        """Its name within its struct, in small letters."""
        return self.name.rpartition(".")[2].lower()

    @property
    def top(self) -> str:
        """The variable that it is, or is a field of."""
        return self.name.partition(".")[0]

    @property
    def said(self) -> str:
        """Name and shape, for messages."""
        size = "×".join(map(str, self.shape))
        return f"{self.name} ({'cell ' if self.kind == 'cell' else ''}{size})"

    @property
    def is_matrix(self) -> bool:
        """Whether it holds numbers in two dimensions."""
        return self.kind == "matrix" and len(self.shape) == 2

    @property
    def is_vector(self) -> bool:
        """Whether it holds numbers in a row or a column."""
        return self.is_matrix and min(self.shape) == 1


@dataclass(frozen=True, slots=True)
class Layout:
    """What was understood of a file."""

    bags: Outline
    """A cell of bags, or a matrix of all rows."""
    transposed: bool
    n_features: int
    dtype: str
    sparse: bool
    targets: Outline
    targets_transposed: bool
    n_labels: int
    n_bags: int
    bag_of_row: Outline | None = None
    """The bag of each row, where bags are a matrix."""
    bag_order: Outline | None = None
    """Numbers of the bags in the order of the targets."""
    row_labels: Outline | None = None
    class_names: Outline | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_flat(self) -> bool:
        """Whether all rows lie in one matrix."""
        return self.bag_of_row is not None

    @property
    def used(self) -> list[Outline]:
        """Variables that must be read."""
        some = (self.bags, self.targets, self.bag_of_row, self.bag_order)
        return [one for one in (*some, self.row_labels, self.class_names) if one is not None]

    @property
    def sizes(self) -> I64:
        """Rows of each bag, where bags are a cell."""
        rows = 1 if self.transposed else 0
        return np.array(
            [0 if 0 in item.shape else item.shape[rows] for item in self.bags.items], np.int64
        )


def understand(
    path: str,
    variables: Sequence[Outline],
    options: SourceOptions,
    count_bags: Callable[[Outline], int],
) -> Layout:
    """Find bags, targets and the rest among the variables of a file.

    ``count_bags`` is asked where only the values of a variable, the bag of each row, tell how many
    bags there are.
    """
    cells = [one for one in variables if _is_bags(one)]
    wanted = options.variables
    if wanted is not None:
        chosen = [_named(path, variables, name, "--variables") for name in wanted]
        if len(chosen) == 1 and _is_bags(chosen[0]):
            return _of_cell(path, variables, chosen[0], options)
        return _of_matrix(path, variables, options, chosen, count_bags)
    named = [one for one in cells if one.short in BAGS]
    if len(named) == 1 or (not named and len(cells) == 1):
        return _of_cell(path, variables, (named or cells)[0], options)
    if not cells:
        return _of_matrix(path, variables, options, [], count_bags)
    raise SourceError(
        f"{path}: {_listed(named or cells)} could each be the bags; --variables says which"
    )


def _is_bags(one: Outline) -> bool:
    """Whether this is a cell of matrices, more than one."""
    return (
        one.kind == "cell"
        and len(one.items) > 1
        and all(item.is_matrix for item in one.items)
        and any(0 not in item.shape for item in one.items)
    )


def _listed(some: Iterable[Outline]) -> str:
    return " and ".join(one.said for one in some)


def _named(path: str, variables: Sequence[Outline], name: str, option: str) -> Outline:
    for one in variables:
        if name in (one.name, one.name.rpartition(".")[2]):
            return one
    known = ", ".join(one.name for one in variables)
    raise SourceError(f"{path} has no variable {name!r}, given by {option}; it has {known}")


def _of_cell(
    path: str, variables: Sequence[Outline], bags: Outline, options: SourceOptions
) -> Layout:
    """Bags in a cell, a matrix each."""
    n_bags = len(bags.items)
    row_labels = _row_label_cell(path, variables, bags, options)
    transposed, why = _orientation(path, bags, row_labels, options)
    filled = [item for item in bags.items if 0 not in item.shape]
    n_features = filled[0].shape[0 if transposed else 1]
    targets = _targets(path, variables, n_bags, bags.name, options)
    targets_transposed, n_labels = _targets_up(path, targets, n_bags, options)
    names = _class_names(variables, n_labels)
    rows = "features × rows" if transposed else "rows × features"
    notes = [f"{path}: bags from {bags.said}, {n_features} features, as {rows}{why}"]
    return Layout(
        bags=bags,
        transposed=transposed,
        n_features=n_features,
        dtype=narrowest(item.store for item in filled),
        sparse=all(item.sparse for item in filled),
        targets=targets,
        targets_transposed=targets_transposed,
        n_labels=n_labels,
        n_bags=n_bags,
        row_labels=row_labels,
        class_names=names,
        notes=_notes(
            path, notes, variables, [bags], targets, targets_transposed, row_labels, names
        ),
    )


def _orientation(
    path: str, bags: Outline, row_labels: Outline | None, options: SourceOptions
) -> tuple[bool, str]:
    """Whether bags lie (features, rows), and why."""
    filled = [(i, item.shape) for i, item in enumerate(bags.items) if 0 not in item.shape]
    first = filled[0][1]
    same = [all(shape[axis] == first[axis] for _, shape in filled) for axis in (0, 1)]
    if options.transposed is not None:
        if not same[0 if options.transposed else 1]:
            raise _ragged(path, filled, 0 if options.transposed else 1)
        return options.transposed, ", as asked"
    if row_labels is not None and (up := _by_row_labels(bags, row_labels)) is not None:
        return up, f", as {row_labels.name} has a line a row"
    if not any(same):
        raise _ragged(path, filled, 1)
    if not all(same):
        return same[0], ", as that number is the same in all"
    if first[0] == first[1] and len(filled) > 0:
        raise SourceError(
            f"{path}: every bag of {bags.said} is {first[0]}×{first[1]}, so rows and features "
            "cannot be told apart; give --transposed (features × rows) or --no-transposed"
        )
    return False, ", the usual way, as all bags have one shape (--transposed for the other)"


def _ragged(path: str, filled: list[tuple[int, tuple[int, ...]]], axis: int) -> SourceError:
    first = filled[0][1]
    bag, shape = next((bag, shape) for bag, shape in filled if shape[axis] != first[axis])
    return SourceError(
        f"{path}, bag {bag}: {shape[0]}×{shape[1]}, but bag {filled[0][0]} is "
        f"{first[0]}×{first[1]}: the number of features differs; leave one out, or --transposed"
    )


def _by_row_labels(bags: Outline, row_labels: Outline) -> bool | None:
    """Orientation of bags whose row labels are a line a row; None if that does not tell."""
    pairs = [
        (bag.shape, labels.shape)
        for bag, labels in zip(bags.items, row_labels.items, strict=True)
        if 0 not in bag.shape
    ]
    fits = [all(shape[axis] == marks[0] for shape, marks in pairs) for axis in (0, 1)]
    return fits[1] if fits[0] != fits[1] else None


def _row_label_cell(
    path: str, variables: Sequence[Outline], bags: Outline, options: SourceOptions
) -> Outline | None:
    if options.row_label_column == NONE:
        return None
    if options.row_label_column is not None:
        found = [_named(path, variables, options.row_label_column, "--row-label-column")]
    else:
        found = [
            one for one in variables if _is_bags(one) and one.short in ROW_LABELS and one != bags
        ]
    if len(found) > 1:
        raise SourceError(
            f"{path}: {_listed(found)} could each be row labels; --row-label-column says which"
        )
    if found and len(found[0].items) != len(bags.items):
        raise SourceError(
            f"{path}: row labels {found[0].said} are not as many as the bags, {bags.said}; "
            "--row-label-column none leaves them out"
        )
    return found[0] if found else None


def _targets(
    path: str, variables: Sequence[Outline], n_bags: int, bags: str, options: SourceOptions
) -> Outline:
    if options.label_columns is not None:
        if len(options.label_columns) != 1:
            raise SourceError(f"{path}: --label-columns names one variable of a MATLAB file")
        found = [_named(path, variables, options.label_columns[0], "--label-columns")]
        if not found[0].is_matrix or n_bags not in found[0].shape:
            raise SourceError(
                f"{path}: {found[0].said} cannot be the targets of {n_bags} bags; neither side "
                "has that length"
            )
        return found[0]
    fitting = [one for one in variables if one.is_matrix and n_bags in one.shape]
    found = [one for one in fitting if one.short in TARGETS and one.name != bags]
    if len(found) > 1:
        side = bags.rpartition(".")[2].partition("_")[0].lower()
        found = [one for one in found if one.short.startswith(f"{side}_")] or found
    if len(found) > 1:
        raise SourceError(
            f"{path}: {_listed(found)} could each be the targets; --label-columns says which"
        )
    if not found:
        others = [one for one in fitting if one.name != bags]
        hint = f"; {_listed(others)} would fit" if others else ""
        raise SourceError(
            f"{path}: no variable called targets, labels, Y or the like has {n_bags} rows or "
            f"columns{hint}; --label-columns names it"
        )
    return found[0]


def _targets_up(
    path: str, targets: Outline, n_bags: int, options: SourceOptions
) -> tuple[bool, int]:
    """Whether targets lie (labels, bags), and the number of labels."""
    up = options.labels_transposed
    rows, columns = targets.shape
    if up is None:
        if rows == columns:
            raise SourceError(
                f"{path}: targets {targets.said} are square, so bags and labels cannot be told "
                "apart; give --labels-transposed (labels × bags) or --no-labels-transposed"
            )
        up = columns == n_bags
    if (columns if up else rows) != n_bags:
        said = "labels × bags" if up else "bags × labels"
        raise SourceError(
            f"{path}: targets {targets.said} cannot be {said} of {n_bags} bags; "
            "leave --labels-transposed out"
        )
    return up, rows if up else columns


def _class_names(variables: Sequence[Outline], n_labels: int) -> Outline | None:
    found = [
        one
        for one in variables
        if one.kind == "cell"
        and one.short in CLASS_NAMES
        and len(one.items) == n_labels
        and all(item.kind == "text" for item in one.items)
    ]
    return found[0] if len(found) == 1 else None


def _of_matrix(
    path: str,
    variables: Sequence[Outline],
    options: SourceOptions,
    chosen: Sequence[Outline],
    count_bags: Callable[[Outline], int],
) -> Layout:
    """All rows in one matrix, with the bag of each beside."""
    indices = [one for one in chosen if one.is_vector] or [
        one for one in variables if one.is_vector and one.short in BAG_OF_ROW
    ]
    rows = [one for one in chosen if not one.is_vector] or [
        one for one in variables if one.is_matrix and not one.is_vector and one.short in BAGS
    ]
    for found, what in ((rows, "the rows"), (indices, "the bag of each row")):
        if len(found) > 1:
            raise SourceError(
                f"{path}: {_listed(found)} could each be {what}; --variables says which"
            )
    if not rows or not indices or not rows[0].is_matrix:
        have = ", ".join(one.said for one in variables) or "nothing"
        raise SourceError(
            f"{path} has no cell of bags, and no matrix of rows with the bag of each; it has "
            f"{have}; --variables names the bags, or rows and bag of each"
        )
    matrix, index = rows[0], indices[0]
    n_rows = max(index.shape)
    transposed = _matrix_up(path, matrix, n_rows, options)
    n_features = matrix.shape[0 if transposed else 1]
    order = next((one for one in variables if one.is_vector and one.short in BAG_ORDER), None)
    n_bags = max(order.shape) if order is not None else count_bags(index)
    targets = _targets(path, variables, n_bags, matrix.name, options)
    targets_transposed, n_labels = _targets_up(path, targets, n_bags, options)
    row_labels = _row_label_matrix(path, variables, targets, n_rows, options)
    names = _class_names(variables, n_labels)
    side = "features × rows" if transposed else "rows × features"
    notes = [f"{path}: rows from {matrix.said}, as {side}; the bag of each from {index.said}"]
    return Layout(
        bags=matrix,
        transposed=transposed,
        n_features=n_features,
        dtype=narrowest([matrix.store]),
        sparse=matrix.sparse,
        targets=targets,
        targets_transposed=targets_transposed,
        n_labels=n_labels,
        n_bags=n_bags,
        bag_of_row=index,
        bag_order=order,
        row_labels=row_labels,
        class_names=names,
        notes=_notes(
            path,
            notes,
            variables,
            [matrix, index, *([order] if order else [])],
            targets,
            targets_transposed,
            row_labels,
            names,
        ),
    )


def _matrix_up(path: str, matrix: Outline, n_rows: int, options: SourceOptions) -> bool:
    if options.transposed is None and matrix.shape[0] == matrix.shape[1]:
        raise SourceError(
            f"{path}: {matrix.said} is square, so rows and features cannot be told apart; "
            "give --transposed (features × rows) or --no-transposed"
        )
    up = matrix.shape[0] != n_rows if options.transposed is None else options.transposed
    if matrix.shape[1 if up else 0] != n_rows:
        raise SourceError(
            f"{path}: {matrix.said} has no side of {n_rows}, the number of rows whose bag is given"
        )
    return up


def _row_label_matrix(
    path: str, variables: Sequence[Outline], targets: Outline, n_rows: int, options: SourceOptions
) -> Outline | None:
    if options.row_label_column == NONE:
        return None
    if options.row_label_column is not None:
        found = [_named(path, variables, options.row_label_column, "--row-label-column")]
    else:
        found = [
            one
            for one in variables
            if one.is_matrix and one.short in ROW_LABELS and one != targets and n_rows in one.shape
        ]
    if len(found) > 1:
        raise SourceError(
            f"{path}: {_listed(found)} could each be row labels; --row-label-column says which"
        )
    if found and found[0].shape[0] != n_rows:
        raise SourceError(
            f"{path}: row labels {found[0].said} have not a line for each of {n_rows} rows; "
            "--row-label-column none leaves them out"
        )
    return found[0] if found else None


def _notes(
    path: str,
    notes: list[str],
    variables: Sequence[Outline],
    taken: list[Outline],
    targets: Outline,
    up: bool,
    row_labels: Outline | None,
    names: Outline | None,
) -> tuple[str, ...]:
    side = "labels × bags" if up else "bags × labels"
    notes = [*notes, f"{path}: targets from {targets.said}, as {side}"]
    if row_labels is not None:
        notes.append(f"{path}: row labels from {row_labels.said}")
    if names is not None:
        notes.append(f"{path}: names of labels from {names.said}")
    used = {one.name for one in (*taken, targets, row_labels, names) if one is not None}
    rest = [one.said for one in variables if one.name not in used]
    return (*notes, f"{path}: not used: {', '.join(rest)}") if rest else tuple(notes)


def narrowest(stores: Iterable[str]) -> str:
    """The type of a store that holds values of these types exactly; float32 for all others."""
    kinds = set(stores) - {"bool"} or {"uint8"}
    if len(kinds) == 1 and kinds <= {"uint8", "int8", "int16"}:
        return next(iter(kinds))
    return "int16" if kinds <= {"uint8", "int8", "int16"} else "float32"
