"""The source that most conversions of the tests begin with."""

import pytest

from tests.stores import (
    made_block,
    made_spec,
    write_parts,
)


@pytest.fixture
def source(tmp_path):
    """Forty bags with ids, row labels and names, in spans of a few bags."""
    path = tmp_path / "source.zarr"
    write_parts(path, made_spec(), [made_block(40)])
    return path
