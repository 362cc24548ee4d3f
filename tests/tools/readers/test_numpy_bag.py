"""Rows and labels of one bag in a NumPy file, on disk or in memory."""

import numpy as np
import pytest

from streammiml_tools.readers.base import Limits, SourceError, SourceOptions
from streammiml_tools.readers.npz import HeldFile
from streammiml_tools.readers.numpy_bag import (
    all_rows,
    array_of_rows,
    held_rows,
    label_numbers,
    label_values,
)
from tests.tools.readers.tar_files import npy, npz

ROWS = np.arange(12, dtype=np.int16).reshape(4, 3)
ANY = SourceOptions()
FILES = {
    "a.npy": npy(ROWS),
    "turned.npy": npy(np.asfortranarray(ROWS)),
    "big_end.npy": npy(ROWS.astype(">i2")),
    "one.npy": npy(ROWS[None]),
    "a.npz": npz(features=ROWS, coords=ROWS[:, :2]),
    "small.npz": npz(compressed=True, anything=ROWS),
}


@pytest.mark.parametrize("name", FILES)
def test_rows__are_the_same_on_disk_and_in_memory(tmp_path, name):
    (tmp_path / name).write_bytes(FILES[name])
    for rows in (
        held_rows(HeldFile(name, FILES[name]), ANY),
        all_rows(array_of_rows(tmp_path / name, ANY), ANY),
    ):
        np.testing.assert_array_equal(rows, ROWS)
        assert rows.dtype == np.int16


def test_array__is_chosen_by_option_or_by_name():
    file = HeldFile("x.npz", npz(a=ROWS, b=ROWS[:, :2]))
    assert held_rows(file, SourceOptions(variables=("b",))).shape == (4, 2)
    with pytest.raises(SourceError, match=r"x\.npz has no array 'c' \(--variables\); arrays: a, b"):
        held_rows(file, SourceOptions(variables=("c",)))
    with pytest.raises(SourceError, match=r"x\.npz: which array holds the rows of the bag\? give"):
        held_rows(file, ANY)


def test_rows__of_another_shape_or_beyond_memory_are_refused():
    with pytest.raises(
        SourceError, match=r"x\.npy is int16 of shape \(3,\), expected numbers of sh"
    ):
        held_rows(HeldFile("x.npy", npy(ROWS[0])), ANY)
    file = HeldFile("x.npz", npz(compressed=True, features=np.zeros((1 << 16, 64))))
    with pytest.raises(
        SourceError, match=r"features\.npy: a block of 32 MiB needs about 96 MiB, mo"
    ):
        held_rows(file, SourceOptions(limits=Limits(memory=64 << 20)))


def test_flipped_bit__of_an_archive_in_memory_is_found():
    raw = bytearray(FILES["a.npz"])
    raw[raw.index(ROWS.tobytes())] ^= 1
    with pytest.raises(SourceError, match=r"x\.npz, member features\.npy is damaged: Bad CRC-32"):
        held_rows(HeldFile("x.npz", bytes(raw)), ANY)


def test_labels__are_a_number_or_marks(tmp_path):
    np.save(tmp_path / "l.npy", np.array([0, 1, 1]))
    assert label_numbers(label_values(tmp_path / "l.npy", ANY), tmp_path / "l.npy").tolist() == [
        1,
        2,
    ]
    file = HeldFile("l.npy", npy(np.array(3.0)))
    assert label_numbers(label_values(file, ANY), file).tolist() == [3]
    for values, words in (
        (
            np.ones((2, 2)),
            r"l\.npy is float64 of shape \(2, 2\), expected the number of a class, or",
        ),
        (np.array([1.5]), r"l\.npy: the class is 1\.5, but classes are counted 0, 1, 2"),
        (np.array([0, 2]), r"l\.npy, bag 0: the mark of label 1 is 2"),
    ):
        file = HeldFile("l.npy", npy(values))
        with pytest.raises(SourceError, match=words):
            label_numbers(label_values(file, ANY), file)
