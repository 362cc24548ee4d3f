"""MATLAB files: both versions, every layout, and what cannot be told."""

import struct
import zlib
from contextlib import suppress
from dataclasses import replace

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock
from streammiml_tools.readers import arff, matlab5
from streammiml_tools.readers import matlab_bags as matlab
from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.matlab import READER
from tests.stores import assert_same, scratch
from tests.tools.readers.foreign import (
    counts_of,
    dense_rows,
    fingerprint_of,
    marks_of,
    read_all,
    without_ids,
)
from tests.tools.readers.matlab_files import cell, write5, write73

WRITE = {"5": write5, "7.3": write73}
versions = pytest.mark.parametrize("version", WRITE)


def made(n_bags=6, n_features=3, n_labels=4, seed=0):
    """Bags of several sizes, marks of 0 and 1, and the label of each row."""
    rng = np.random.default_rng(seed)
    bags = [rng.normal(size=(2 + i % 3, n_features)) for i in range(n_bags)]
    marks = (rng.random((n_bags, n_labels)) < 0.5).astype(float)
    return bags, marks


def block_of(bags, marks, row_labels=None):
    labels = [np.flatnonzero(row == 1).tolist() for row in marks]
    return BagBlock.from_bags(
        [np.asarray(bag, np.float32) for bag in bags], labels, row_labels=row_labels
    )


def write(folder, version, variables):
    return WRITE[version](folder / f"v{version}.mat", variables)


@st.composite
def files(draw):
    """Variables in any layout of cells, and the options that these need."""
    n_features, n_labels = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 4), min_size=5, max_size=8))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    bags = [rng.integers(-9, 9, (size, n_features)).astype(float) for size in sizes]
    marks = rng.integers(0, 2, (len(bags), n_labels)).astype(float)
    up, labels_up = draw(st.booleans()), draw(st.booleans())
    off, thin = draw(st.sampled_from([0, -1])), draw(st.booleans())
    said = marks if off == 0 or thin else 2 * marks - 1
    said = said.T if labels_up else said
    name = draw(st.sampled_from(["targets", "target", "labels", "label", "Y", "YB"]))
    variables = {
        draw(st.sampled_from(["bags", "Bags", "data", "anything"])): cell(
            [bag.T if up else bag for bag in bags]
        ),
        name: scipy.sparse.csc_array(said) if thin else said,
    }
    return bags, marks, variables, {"transposed": up}


@given(case=files())
@versions
@pytest.mark.parametrize("span_bytes", [1, 1 << 20])
def test_matlab__cells_in_every_layout(case, version, span_bytes):
    bags, marks, variables, options = case
    with scratch() as folder:
        path = write(folder, version, variables)
        scan, block = read_all(READER, path, span_bytes=span_bytes, **options)
    assert_same(block, block_of(bags, marks))
    assert (scan.n_bags, scan.n_rows) == (len(bags), block.n_rows)
    assert (scan.n_features, scan.n_labels) == (block.n_features, marks.shape[1])


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


@versions
def test_matlab__labels_go_by_name_where_there_are_names(tmp_path, version):
    bags, marks = made(n_labels=2)
    variables = {"bags": cell(bags), "Y": marks, "class_name": cell(["sea", "sky"])}
    path = write(tmp_path, version, variables)
    scan, block = read_all(READER, path, labels=("sky", "moon", "sea"))
    assert scan.label_names == ("sky", "moon", "sea")
    assert np.array_equal(marks_of(block, 3)[:, [2, 0]], marks)
    with pytest.raises(SourceError, match="label 'sky' is not known; known: sea, moon"):
        read_all(READER, path, labels=("sea", "moon"))
    del variables["class_name"]
    path = write(tmp_path, version, variables)
    assert read_all(READER, path, labels=("a", "b"))[0].label_names == ("a", "b")
    with pytest.raises(SourceError, match="2 label columns, but --labels gives 3 names"):
        read_all(READER, path, labels=("a", "b", "c"))


