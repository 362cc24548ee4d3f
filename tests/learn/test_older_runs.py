"""Runs of older versions: a store of theirs trains, and a run of theirs resumes, to the same bytes.

``tests/data/runs`` has a store of format 1, and a run on it that version 0.1.0 (commit 9a24a71)
began and that was interrupted at step 100 of 234. That version also trained the run as a whole;
``WHOLE`` is the digest of the model file it wrote. Compiled code differs from one processor to the
next in the last bits, so all of this is for the oldest processor of the x86-64 family.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

OLD = Path(__file__).parents[1] / "data" / "runs"
WHOLE = "180fbb442fabfbe21615ed664ff6cc5374b8c53ea1bd56da1110075d3d70fb5d"
SETTINGS = [
    *("--shared-dim", "5", "--subconcepts", "2", "--epochs", "6", "--step-size", "0.02"),
    *("--validation", "0.25", "--validate-every", "24", "--patience", "20", "--seed", "3"),
    *("--scale", "standard", "--block-bags", "4", "--mix-blocks", "4", "--checkpoint-every", "20"),
]
"""Settings of the run, in words of the command line."""
THEN = ["--init", "random", "--threshold", "none"]
"""Settings that the older version did not have, as it worked without them."""
GENERIC = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="the digest is for x86-64"
)


def train(run, *words):
    """The digest of the model that a child process trains; it compiles for any processor."""
    command = [sys.executable, "-m", "streammiml", "train", str(OLD / "store.zarr"), str(run)]
    environment = {**os.environ, **GENERIC, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()


def test_store__of_format_1_trains_to_the_bytes_of_the_version_that_wrote_it(tmp_path):
    assert train(tmp_path / "run", *SETTINGS, *THEN) == WHOLE


def test_run__of_an_older_version_resumes_to_the_bytes_of_that_version(tmp_path):
    shutil.copytree(OLD / "begun", tmp_path / "run")
    assert train(tmp_path / "run", "--resume") == WHOLE
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [*range(24, 217, 24), 234]
