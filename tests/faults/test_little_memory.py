"""A corpus several times the memory: everything finishes, the page cache counted in."""

import json
import sys

import numpy as np
import pytest

from streammiml.bags.store import open_store
from tests.control_groups import limited

LIMIT = 640 << 20
N_ROWS, N_FEATURES, ROWS_PER_BAG = 3_000_000, 256, 10


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder of arrays, 2.9 GiB of rows."""
    folder = tmp_path_factory.mktemp("source") / "bags"
    folder.mkdir()
    shape = (N_ROWS, N_FEATURES)
    rows = np.lib.format.open_memmap(folder / "instances.npy", "w+", np.float32, shape)
    rng = np.random.default_rng(0)
    labels = np.repeat(rng.integers(0, 5, N_ROWS // ROWS_PER_BAG), ROWS_PER_BAG)
    for start in range(0, N_ROWS, 50_000):
        part = rng.standard_normal((50_000, N_FEATURES), np.float32)
        part[np.arange(50_000), labels[start : start + 50_000]] += 5
        rows[start : start + 50_000] = part
    rows.flush()
    del rows
    offsets = np.arange(0, N_ROWS + 1, ROWS_PER_BAG)
    np.save(folder / "offsets.npy", offsets)
    np.save(folder / "label_indptr.npy", np.arange(len(offsets)))
    np.save(folder / "label_indices.npy", labels[::ROWS_PER_BAG].astype(np.int32))
    return folder


def words(*given):
    return [sys.executable, "-c", "from streammiml.verbs.main import main; main()", *given]


@pytest.mark.slow
def test_everything__finishes_in_a_fifth_of_the_corpus(source, tmp_path):
    store, run = tmp_path / "bags.zarr", tmp_path / "run"
    steps = [
        ("convert", source, store, "--memory", "256MiB"),
        ("train", store, run, "--memory", "256MiB", "--max-steps", 20_000),
        ("evaluate", run, store, "--json"),
        ("predict", run, store, tmp_path / "out"),
    ]
    with limited(LIMIT) as group:
        for step in steps:
            done = group.run(words(*step))
            assert done.returncode == 0, (step[0], done.returncode, done.stderr[-2000:])
            if step[0] == "evaluate":
                figures = json.loads(done.stdout)
        peak = group.peak()
    assert open_store(store).n_rows == N_ROWS
    assert figures["n_bags"] == N_ROWS // ROWS_PER_BAG
    assert figures["ranking_loss"] < 0.1
    assert peak is None or peak <= LIMIT