@versions
@pytest.mark.parametrize("off", [0, -1])
def test_matlab__row_labels_of_cells(tmp_path, version, off):
    bags, marks = made()
    of_rows = [[i % 4, -1, 3, 0][: len(bag)] for i, bag in enumerate(bags)]
    lines = [np.full((len(of), 4), off) for of in of_rows]
    for line, of in zip(lines, of_rows, strict=True):
        for row, label in enumerate(of):
            if label >= 0:
                line[row, label] = 1
    path = write(tmp_path, version, {"bags": cell(bags), "Y": marks, "y": cell(lines)})
    scan, block = read_all(READER, path)
    assert scan.row_labels
    assert_same(block, block_of(bags, marks, of_rows))
    numbers = [np.array(of)[:, None] + 1.0 for of in of_rows]
    path = write(tmp_path, version, {"bags": cell(bags), "Y": marks, "y": cell(numbers)})
    assert_same(read_all(READER, path)[1], block)
    assert not read_all(READER, path, row_label_column="none")[0].row_labels
    assert READER.scan([path], matlab.SourceOptions(row_label_column="y")).row_labels


@versions
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("span_bytes", [1, 1 << 20])
def test_matlab__rows_in_one_matrix(tmp_path, version, listed, span_bytes):
    bags, marks = made()
    order = [3, 1, 2, 6, 5, 4]
    bag_of_row = np.concatenate([[bag] * len(bags[bag - 1]) for bag in order])[:, None]
    rows = np.concatenate([bags[bag - 1] for bag in order])
    of_rows = np.eye(4)[np.arange(len(rows)) % 4]
    variables = {"X": rows, "XtB": bag_of_row, "YB": 2 * marks - 1, "YR": of_rows}
    if listed:
        variables["B"] = np.arange(1, 7)[:, None]
    path = write(tmp_path, version, {"DD": variables})
    scan, block = read_all(READER, path, span_bytes=span_bytes)
    places = np.array(order) - 1
    want = block_of([bags[i] for i in places], marks[places])
    assert_same(replace(block, row_labels=None), want)
    assert block.row_labels.tolist() == [i % 4 for i in range(len(rows))]
    assert "rows from DD.X" in scan.notes[0]


@versions
def test_matlab__a_bag_without_rows_has_its_place(tmp_path, version):
    bags, marks = made(3)
    empty = [bags[0], np.empty((0, 0)), bags[2]]
    path = write(tmp_path, version, {"bags": cell(empty), "Y": marks})
    sizes = np.diff(read_all(READER, path)[1].bag_offsets)
    assert sizes.tolist() == [2, 0, 4]
    rows, index = np.concatenate([bags[0], bags[2]]), np.array([[1, 1, 3, 3, 3, 3]])
    path = write(tmp_path, version, {"X": rows, "XtB": index, "YB": marks})
    assert np.diff(read_all(READER, path)[1].bag_offsets).tolist() == [2, 0, 4]


@versions
@pytest.mark.parametrize(
    ("stores", "dtype"),
    [
        (["uint8"], "uint8"),
        (["int8"], "int8"),
        (["uint8", "int16"], "int16"),
        (["uint8", "float64"], "float32"),
        (["uint16"], "float32"),
        (["int32"], "float32"),
    ],
)
def test_matlab__small_integers_stay_small(tmp_path, version, stores, dtype):
    bags, marks = made()
    bags = [(bag * 9).astype("int64") % 100 for bag in bags]
    typed = [bag.astype(stores[i % len(stores)]) for i, bag in enumerate(bags)]
    path = write(tmp_path, version, {"bags": cell(typed), "Y": marks})
    scan, block = read_all(READER, path)
    assert scan.dtype == dtype
    assert np.array_equal(block.rows, np.concatenate(bags))
    assert fingerprint_of(scan, block) == fingerprint_of(
        replace(scan, dtype="float32"), block_of(bags, marks)
    )


