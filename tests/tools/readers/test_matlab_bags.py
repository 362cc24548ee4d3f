"""Bags of MATLAB files: written in every layout and version, read back."""

import struct
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from streammiml_tools.readers import arff, matlab5
from streammiml_tools.readers import matlab_bags as matlab
from streammiml_tools.readers.base import Limits, SourceError
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
from tests.tools.readers.matlab_corpora import (
    CELLS,
    MARKS,
    WRITE,
    block_of,
    element,
    made,
    matrix,
    versions,
    write,
)
from tests.tools.readers.matlab_files import cell, write5


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
    targets = marks if off == 0 or thin else 2 * marks - 1
    targets = targets.T if labels_up else targets
    name = draw(st.sampled_from(["targets", "target", "labels", "label", "Y", "YB"]))
    variables = {
        draw(st.sampled_from(["bags", "Bags", "data", "anything"])): cell(
            [bag.T if up else bag for bag in bags]
        ),
        name: scipy.sparse.csc_array(targets) if thin else targets,
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
    lines = [np.full((len(row_labels), 4), off) for row_labels in of_rows]
    for line, row_labels in zip(lines, of_rows, strict=True):
        for row, label in enumerate(row_labels):
            if label >= 0:
                line[row, label] = 1
    path = write(tmp_path, version, {"bags": cell(bags), "Y": marks, "y": cell(lines)})
    scan, block = read_all(READER, path)
    assert scan.row_labels
    assert_same(block, block_of(bags, marks, of_rows))
    numbers = [np.array(row_labels)[:, None] + 1.0 for row_labels in of_rows]
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
    with pytest.raises(SourceError, match=r"1\.mat: 3 features and 3 labels do not match 3 and 4"):
        read_all(READER, paths)


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
            matlab._cached_layout.cache_clear()
            matlab._outlines.cache_clear()
            with suppress(SourceError):
                read_all(READER, broken, row_label_column="none")


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
        matlab._refuse_opaque(str(path), matlab5.outlines(path, Limits()), {"DD"})


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
    fingerprints = set()
    for name in names:
        reader = arff.READER if name.endswith("arff") else READER
        fingerprints.add(fingerprint_of(*without_ids(*read_all(reader, real_data / name))))
    assert len(fingerprints) == 1
