"""Readers of foreign formats, one line each; named by string, so that one loads only its own."""

from __future__ import annotations

from importlib import import_module

from streammiml.errors import unknown
from streammiml_tools.readers.base import Reader

READERS: dict[str, str] = {
    "arff": "streammiml_tools.readers.arff:READER",
    "arrow": "streammiml_tools.readers.arrow:READER",
    "csv": "streammiml_tools.readers.delimited:READER",
    "hdf5": "streammiml_tools.readers.hdf5:READER",
    "matlab": "streammiml_tools.readers.matlab:READER",
    "jsonl": "streammiml_tools.readers.jsonl:READER",
    "npz": "streammiml_tools.readers.npz:READER",
    "store": "streammiml_tools.readers.store:READER",
    "protein": "streammiml_tools.readers.protein:READER",
    "svmlight": "streammiml_tools.readers.svmlight:READER",
}


def reader_of(name: str) -> Reader:
    """The reader of a format, by its name."""
    if name not in READERS:
        raise unknown("format", name, READERS)
    module, _, attribute = READERS[name].partition(":")
    found = getattr(import_module(module), attribute)
    assert isinstance(found, Reader)
    return found