@versions
def test_matlab__sparse_bags_stay_sparse(tmp_path, version):
    bags, marks = made()
    bags = [np.where(abs(bag) > 1, bag, 0) for bag in bags]
    thin = cell([scipy.sparse.csc_array(bag.T) for bag in bags])
    path = write(tmp_path, version, {"bags": thin, "Y": marks})
    scan, block = read_all(READER, path, transposed=True)
    assert scan.sparse
    assert np.array_equal(dense_rows(block), np.concatenate(bags).astype(np.float32))
    _, dense = read_all(READER, path, transposed=True, sparse=False)
    assert_same(dense, block_of(bags, marks))


@versions
def test_matlab__several_files_are_joined(tmp_path, version):
    bags, marks = made()
    paths = [
        WRITE[version](tmp_path / f"{i}.mat", {"bags": cell(bags[a:b]), "Y": marks[a:b]})
        for i, (a, b) in enumerate([(0, 3), (3, 6)])
    ]
    assert_same(read_all(READER, paths)[1], block_of(bags, marks))
    paths[1] = WRITE[version](tmp_path / "1.mat", {"bags": cell(bags), "Y": marks[:, :3]})
    with pytest.raises(
        SourceError, match=r"1\.mat: 3 features and 3 labels do not go with 3 and 4"
    ):
        read_all(READER, paths)


