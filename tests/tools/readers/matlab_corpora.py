"""Bags for MATLAB files, and the parts that files of version 5 consist of."""

import struct

import numpy as np
import pytest

from streammiml.bags.block import BagBlock
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


SQUARE = [np.eye(3) + i for i in range(5)]
BAGS, MARKS = made()
CELLS, FEW = cell(BAGS), cell(BAGS[:4])


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(kind, shape, rest, name=b"bags"):
    """A variable of version 5, whose parts are said rather than counted."""
    flags = element(6, struct.pack("<II", kind, 0))
    shaped = element(5, struct.pack(f"<{len(shape)}i", *shape))
    body = flags + shaped + element(1, name) + rest
    return struct.pack("<II", 14, len(body)) + body
