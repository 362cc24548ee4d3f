"""What tests of several verbs share: a model on disk."""

from pathlib import Path

import pytest

from tests.measure.models import made_model


@pytest.fixture(scope="package")
def model(tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("run") / "model.safetensors"
    made_model().save(path)
    return path
