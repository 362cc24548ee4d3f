"""Clusters as a user meets them on the command line: what cannot be gets one line, and soon."""

import subprocess
import sys
import time

import pytest

from tests.clusters import answering
from tests.measure.models import made_model
from tests.stores import made_block, made_spec, write_parts

STREAMMIML = [sys.executable, "-m", "streammiml"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "model.safetensors"
    made_model().save(path)
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "x.zarr"
    write_parts(path, made_spec(), [made_block(40)])
    return path


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", b"HTTP/1.0 200 OK\r\n\r\n"])
def test_scheduler__something_else_that_answers_gets_one_line_and_no_long_wait(
    model, store, tmp_path, said
):
    words = [*STREAMMIML, "predict", str(model), str(store), str(tmp_path / "out")]
    begun = time.monotonic()
    with answering(said) as port:
        done = subprocess.run(
            [*words, "--scheduler", f"tcp://127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert time.monotonic() - begun < 40
    assert done.returncode == 2
    assert done.stderr.startswith("streammiml: no Dask scheduler answers at tcp://127.0.0.1:")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
