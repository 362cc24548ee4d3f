"""Roles of MATLAB variables: what is clear, what is refused, what options settle."""

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.matlab import READER
from tests.stores import assert_same
from tests.tools.readers.foreign import (
    marks_of,
    read_all,
)
from tests.tools.readers.matlab_corpora import (
    BAGS,
    CELLS,
    FEW,
    MARKS,
    SQUARE,
    block_of,
    made,
    versions,
    write,
)
from tests.tools.readers.matlab_files import cell


@versions
def test_matlab__what_was_understood_is_told(tmp_path, version):
    bags, marks = made()
    other = {"idx": np.ones((1, 2)), "class_name": cell(["sea", "sky", "sun", "tree"])}
    path = write(tmp_path, version, {"bags": cell([b.T for b in bags]), "Y": marks.T} | other)
    scan, block = read_all(READER, path)
    assert sorted(scan.notes) == sorted(
        [
            f"{path}: bags from bags (cell 6×1), 3 features, as features × rows, "
            "as that number is the same in all",
            f"{path}: targets from Y (4×6), as labels × bags",
            f"{path}: names of labels from class_name (cell 4×1)",
            f"{path}: not used: idx (1×2)",
        ]
    )
    assert scan.label_names == ("sea", "sky", "sun", "tree")
    assert_same(block, block_of(bags, marks))
    assert (scan.holds_bytes > 0) == (version == "5")


@versions
def test_matlab__bags_of_one_shape_lie_the_usual_way(tmp_path, version):
    bags, marks = [np.full((2, 3), i) + 0.5 for i in range(5)], np.eye(5)[:, :4]
    path = write(tmp_path, version, {"bags": cell(bags), "Y": marks})
    scan, block = read_all(READER, path)
    assert "the usual way, as all bags have one shape (--transposed for the other)" in scan.notes[0]
    assert_same(block, block_of(bags, marks))
    assert read_all(READER, path, transposed=True)[1].n_features == 2


