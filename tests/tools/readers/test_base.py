"""The interface of readers: limits for each process, options that contradict, missing extras."""

from pathlib import Path

import pytest

from streammiml.errors import StreammimlError
from streammiml_tools.readers.base import NONE, ExtraModule, Limits, SourceError, SourceOptions


def test_limits__are_shared_by_processes():
    assert (Limits(memory=100).share, Limits(memory=100).per_process) == (100, "")
    several = Limits(memory=100, n_processes=4)
    assert (several.share, several.per_process) == (25, " in each of 4 processes")


def test_options__no_labels_and_a_column_of_row_labels_contradict():
    assert SourceOptions(label_columns=(NONE,), row_label_column=NONE).no_labels
    assert not SourceOptions(label_columns=("a",), row_label_column="b").no_labels
    with pytest.raises(StreammimlError, match="--row-label-column names 'b'; give one of them"):
        SourceOptions(label_columns=(NONE,), row_label_column="b")


def test_extra_module__names_the_extra_of_a_missing_package_only():
    missing = ExtraModule("streammiml_not_there.bags", "hdf5", ("streammiml_not_there",))
    match = r"a\.h5 needs streammiml_not_there: pip install 'streammiml\[hdf5\]'"
    with pytest.raises(SourceError, match=match):
        missing.scan([Path("a.h5")], SourceOptions())
    with pytest.raises(ModuleNotFoundError, match="streammiml_not_there"):
        ExtraModule("streammiml_not_there.bags", "hdf5", ("h5py",)).scan(
            [Path("a")], SourceOptions()
        )
