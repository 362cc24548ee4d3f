"""Without O_DIRECT or the crc32c instruction: slower ways give what the fast ones give and say so.

The fast ways are switched off in a process of its own, as they are missing on macOS and ARM.
Kernels are compiled anew for a processor of the plainest kind, which takes a while.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import streammiml as sm
from streammiml.verbs.machine import missing_fast_paths
from streammiml.verbs.main import run
from tests.planted import planted
from tests.stores import write_store

SETTINGS = ["--epochs", "3", "--shared-dim", "12", "--subconcepts", "2"]
MISSING = {
    "O_DIRECT": {"STREAMMIML_DIRECT": "0"},
    "crc32c instruction": {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_ENABLE_AVX": "0",
    },
}
NOTHING = MISSING["O_DIRECT"] | MISSING["crc32c instruction"]


def streammiml(*words, cwd, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "streammiml", *map(str, words)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def folder(tmp_path):
    # Long enough that chunks are read in runs, and their checksums computed many at a time.
    write_store(tmp_path / "x.zarr", planted(3000, n_features=200), n_labels=5)
    return tmp_path


def test_lacking__says_what_was_switched_off(monkeypatch):
    before = missing_fast_paths()
    monkeypatch.setenv("STREAMMIML_DIRECT", "0")
    assert [line for line in missing_fast_paths() if line not in before] in (
        ["no reads that bypass the page cache (O_DIRECT): large stores are read through it"],
        [],
    )
    assert any("O_DIRECT" in line for line in missing_fast_paths())


def test_train__without_direct_reads_says_so_and_gives_the_same_bytes(folder):
    done = streammiml("train", "x.zarr", "plain", *SETTINGS, cwd=folder, STREAMMIML_DIRECT="0")
    assert "streammiml: no reads that bypass the page cache (O_DIRECT)" in done.stderr
    fast = streammiml("train", "x.zarr", "fast", *SETTINGS, cwd=folder, STREAMMIML_DIRECT="always")
    assert "O_DIRECT" not in fast.stderr or sys.platform != "linux"
    one, two = ((folder / name / "model.safetensors").read_bytes() for name in ("plain", "fast"))
    same = one == two
    assert same, "the models differ"


@pytest.mark.slow
def test_everything__works_on_the_plainest_processor_and_says_so(folder):
    plain = NOTHING | {"NUMBA_CACHE_DIR": str(folder / "compiled")}
    done = streammiml("train", "x.zarr", "plain", *SETTINGS, cwd=folder, **plain)
    assert "streammiml: no crc32c instruction (SSE4.2, PCLMULQDQ)" in done.stderr
    assert "streammiml: no reads that bypass the page cache (O_DIRECT)" in done.stderr
    assert run(["train", str(folder / "x.zarr"), str(folder / "fast"), *SETTINGS]) == 0
    # Multiplying and adding in one step rounds once less: weights agree, but not to the bit.
    models = [sm.load_model(folder / name) for name in ("plain", "fast")]
    assert models[0].labels.shape == models[1].labels.shape
    figures = [
        json.loads(streammiml("evaluate", name, "x.zarr", "--json", cwd=folder, **plain).stdout)
        for name in ("plain", "fast")
    ]
    assert figures[0]["ranking_loss"] == pytest.approx(figures[1]["ranking_loss"], abs=0.01)
    # One model scored both ways.
    here = sm.evaluate(folder / "fast", folder / "x.zarr")
    for name in ("ranking_loss", "hamming_loss", "average_precision"):
        assert figures[1][name] == pytest.approx(here[name], abs=1e-3)
    streammiml("verify", "x.zarr", cwd=folder, **plain)
    streammiml("predict", "fast", "x.zarr", "out", cwd=folder, **plain)
    assert np.isfinite(models[0].labels).all()


@pytest.mark.slow
def test_damage__is_found_on_the_plainest_processor(folder):
    shards = [path for path in folder.glob("x.zarr/**/c/**/*") if path.is_file()]
    largest = max(shards, key=lambda path: path.stat().st_size)
    raw = bytearray(largest.read_bytes())
    raw[len(raw) // 2] ^= 4
    largest.write_bytes(raw)
    plain = NOTHING | {"NUMBA_CACHE_DIR": str(folder / "compiled")}
    done = subprocess.run(
        [sys.executable, "-m", "streammiml", "train", "x.zarr", "run", *SETTINGS],
        cwd=folder,
        env={**os.environ, **plain},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert largest.name in done.stderr
