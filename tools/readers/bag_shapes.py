"""Files of arrays, NumPy or HDF5: whether one holds the rows of one bag, by names and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from streammiml_tools.readers import npz
from streammiml_tools.readers.base import ExtraModule, SourceOptions
from streammiml_tools.readers.numpy_bag import ROWS
from streammiml_tools.readers.text import bare_suffix

NUMPY_FILES = (".npy", ".npz")
HDF5_FILES = (".h5", ".hdf5", ".hdf")
CORPUS_ROLES = ("bag_offsets", "bag_ids", "label_offsets", "label_indices", "marks")
"""Roles of arrays that a corpus of many bags has beside its rows."""
CORPUS_NAMES = {name for names in npz.NAMES.values() for name in names}
MOST_ARRAYS = 64
"""Upper limit of the items of an HDF5 file that are looked at: the file of a bag has few."""
HDF5 = ExtraModule("streammiml_tools.readers.hdf5_access", extra="hdf5", packages=("h5py",))


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Shape of each array in a file, by name; the array of an npy file has the name of the file."""
    if bare_suffix(path) == ".npy":
        return {path.stem: npz.npy_array(path).shape}
    if bare_suffix(path) in NUMPY_FILES:
        return {name: array.shape for name, array in npz.members_of(path).items()}
    access = HDF5.loaded(str(path))
    with access.open_hdf5(path) as file:
        items = {name: access.child(path, file, name) for name in islice(file, MOST_ARRAYS)}
        return {name: item.shape or () for name, item in items.items() if hasattr(item, "shape")}


def inner_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape without a leading axis of length 1, which CLAM writes."""
    return shape[1:] if len(shape) == 3 and shape[0] == 1 else shape


def has_no_offsets(path: Path, _: SourceOptions) -> bool:
    """Whether a file has arrays, and none of them says where bags begin."""
    if bare_suffix(path) == ".npy":
        return path.stem not in CORPUS_NAMES and len(npz.npy_array(path).shape) == 2
    names = shapes_in(path).keys()
    return bool(names) and not names & {*npz.NAMES["bag_offsets"]}


def are_bags(paths: Sequence[Path], options: SourceOptions) -> bool:
    """Whether files hold the rows of one bag each, and no labels, told by the first of them.

    Arrays that are called like those of a corpus (``offsets.npy``) are no bags.
    """
    if not paths or len({bare_suffix(path) in HDF5_FILES for path in paths}) > 1:
        return False
    if any(bare_suffix(path) == ".npy" and path.stem in CORPUS_NAMES for path in paths):
        return False
    return has_rows_only(paths[0], options)


def has_rows_only(path: Path, options: SourceOptions) -> bool:
    """Whether a file has an array of rows, and none with offsets, ids or labels of bags.

    If labels are left out, the file may hold some.
    """
    shapes = shapes_in(path)
    roles = ("bag_offsets", "bag_ids") if options.no_labels else CORPUS_ROLES
    if shapes.keys() & {name for role in roles for name in npz.NAMES[role]}:
        return False
    others = [name for name in shapes if name not in options.kept_names]
    known = options.variables or (*ROWS, *(others if len(others) == 1 else ()))
    rows = next((name for name in known if name in shapes), None)
    return rows is not None and len(inner_shape(shapes[rows])) == 2
