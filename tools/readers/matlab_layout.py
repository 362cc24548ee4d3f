"""Roles of the variables of a MATLAB file: by kind, name and shape, or by options.

The decision needs outlines only, no values, so it is the same for every version of the format. An
ambiguous variable raises an error that names the option to give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streammiml_tools.readers.base import NONE, SourceError, SourceOptions
from streammiml_tools.readers.messages import listed

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
    """``matrix``, ``cell``, ``text``, ``other``, or ``opaque``, which is not safe to load."""
    shape: tuple[int, ...] = ()
    store: str = "float64"
    """Type of the values in the file, by NumPy's name."""
    sparse: bool = False
    items: tuple[Outline, ...] = ()
    """Items of a cell, in MATLAB's order."""
    n_bytes: int = 0
    """Approximate memory for the values."""

    @property
    def short(self) -> str:
        """Name within the struct, in lower case."""
        return self.name.rpartition(".")[2].lower()

    @property
    def top(self) -> str:
        """Name of the variable, or of the struct that it is a field of."""
        return self.name.partition(".")[0]

    @property
    def shown(self) -> str:
        """Name and shape, for messages."""
        size = "×".join(map(str, self.shape))
        return f"{self.name} ({'cell ' if self.kind == 'cell' else ''}{size})"

    @property
    def is_matrix(self) -> bool:
        """Whether the values are numbers in two dimensions."""
        return self.kind == "matrix" and len(self.shape) == 2

    @property
    def is_vector(self) -> bool:
        """Whether the values are numbers in one row or one column."""
        return self.is_matrix and min(self.shape) == 1


@dataclass(frozen=True, slots=True)
class MatlabLayout:
    """Roles of the variables of a file."""

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
    """The bag of each row, if ``bags`` is a matrix."""
    bag_order: Outline | None = None
    """Numbers of the bags in the order of the targets."""
    row_labels: Outline | None = None
    class_names: Outline | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_flat(self) -> bool:
        """Whether all rows are in one matrix."""
        return self.bag_of_row is not None

    @property
    def used(self) -> list[Outline]:
        """Variables that must be read."""
        optional = (self.bags, self.targets, self.bag_of_row, self.bag_order)
        return [
            outline
            for outline in (*optional, self.row_labels, self.class_names)
            if outline is not None
        ]

    @property
    def sizes(self) -> I64:
        """Number of rows of each bag, if ``bags`` is a cell."""
        rows = 1 if self.transposed else 0
        return np.array(
            [0 if 0 in item.shape else item.shape[rows] for item in self.bags.items], np.int64
        )


def understand(
    path: str,
    variables: Sequence[Outline],
    options: SourceOptions,
    count_bags: Callable[[Outline], int],
) -> MatlabLayout:
    """Find bags, targets and the other roles among the variables of a file.

    ``count_bags`` reads the variable with the bag of each row. It is called only if nothing else
    gives the number of bags.
    """
    cells = [outline for outline in variables if _is_bags(outline)]
    names = options.variables
    if names is not None:
        chosen = [_named(path, variables, name, "--variables") for name in names]
        if len(chosen) == 1 and _is_bags(chosen[0]):
            return _of_cell(path, variables, chosen[0], options)
        return _of_matrix(path, variables, options, chosen, count_bags)
    named = [outline for outline in cells if outline.short in BAGS]
    if len(named) == 1 or (not named and len(cells) == 1):
        return _of_cell(path, variables, (named or cells)[0], options)
    if not cells:
        return _of_matrix(path, variables, options, [], count_bags)
    raise SourceError(f"{path}: {_listed(named or cells)} could each be the bags; give --variables")


def _is_bags(outline: Outline) -> bool:
    """Whether a variable is a cell of more than one matrix."""
    return (
        outline.kind == "cell"
        and len(outline.items) > 1
        and all(item.is_matrix for item in outline.items)
        and any(0 not in item.shape for item in outline.items)
    )


def _listed(outlines: Iterable[Outline]) -> str:
    return " and ".join(outline.shown for outline in outlines)


def _named(path: str, variables: Sequence[Outline], name: str, option: str) -> Outline:
    for outline in variables:
        if name in (outline.name, outline.name.rpartition(".")[2]):
            return outline
    known = ", ".join(outline.name for outline in variables)
    raise SourceError(f"{path} has no variable {name!r}, given by {option}; it has {known}")


