"""What tests of parts share: a staging folder."""

from pathlib import Path

import pytest

from streammiml.bags.spool import SUBFOLDERS


@pytest.fixture
def staging(tmp_path) -> Path:
    """A folder with the subfolders that a writer makes before it writes parts."""
    for name in SUBFOLDERS:
        (tmp_path / name).mkdir()
    folder: Path = tmp_path
    return folder