SQUARE = [np.eye(3) + i for i in range(5)]
BAGS, MARKS = made()
CELLS, FEW = cell(BAGS), cell(BAGS[:4])
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
        r"(Y|labels) \(6×4\) and (Y|labels) \(6×4\) could each be the targets; --label-columns",
    ),
    "two bags": (
        {"bags": CELLS, "data": CELLS, "Y": MARKS},
        {},
        r"bags \(cell 6×1\) and data \(cell 6×1\) could each be the bags; --variables says which",
    ),
    "two row labels": (
        {"bags": CELLS, "Y": MARKS, "y": CELLS, "YR": CELLS},
        {},
        r"(y|YR) .* could each be row labels; --row-label-column says which",
    ),
    "no targets": (
        {"bags": CELLS, "M": MARKS},
        {},
        r"no variable called targets, labels, Y or the like has 6 rows or columns; M \(6×4\) would "
        "fit; --label-columns names it",
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
        r"has no cell of bags, and no matrix of rows with the bag of each; it has a \(3×3\); "
        "--variables names the bags",
    ),
    "ragged": (
        {"bags": cell([*BAGS[:5], np.ones((9, 4))]), "Y": MARKS},
        {},
        r"bag 5: 9×4, but bag 0 is 2×3: the number of features differs; leave one out",
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
        r", XtB, row 4: bag 2 comes back; rows of a bag must follow each other: sort them by bag",
    ),
    "no bag": (
        {"X": ROWS[:5], "XtB": np.array([[1, 1, 2, 2.5, 3]]).T, "YB": MARKS[:3]},
        {},
        r", XtB, row 3: bag 2.5 is no number of a bag",
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
        r"could each be the bag of each row; --variables says which",
    ),
    "row labels turned": (
        {"X": ROWS, "XtB": INDEX, "YB": MARKS, "YR": np.eye(4)[:, np.arange(18) % 4]},
        {},
        r"row labels YR \(4×18\) have not a line for each of 18 rows; --row-label-column none",
    ),
    "two row label matrices": (
        {"X": ROWS, "XtB": INDEX, "YB": MARKS, "YR": INDEX, "row_labels": INDEX},
        {},
        r"could each be row labels; --row-label-column says which",
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


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(kind, shape, rest, name=b"bags"):
    """A variable of version 5, whose parts are said rather than counted."""
    flags = element(6, struct.pack("<II", kind, 0))
    shaped = element(5, struct.pack(f"<{len(shape)}i", *shape))
    body = flags + shaped + element(1, name) + rest
    return struct.pack("<II", 14, len(body)) + body


def packed(content):
    raw = zlib.compress(content, 9)
    return struct.pack("<II", 15, len(raw)) + raw


def file5(*variables):
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM" + b"".join(variables)


ZEROS = matrix(6, (1 << 14, 1 << 11), element(9, bytes(1 << 28)))
DAMAGED = {
    "bomb": (
        file5(packed(ZEROS)),
        r"a variable of 268,435,\d+ bytes in \d+,\d+ compressed ones is "
        r"refused as a bomb; if it is none, save it again with -v6 or -v7.3",
    ),
    "cell of many": (
        file5(packed(matrix(1, (1 << 30, 1), b""))),
        r"variable 'bags': a cell of 1,073,741,824 items declared in 0 bytes; save the file again",
    ),
    "struct of many": (
        file5(matrix(2, (1 << 30, 1), element(5, struct.pack("<i", 8)) + element(1, b"X" * 8))),
        r"variable 'bags': a struct of 1,073,741,824 fields declared in 0 bytes",
    ),
    "matrix of many": (
        file5(matrix(6, (1 << 20, 1 << 20), element(9, bytes(8)))),
        r"variable 'bags': 8,796,093,022,208 bytes are declared by its shape .*, 8 are there",
    ),
    "values of many": (
        file5(matrix(6, (1, 1), struct.pack("<II", 9, 1 << 31))),
        r"variable 'bags': 2,147,483,648 bytes of values within 8",
    ),
    "item of many": (
        file5(matrix(1, (1, 1), struct.pack("<II", 14, 1 << 31))),
        r"variable 'bags': an item of 2,147,483,648 bytes within 8",
    ),
    "sparse of many": (
        file5(matrix(5, (1, 1 << 30), element(5, b"") + element(5, bytes(8)) + element(9, b""))),
        r"variable 'bags': a sparse matrix \(1, 1073741824\) with 8 bytes of jc",
    ),
    "negative": (
        file5(matrix(6, (-1, 2), element(9, b""))),
        r"variable 'bags': its shape is \(-1, 2\)",
    ),
    "complex": (
        file5(matrix(6 | 0x800, (1, 1), element(9, bytes(8)) + element(9, bytes(8)))),
        r"variable 'bags': its numbers are complex",
    ),
    "field names": (
        file5(matrix(2, (1, 1), element(5, struct.pack("<i", -8)) + element(1, b"X" * 8))),
        r"variable 'bags': names of fields of -8 bytes",
    ),
    "cut": (
        file5(packed(ZEROS[:99]))[:-5],
        r"is damaged or cut short in its first variable; fetch",
    ),
    "cut in a tag": (file5() + b"abc", r"is damaged or cut short in its first variable"),
    "inflates to less": (file5(packed(ZEROS[:99])), r"refused as a bomb|is damaged or cut short"),
    "unknown kind": (
        file5(matrix(6, (1, 1), element(77, bytes(8)))),
        r"variable 'bags': values of unknown kind 77; save the file again",
    ),
    "one name": (
        file5(matrix(6, (1, 1), element(9, bytes(8))), matrix(6, (1, 1), element(9, bytes(8)))),
        r"a\.mat: two variables are called 'bags'; save the file again",
    ),
    "no zlib": (file5(struct.pack("<II", 15, 8) + b"x" * 8), r"is damaged or cut short in its"),
    "another element": (file5(element(9, bytes(8))), r"byte 128: an element of kind 9, expected"),
    "another file": (b"hello", r"is no MATLAB file of version 5 or later; save it again with -v7"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_matlab__what_a_file_declares_is_compared_with_what_it_has(tmp_path, case):
    content, match = DAMAGED[case]
    path = tmp_path / "a.mat"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=match):
        READER.scan([path], matlab.SourceOptions())


@given(cut=st.integers(0, 999), flip=st.integers(0, 999), bit=st.integers(0, 7))
@versions
def test_matlab__damage_is_told_or_harmless(tmp_path_factory, version, cut, flip, bit):
    path = tmp_path_factory.getbasetemp() / f"good{version}.mat"
    if not path.exists():
        WRITE[version](path, {"bags": CELLS, "Y": MARKS, "y": CELLS})
    good = path.read_bytes()
    short = good[: len(good) * cut // 1000]
    spoilt = bytearray(good)
    spoilt[len(good) * flip // 1000] ^= 1 << bit
    with scratch() as folder:
        for content in (short, bytes(spoilt)):
            broken = folder / "a.mat"
            broken.write_bytes(content)
            matlab._understood.cache_clear()
            with suppress(SourceError):
                read_all(READER, broken, row_label_column="none")


def test_matlab__a_bomb_would_be_read_were_it_not_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.mat"
    path.write_bytes(DAMAGED["bomb"][0])
    monkeypatch.setattr(matlab5, "BOMB_RATIO", 10_000)
    assert matlab5.outlines(path)[0].n_bytes == 1 << 28


def test_matlab__cells_of_any_shape_are_read_in_matlabs_order(tmp_path):
    bags, marks = made()
    square = np.empty((2, 3), object)
    for i, bag in enumerate(bags):
        square[i % 2, i // 2] = bag
    for version, put in WRITE.items():
        path = put(tmp_path / f"{version}.mat", {"bags": square, "Y": marks})
        assert_same(read_all(READER, path, span_bytes=1)[1], block_of(bags, marks))
        path = put(tmp_path / f"{version}.mat", {"bags": cell(bags).T, "Y": marks})
        assert_same(read_all(READER, path, span_bytes=1)[1], block_of(bags, marks))


def test_matlab__a_cut_73_file_is_refused(tmp_path):
    path = write73(tmp_path / "a.mat", {"bags": CELLS, "Y": MARKS})
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(SourceError, match=r"a\.mat is damaged or cut short \(.*\); fetch it again"):
        read_all(READER, path)


def test_matlab__links_to_other_files_are_not_followed(tmp_path):
    other = write73(tmp_path / "other.mat", {"Y": MARKS})
    path = write73(tmp_path / "a.mat", {"bags": CELLS})
    with h5py.File(path, "r+") as file:
        file["Y"] = h5py.ExternalLink(str(other), "/Y")
    with pytest.raises(SourceError, match=r"'Y' is a link to another file; copy what it names"):
        read_all(READER, path)


def test_matlab__a_sparse_matrix_that_is_none_is_refused(tmp_path):
    path = write73(tmp_path / "a.mat", {"bags": CELLS, "Y": scipy.sparse.csc_array(MARKS)})
    with h5py.File(path, "r+") as file:
        file["Y/ir"][0] = 77
    with pytest.raises(SourceError, match=r"/Y: no sparse matrix, ir and jc disagree; fetch"):
        read_all(READER, path)
    with h5py.File(path, "r+") as file:
        del file["Y/ir"]
        file["Y/ir"] = np.zeros(3)
    with pytest.raises(SourceError, match=r"/Y has 3 ir and \d+ values, expected \d+"):
        read_all(READER, path)


def test_matlab__a_sparse_matrix_that_is_none_is_refused_in_version_5(tmp_path):
    path = tmp_path / "a.mat"
    marks = scipy.sparse.csc_array(MARKS)
    scipy.io.savemat(path, {"bags": CELLS, "Y": marks}, do_compression=False)
    rows = marks.indices.astype("<i4").tobytes()
    assert path.read_bytes().count(rows) == 1
    good = path.read_bytes()
    ends = marks.indptr.astype("<i4").tobytes()
    for old, new in ((rows, b"\xff\xff\0\0" + rows[4:]), (ends, ends[:-4] + bytes(4))):
        path.write_bytes(good.replace(old, new))
        match = r"a\.mat, variable 'Y': no sparse matrix, ir and jc disagree; fetch"
        with pytest.raises(SourceError, match=match):
            read_all(READER, path)


def test_matlab__structs_with_what_is_unknown_are_not_loaded(tmp_path):
    field = element(5, struct.pack("<i", 8)) + element(
        1, b"X".ljust(8, b"\0") + b"f".ljust(8, b"\0")
    )
    handle = matrix(16, (1, 1), b"", b"")
    one = matrix(6, (1, 1), element(9, bytes(8)), b"")
    path = write5(tmp_path / "a.mat", {"bags": CELLS, "Y": MARKS})
    other = matrix(2, (1, 1), field + one + handle, b"DD")
    path.write_bytes(path.read_bytes() + other)
    assert read_all(READER, path)[0].n_bags == 6
    with pytest.raises(
        SourceError, match="DD holds objects or functions beside its matrices; save"
    ):
        matlab._refuse_opaque(str(path), matlab5.outlines(path), {"DD"})


def test_tells__by_its_first_words_or_suffix(tmp_path):
    assert READER.tells(tmp_path / "a", b"MATLAB 5.0 MAT-file")
    assert READER.tells(tmp_path / "a.mat", b"")
    assert not READER.tells(tmp_path / "a.h5", b"\x89HDF")


REAL = {
    "scene/miml-image-data.mat": ((18000, 2000, 5, 1.236, 15), "bags", lambda m: m["targets"].T),
    "scene/scene_MIML.mat": ((18000, 2000, 5, 1.236, 15), "bags", lambda m: m["labels"]),
    "reuters/miml-text-data.mat": ((7119, 2000, 7, 1.154, 243), "bags", lambda m: m["target"].T),
    "msrcv2/MSCV2.mat": ((1758, 591, 23, 2.508, 48), "Bags", lambda m: m["Y"]),
}


@pytest.mark.parametrize("name", REAL)
def test_matlab__real_cells(real_data, name):
    counts, bags, targets = REAL[name]
    scan, block = read_all(READER, real_data / name)
    assert counts_of(scan, block) == counts
    held = scipy.io.loadmat(real_data / name)
    want = list(held[bags].ravel())
    assert np.array_equal(block.rows, np.concatenate(want).astype(np.float32))
    assert np.array_equal(np.diff(block.bag_offsets), [len(bag) for bag in want])
    assert np.array_equal(marks_of(block, counts[2]), targets(held) == 1)
    assert scan.dtype == ("uint8" if "reuters" in name else "float32")
    if "y" in held:
        assert np.array_equal(block.row_labels, np.concatenate(held["y"].ravel()).argmax(axis=1))


def test_matlab__real_rows_in_one_matrix(real_data):
    path = real_data / "letter_frost/letter_frost.mat"
    scan, block = read_all(READER, path)
    assert counts_of(scan, block) == (565, 144, 26, 3.604, 16)
    held = scipy.io.loadmat(path)["DD"][0, 0]
    assert np.array_equal(block.rows, held["X"])
    assert block.rows.dtype == np.uint8
    sizes = np.bincount(held["XtB"].ravel())[1:]
    assert np.array_equal(np.diff(block.bag_offsets), sizes)
    assert np.array_equal(marks_of(block, 26), held["YB"] == 1)
    assert np.array_equal(block.row_labels, held["YR"].argmax(axis=1))


@pytest.mark.parametrize(
    "names",
    [
        ("scene/miml-image-data.mat", "scene/scene_MIML.mat", "scene/miml_03_data.arff"),
        ("reuters/miml-text-data.mat", "reuters/miml_text_data.arff"),
    ],
)
def test_matlab__real_layouts_of_one_set_have_one_fingerprint(real_data, names):
    found = set()
    for name in names:
        reader = arff.READER if name.endswith("arff") else READER
        found.add(fingerprint_of(*without_ids(*read_all(reader, real_data / name))))
    assert len(found) == 1
