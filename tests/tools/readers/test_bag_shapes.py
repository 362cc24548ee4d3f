"""Whether a file of arrays holds one bag, by the names and shapes of its arrays."""

import h5py
import numpy as np
import pytest

from streammiml_tools.readers.bag_shapes import (
    are_bags,
    has_no_offsets,
    has_rows_only,
    inner_shape,
    shapes_in,
)
from streammiml_tools.readers.base import SourceOptions

ROWS = np.zeros((6, 2), np.float32)
ANY, NONE = SourceOptions(), SourceOptions(label_columns=("none",))


def write(folder, name, **arrays):
    path = folder / name
    if name.endswith(".npz"):
        np.savez(path, **arrays)
    elif name.endswith(".npy"):
        np.save(path, arrays["rows"])
    else:
        with h5py.File(path, "w") as file:
            for key, values in arrays.items():
                file[key] = values
    return path


@pytest.mark.parametrize("suffix", ["npz", "h5"])
@pytest.mark.parametrize(
    ("arrays", "without_labels", "with_any"),
    [
        ({"features": ROWS}, True, True),
        ({"features": ROWS[None], "coords": ROWS}, True, True),
        ({"own_name": ROWS}, True, True),
        ({"one": ROWS, "two": ROWS}, False, False),
        ({"features": ROWS, "offsets": [0, 6]}, False, False),
        ({"features": ROWS, "bag_ids": [1]}, False, False),
        ({"features": ROWS, "labels": [1]}, True, False),
        ({"X": ROWS.reshape(3, 2, 2), "Y": [[1]]}, False, False),
        ({"X": ROWS.reshape(3, 2, 2)}, False, False),
        ({"data": ROWS[:, 0], "indices": [0], "indptr": [0, 1]}, False, False),
    ],
)
def test_file__has_rows_only(tmp_path, suffix, arrays, without_labels, with_any):
    path = write(tmp_path, f"a.{suffix}", **arrays)
    assert has_rows_only(path, NONE) is without_labels
    assert has_rows_only(path, ANY) is with_any
    assert shapes_in(path) == {name: np.shape(values) for name, values in arrays.items()}
    assert has_no_offsets(path, ANY) is ("offsets" not in arrays)


def test_options__name_the_rows(tmp_path):
    path = write(tmp_path, "a.npz", one=ROWS, two=ROWS[0])
    assert has_rows_only(path, SourceOptions(variables=("one",)))
    assert not has_rows_only(path, SourceOptions(variables=("two",)))
    assert has_rows_only(path, SourceOptions(keep=("two",)))


def test_files__are_bags_unless_one_is_called_like_an_array_of_a_corpus(tmp_path):
    slides = [write(tmp_path, f"s{i}.npy", rows=ROWS) for i in range(2)]
    assert are_bags(slides, ANY)
    assert not are_bags([*slides, write(tmp_path, "offsets.npy", rows=[0, 6])], ANY)
    assert not are_bags([*slides, write(tmp_path, "a.h5", features=ROWS)], ANY)
    assert not are_bags([], ANY)
    assert not are_bags([write(tmp_path, "line.npy", rows=ROWS[0])], ANY)


def test_leading_axis__of_length_1_is_left_out():
    assert [inner_shape(s) for s in ((1, 4, 2), (2, 4, 2), (1, 4))] == [(4, 2), (2, 4, 2), (1, 4)]