ROWS = np.concatenate(BAGS)
INDEX = np.repeat(np.arange(1, 7), [len(bag) for bag in BAGS])[:, None]
UNCLEAR = {
    "square targets": (
        {"bags": FEW, "Y": np.eye(4)},
        {},
        r"targets Y \(4×4\) are square, so bags and labels cannot be told apart; give "
        r"--labels-transposed \(labels × bags\) or --no-labels-transposed",
    ),
    "square bags": (
        {"bags": cell(SQUARE), "Y": MARKS[:5]},
        {},
        r"every bag of bags \(cell 5×1\) is 3×3, so rows and features cannot be told apart; give "
        r"--transposed \(features × rows\) or --no-transposed",
    ),
    "two targets": (
        {"bags": CELLS, "Y": MARKS, "labels": MARKS},
        {},
        r"(Y|labels) \(6×4\) and (Y|labels) \(6×4\) could each be the targets; give "
        r"--label-columns",
    ),
    "two bags": (
        {"bags": CELLS, "data": CELLS, "Y": MARKS},
        {},
        r"bags \(cell 6×1\) and data \(cell 6×1\) could each be the bags; give --variables",
    ),
    "two row labels": (
        {"bags": CELLS, "Y": MARKS, "y": CELLS, "YR": CELLS},
        {},
        r"(y|YR) .* could each be row labels; give --row-label-column",
    ),
    "no targets": (
        {"bags": CELLS, "M": MARKS},
        {},
        r"no variable called targets, labels, Y or the like has 6 rows or columns; M \(6×4\) would "
        "fit; name it by --label-columns",
    ),
    "targets of others": (
        {"bags": CELLS, "Y": MARKS[:3]},
        {"label_columns": ("Y",)},
        r"Y \(3×4\) cannot be the targets of 6 bags; neither side has that length",
    ),
    "many targets": (
        {"bags": CELLS, "Y": MARKS},
        {"label_columns": ("Y", "Z")},
        r"--label-columns names one variable of a MATLAB file",
    ),
    "targets turned": (
        {"bags": CELLS, "Y": MARKS},
        {"labels_transposed": True},
        r"targets Y \(6×4\) cannot be labels × bags of 6 bags; leave --labels-transposed out",
    ),
    "no such variable": (
        {"bags": CELLS, "Y": MARKS},
        {"variables": ("sacks",)},
        r"has no variable 'sacks', given by --variables; it has (bags, Y|Y, bags)",
    ),
    "nothing": (
        {"a": np.ones((3, 3))},
        {},
        r"has no cell of bags, and no matrix of rows with the bag of each row; it has a \(3×3\); "
        "name by --variables the bags",
    ),
    "ragged": (
        {"bags": cell([*BAGS[:5], np.ones((9, 4))]), "Y": MARKS},
        {},
        r"bag 5: 9×4, but bag 0 is 2×3: the number of features differs; leave one bag out",
    ),
    "ragged as asked": (
        {"bags": CELLS, "Y": MARKS},
        {"transposed": True},
        r"bag 1: 3×3, but bag 0 is 2×3: the number of features differs",
    ),
    "row labels of others": (
        {"bags": CELLS, "Y": MARKS, "y": FEW},
        {},
        r"row labels y \(cell 4×1\) are not as many as the bags, bags \(cell 6×1\); "
        "--row-label-column none leaves them out",
    ),
    "row labels of another shape": (
        {"bags": CELLS, "Y": MARKS, "y": cell([np.ones((len(bag), 2)) for bag in BAGS])},
        {},
        r", y, bag 0: row labels are 2×2, expected 2×4; --row-label-column none",
    ),
    "two labels a row": (
        {"bags": CELLS, "Y": MARKS, "y": cell([np.ones((len(bag), 4)) for bag in BAGS])},
        {},
        r", y, from bag 0 on, row 0: not one label a row \(2 such rows\); --row-label-column none",
    ),
    "wrong mark": (
        {"bags": CELLS, "Y": MARKS * 3},
        {},
        r", Y, bag \d: the mark of label \d is 3.0 \(\d+ such marks\), expected 0 and 1, or -1",
    ),
    "wrong sparse mark": (
        {"bags": CELLS, "Y": scipy.sparse.csc_array(MARKS * 3)},
        {},
        r", Y: a mark is 3.0, expected 0 and 1",
    ),
    "NaN": (
        {"bags": cell([*BAGS[:5], np.array([[1, 2, 3], [1, np.nan, 3]])]), "Y": MARKS},
        {},
        r", bags, bag 5, row 1: value is nan \(1 such values nearby\); only finite numbers",
    ),
    "large": (
        {"bags": cell([*BAGS[:5], np.array([[1, 2, 1e300]])]), "Y": MARKS},
        {},
        r", bags, bag 5, row 0: value is 1e\+300",
    ),
    "sparse NaN": (
        {"bags": cell([scipy.sparse.csc_array(bag * np.nan) for bag in BAGS]), "Y": MARKS},
        {},
        r", bags, bag 0, row 0: value is nan",
    ),
    "bag comes back": (
        {"X": ROWS[:5], "XtB": np.array([[1, 1, 2, 3, 2]]).T, "YB": MARKS[:3]},
        {},
        r", XtB, row 4: bag 2 returns after other bags; sort the rows by bag",
    ),
    "no bag": (
        {"X": ROWS[:5], "XtB": np.array([[1, 1, 2, 2.5, 3]]).T, "YB": MARKS[:3]},
        {},
        r", XtB, row 3: 2.5 is not the number of a bag",
    ),
    "bag from 0": (
        {"X": ROWS[:5], "XtB": np.array([[0, 0, 1, 2, 3]]).T, "YB": MARKS[:3]},
        {},
        r", XtB: bag 0 has no targets; they are given for 3",
    ),
    "bags without rows, unsorted": (
        {"X": ROWS[:5], "XtB": np.array([[4, 4, 1, 1, 2]]).T, "YB": MARKS[:4, :3]},
        {},
        r", XtB: 3 bags have rows, but there are 4",
    ),
    "square rows": (
        {"X": ROWS[:3], "XtB": INDEX[:3], "YB": MARKS[:2]},
        {},
        r"X \(3×3\) is square, so rows and features cannot be told apart; give --transposed",
    ),
    "rows of others": (
        {"X": ROWS[:7], "XtB": INDEX, "YB": MARKS},
        {},
        r"X \(7×3\) has no side of 18, the number of rows whose bag is given",
    ),
    "two indices": (
        {"X": ROWS, "XtB": INDEX, "bag_id": INDEX, "YB": MARKS},
        {},
        r"could each be the bag of each row; give --variables",
    ),
    "row labels turned": (
        {"X": ROWS, "XtB": INDEX, "YB": MARKS, "YR": np.eye(4)[:, np.arange(18) % 4]},
        {},
        r"row labels YR \(4×18\) do not have a line for each of 18 rows; --row-label-column none",
    ),
    "two row label matrices": (
        {"X": ROWS, "XtB": INDEX, "YB": MARKS, "YR": INDEX, "row_labels": INDEX},
        {},
        r"could each be row labels; give --row-label-column",
    ),
}


@versions
@pytest.mark.parametrize("case", UNCLEAR)
def test_matlab__what_is_unclear_or_wrong_is_refused(tmp_path, version, case):
    variables, options, match = UNCLEAR[case]
    path = write(tmp_path, version, variables)
    with pytest.raises(SourceError, match=match) as error:
        read_all(READER, path, **options)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@versions
@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({"bags": FEW, "Y": MARKS[:4].T}, {"labels_transposed": True}),
        ({"bags": cell([b.T for b in SQUARE[:4]]), "Y": MARKS[:4, :3]}, {"transposed": True}),
        ({"bags": FEW, "Y": MARKS[:4, :3], "label": MARKS[:4]}, {"label_columns": ("Y",)}),
        ({"bags": FEW, "data": FEW, "Y": MARKS[:4, :3]}, {"variables": ("bags",)}),
        (
            {
                "train_bags": FEW,
                "test_bags": FEW,
                "train_target": MARKS[:4, :3],
                "test_target": 1 - MARKS[:4, :3],
            },
            {"variables": ("train_bags",)},
        ),
        (
            {"A": ROWS[: len(np.concatenate(BAGS[:4]))], "I": INDEX[:11], "Y": MARKS[:4, :3]},
            {"variables": ("A", "I")},
        ),
    ],
)
def test_matlab__options_settle_what_is_unclear(tmp_path, version, variables, options):
    _, block = read_all(READER, write(tmp_path, version, variables), **options)
    want = MARKS[:4] if "labels_transposed" in options else MARKS[:4, :3]
    assert np.array_equal(marks_of(block, want.shape[1]), want)
    bags = SQUARE[:4] if "transposed" in options else BAGS[:4]
    assert np.array_equal(block.rows, np.concatenate(bags).astype(np.float32))
