"""CSV text for tests, and the bags expected of it."""

import csv
import io

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streammiml.bags.block import BagBlock
from streammiml.bags.offsets import from_sizes
from streammiml_tools.readers.delimited import READER
from tests.stores import assert_same
from tests.tools.readers.foreign import DATA, read_all

HERE = DATA / "readers"
TRIPLE = [HERE / f"triple_{name}.txt" for name in ("features", "bag_labels", "instance_labels")]


def read_text(folder, content, name="a.csv", **options):
    path = folder / name
    path.write_text(content)
    return read_all(READER, path, **options)


def bags(values):
    return [np.array(rows, np.float32) for rows in values]


def assert_reads(got, want):
    assert_same(got, want)
    assert got.bag_ids == want.bag_ids


# --- every cut, every way to write ------------------------------------------------------------

IDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=4)
FINITE = {"allow_nan": False, "allow_infinity": False, "width": 32}


@st.composite
def labelled_bags(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    n_features, n_labels = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    shape = (sum(sizes), n_features)
    labels = draw(
        st.lists(st.sets(st.integers(0, n_labels - 1)), min_size=len(sizes), max_size=len(sizes))
    )
    return n_labels, BagBlock(
        from_sizes(sizes),
        draw(hnp.arrays(np.float32, shape, elements=st.floats(**FINITE))),
        from_sizes([len(bag_labels) for bag_labels in labels]),
        np.array([label for bag_labels in labels for label in sorted(bag_labels)], np.int32),
        draw(hnp.arrays(np.int32, shape[0], elements=st.integers(-1, n_labels - 1))),
        draw(st.lists(IDS, min_size=len(sizes), max_size=len(sizes), unique=True)),
    )


def long_text(block, n_labels, *, separator, end, as_list, blank):
    out = io.StringIO()
    write = csv.writer(out, delimiter=separator, lineterminator=end).writerow
    features = [f"f{i}" for i in range(block.n_features)]
    marked = ["labels"] if as_list else [f"label_{i}" for i in range(n_labels)]
    write(["bag", *features, *marked, "row_label"])
    for bag, name in enumerate(block.bag_ids):
        labels = block.labels_of(bag).tolist()
        marks = [int(i in labels) for i in range(n_labels)]
        cells = [" ; ".join(map(str, labels))] if as_list else marks
        for row in range(*block.bag_offsets[bag : bag + 2]):
            write([name, *map(str, block.rows[row]), *cells, block.row_labels[row]])
            out.write(end * (blank and row % 2))
    return out.getvalue()