def _of_cell(
    path: str, variables: Sequence[Outline], bags: Outline, options: SourceOptions
) -> MatlabLayout:
    """Layout of a cell with a matrix for each bag."""
    n_bags = len(bags.items)
    row_labels = _row_label_cell(path, variables, bags, options)
    transposed, why = _orientation(path, bags, row_labels, options)
    filled = [item for item in bags.items if 0 not in item.shape]
    n_features = filled[0].shape[0 if transposed else 1]
    targets = _targets(path, variables, n_bags, bags.name, options)
    targets_transposed, n_labels = _targets_orientation(path, targets, n_bags, options)
    names = _class_names(variables, n_labels)
    rows = "features × rows" if transposed else "rows × features"
    notes = [f"{path}: bags from {bags.shown}, {n_features} features, as {rows}{why}"]
    return MatlabLayout(
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
    """Whether bags have shape (features, rows), and the reason."""
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
            f"{path}: every bag of {bags.shown} is {first[0]}×{first[1]}, so rows and features "
            "cannot be told apart; give --transposed (features × rows) or --no-transposed"
        )
    return False, ", the usual way, as all bags have one shape (--transposed for the other)"


def _ragged(path: str, filled: list[tuple[int, tuple[int, ...]]], axis: int) -> SourceError:
    first = filled[0][1]
    bag, shape = next((bag, shape) for bag, shape in filled if shape[axis] != first[axis])
    return SourceError(
        f"{path}, bag {bag}: {shape[0]}×{shape[1]}, but bag {filled[0][0]} is "
        f"{first[0]}×{first[1]}: the number of features differs; leave one bag out, or "
        "give --transposed"
    )


def _by_row_labels(bags: Outline, row_labels: Outline) -> bool | None:
    """Whether bags are (features, rows), by the lines of their row labels; None if unclear."""
    pairs = [
        (bag.shape, labels.shape)
        for bag, labels in zip(bags.items, row_labels.items, strict=True)
        if 0 not in bag.shape
    ]
    fits = [all(shape[axis] == marks[0] for shape, marks in pairs) for axis in (0, 1)]
    return fits[1] if fits[0] != fits[1] else None


def _row_label_variable(
    path: str,
    variables: Sequence[Outline],
    options: SourceOptions,
    may_be: Callable[[Outline], bool],
) -> Outline | None:
    """Variable of the row labels: the variable that the option names, or the only candidate."""
    if options.row_label_column == NONE:
        return None
    if options.row_label_column is not None:
        return _named(path, variables, options.row_label_column, "--row-label-column")
    candidates = [
        variable for variable in variables if variable.short in ROW_LABELS and may_be(variable)
    ]
    if len(candidates) > 1:
        raise SourceError(
            f"{path}: {_listed(candidates)} could each be row labels; give --row-label-column"
        )
    return candidates[0] if candidates else None


def _row_label_cell(
    path: str, variables: Sequence[Outline], bags: Outline, options: SourceOptions
) -> Outline | None:
    labels = _row_label_variable(
        path, variables, options, lambda outline: _is_bags(outline) and outline != bags
    )
    if labels is not None and len(labels.items) != len(bags.items):
        raise SourceError(
            f"{path}: row labels {labels.shown} are not as many as the bags, {bags.shown}; "
            "--row-label-column none leaves them out"
        )
    return labels


def _targets(
    path: str, variables: Sequence[Outline], n_bags: int, bags: str, options: SourceOptions
) -> Outline:
    if options.label_columns is not None:
        if len(options.label_columns) != 1:
            raise SourceError(f"{path}: --label-columns names one variable of a MATLAB file")
        candidates = [_named(path, variables, options.label_columns[0], "--label-columns")]
        if not candidates[0].is_matrix or n_bags not in candidates[0].shape:
            raise SourceError(
                f"{path}: {candidates[0].shown} cannot be the targets of {n_bags} bags; neither "
                "side has that length"
            )
        return candidates[0]
    fitting = [outline for outline in variables if outline.is_matrix and n_bags in outline.shape]
    candidates = [
        outline for outline in fitting if outline.short in TARGETS and outline.name != bags
    ]
    if len(candidates) > 1:
        side = bags.rpartition(".")[2].partition("_")[0].lower()
        candidates = [
            outline for outline in candidates if outline.short.startswith(f"{side}_")
        ] or candidates
    if len(candidates) > 1:
        raise SourceError(
            f"{path}: {_listed(candidates)} could each be the targets; give --label-columns"
        )
    if not candidates:
        others = [outline for outline in fitting if outline.name != bags]
        hint = f"; {_listed(others)} would fit" if others else ""
        raise SourceError(
            f"{path}: no variable called targets, labels, Y or the like has {n_bags} rows or "
            f"columns{hint}; name it by --label-columns"
        )
    return candidates[0]


def _targets_orientation(
    path: str, targets: Outline, n_bags: int, options: SourceOptions
) -> tuple[bool, int]:
    """Whether targets have shape (labels, bags), and the number of labels."""
    up = options.labels_transposed
    rows, columns = targets.shape
    if up is None:
        if rows == columns:
            raise SourceError(
                f"{path}: targets {targets.shown} are square, so bags and labels cannot be told "
                "apart; give --labels-transposed (labels × bags) or --no-labels-transposed"
            )
        up = columns == n_bags
    if (columns if up else rows) != n_bags:
        layout = "labels × bags" if up else "bags × labels"
        raise SourceError(
            f"{path}: targets {targets.shown} cannot be {layout} of {n_bags} bags; "
            "leave --labels-transposed out"
        )
    return up, rows if up else columns


