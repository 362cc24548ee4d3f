"""Small Arrow tables, and files of them in every format."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

from streammiml.bags.block import BagBlock
from streammiml_tools.readers.arrow import READER
from tests.tools.readers.foreign import read_all

NAMES = ("sea", "sky", "sun", "tree")
LONG = {
    "bag": ["a", "a", "b", "c"],
    "red": [1, -3, 0.1, 7],
    "green": [2.5, 4, 2, 8],
    "labels": [["sea"], ["sea"], ["sky", "sea"], []],
    "row_label": ["sea", None, "sky", None],
}
NESTED = {
    "id": ["a", "b", "c"],
    "instances": [[[1, 2.5], [-3, 4]], [[0.1, 2]], [[7, 8]]],
    "labels": [["sea"], ["sky", "sea"], []],
    "row_labels": [["sea", None], ["sky"], [None]],
}
WANT = BagBlock.from_bags(
    [np.array(rows) for rows in NESTED["instances"]],
    [[0], [0, 1], []],
    row_labels=[[0, -1], [1], [-1]],
    bag_ids=["a", "b", "c"],
)


def write(path, table, group=10**6):
    """A file in the format that its suffix says, in groups of so many records."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=group)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(table, path, chunksize=group, compression="lz4")
    else:
        new = pa.ipc.new_file if path.suffix == ".ipc" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=group)
    return path


SUFFIXES = [".parquet", ".feather", ".ipc", ".arrow"]


def read_table(folder, content, suffix=".parquet", group=10**6, **options):
    table = content if isinstance(content, pa.Table) else pa.table(content)
    return read_all(READER, write(folder / f"a{suffix}", table, group), **options)


# --- every cut, every type ---------------------------------------------------------------------


def lists(values, kind):
    """Lists of a kind; the values are nested Python lists."""
    make = {"list": pa.list_, "large": pa.large_list, "view": pa.list_view}[kind]
    return lambda inner: pa.array(values, make(inner))


def reasons(raw, read, error, numbers):
    """What is said where any four bytes of a file are replaced; digits as #."""
    texts = set()
    for at in range(0, len(raw) - 3, 4):
        for number in numbers:
            new = raw[:at] + (number % 2**32).to_bytes(4, "little") + raw[at + 4 :]
            try:
                read(new)
            except error as reason:
                texts.add(re.sub(r"-?\d[\d,]*", "#", str(reason)))
    return texts


VARIED = LONG | {"bag": pa.array(LONG["bag"]).dictionary_encode()}
