"""Readers of foreign formats. The module of a reader is loaded only when a file needs it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from streammiml.errors import unknown
from streammiml_tools.readers.base import Reader

READERS = {
    "arff": "arff",
    "arrow": "arrow",
    "csv": "delimited",
    "files": "bag_files",
    "hdf5": "hdf5",
    "matlab": "matlab",
    "jsonl": "jsonl",
    "npz": "npz",
    "store": "store",
    "protein": "protein",
    "svmlight": "svmlight",
    "tfrecord": "tfrecord",
    "webdataset": "webdataset",
}
"""Each format and the module of its reader."""
SUFFIXES = {
    **dict.fromkeys((".arff", ".xml"), "arff"),
    **dict.fromkeys((".parquet", ".pq", ".arrow", ".feather", ".ipc", ".arrows"), "arrow"),
    **dict.fromkeys((".csv", ".tsv", ".tab", ".txt"), "csv"),
    **dict.fromkeys((".h5", ".hdf5", ".hdf"), "hdf5"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    ".mat": "matlab",
    **dict.fromkeys((".npz", ".npy"), "npz"),
    ".zarr": "store",
    **dict.fromkeys((".svmlight", ".svm", ".libsvm"), "svmlight"),
    **dict.fromkeys((".tfrecord", ".tfrecords"), "tfrecord"),
    **dict.fromkeys((".tar", ".tgz"), "webdataset"),
}
"""Each suffix, without the suffix of a compression, and its format. A store of Parquet files has a
manifest, which distinguishes it from a plain Parquet file."""


def reader_module(name: str) -> ModuleType:
    """Load the module that reads a format."""
    if name not in READERS:
        raise unknown("format", name, READERS)
    return import_module(f"streammiml_tools.readers.{READERS[name]}")


def reader_of(name: str) -> Reader:
    """Return the reader of a format, loading its module."""
    reader = reader_module(name).READER
    assert isinstance(reader, Reader)
    return reader