def _class_names(variables: Sequence[Outline], n_labels: int) -> Outline | None:
    candidates = [
        outline
        for outline in variables
        if outline.kind == "cell"
        and outline.short in CLASS_NAMES
        and len(outline.items) == n_labels
        and all(item.kind == "text" for item in outline.items)
    ]
    return candidates[0] if len(candidates) == 1 else None


def _of_matrix(
    path: str,
    variables: Sequence[Outline],
    options: SourceOptions,
    chosen: Sequence[Outline],
    count_bags: Callable[[Outline], int],
) -> MatlabLayout:
    """Layout of one matrix of all rows, with another variable for the bag of each row."""
    indices = [outline for outline in chosen if outline.is_vector] or [
        outline for outline in variables if outline.is_vector and outline.short in BAG_OF_ROW
    ]
    rows = [outline for outline in chosen if not outline.is_vector] or [
        outline
        for outline in variables
        if outline.is_matrix and not outline.is_vector and outline.short in BAGS
    ]
    for candidates, what in ((rows, "the rows"), (indices, "the bag of each row")):
        if len(candidates) > 1:
            raise SourceError(
                f"{path}: {_listed(candidates)} could each be {what}; give --variables"
            )
    if not rows or not indices or not rows[0].is_matrix:
        have = ", ".join(outline.shown for outline in variables) or "nothing"
        raise SourceError(
            f"{path} has no cell of bags, and no matrix of rows with the bag of each row; it has "
            f"{have}; name by --variables the bags, or the rows and the bag of each row"
        )
    matrix, index = rows[0], indices[0]
    n_rows = max(index.shape)
    transposed = _matrix_orientation(path, matrix, n_rows, options)
    n_features = matrix.shape[0 if transposed else 1]
    order = next(
        (outline for outline in variables if outline.is_vector and outline.short in BAG_ORDER), None
    )
    n_bags = max(order.shape) if order is not None else count_bags(index)
    targets = _targets(path, variables, n_bags, matrix.name, options)
    targets_transposed, n_labels = _targets_orientation(path, targets, n_bags, options)
    row_labels = _row_label_matrix(path, variables, targets, n_rows, options)
    names = _class_names(variables, n_labels)
    side = "features × rows" if transposed else "rows × features"
    notes = [f"{path}: rows from {matrix.shown}, as {side}; the bag of each from {index.shown}"]
    return MatlabLayout(
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


def _matrix_orientation(path: str, matrix: Outline, n_rows: int, options: SourceOptions) -> bool:
    if options.transposed is None and matrix.shape[0] == matrix.shape[1]:
        raise SourceError(
            f"{path}: {matrix.shown} is square, so rows and features cannot be told apart; "
            "give --transposed (features × rows) or --no-transposed"
        )
    up = matrix.shape[0] != n_rows if options.transposed is None else options.transposed
    if matrix.shape[1 if up else 0] != n_rows:
        raise SourceError(
            f"{path}: {matrix.shown} has no side of {n_rows}, the number of rows whose bag is given"
        )
    return up


def _row_label_matrix(
    path: str, variables: Sequence[Outline], targets: Outline, n_rows: int, options: SourceOptions
) -> Outline | None:
    labels = _row_label_variable(
        path,
        variables,
        options,
        lambda outline: outline.is_matrix and outline != targets and n_rows in outline.shape,
    )
    if labels is not None and labels.shape[0] != n_rows:
        raise SourceError(
            f"{path}: row labels {labels.shown} do not have a line for each of {n_rows} rows; "
            "--row-label-column none leaves them out"
        )
    return labels


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
    notes = [*notes, f"{path}: targets from {targets.shown}, as {side}"]
    if row_labels is not None:
        notes.append(f"{path}: row labels from {row_labels.shown}")
    if names is not None:
        notes.append(f"{path}: names of labels from {names.shown}")
    used = {outline.name for outline in (*taken, targets, row_labels, names) if outline is not None}
    unused = [outline.shown for outline in variables if outline.name not in used]
    return (*notes, f"{path}: not used: {listed(unused)}") if unused else tuple(notes)


def narrowest(stores: Iterable[str]) -> str:
    """Narrowest row type of a store that holds values of these types exactly, else float32."""
    kinds = set(stores) - {"bool"} or {"uint8"}
    if len(kinds) == 1 and kinds <= {"uint8", "int8", "int16"}:
        return next(iter(kinds))
    return "int16" if kinds <= {"uint8", "int8", "int16"} else "float32"
