"""kill −9 in predict, at every change it makes and at random: run again, the same bytes."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streammiml.measure.prediction_folder import COMPLETE
from tests.measure.models import made_model
from tests.stores import content, made_block, made_spec, scratch, write_parts

ROOT = Path(__file__).parents[2]
N_BAGS = 30
WAYS = {
    "parquet": {"format": "parquet", "rows": None},
    "zarr": {"format": "zarr", "rows": None},
    "rows": {"format": "parquet", "rows": "all"},
}


class Predicting:
    """A process that predicts in children of its own, and kills them where it is told."""

    def __init__(self, folder):
        self.folder, self.tally = folder, folder / "tally"
        made_model().save(folder / "model.safetensors")
        store = write_parts(folder / "x.zarr", made_spec(), [made_block(N_BAGS)])
        words = [sys.executable, "-m", "tests.faults.predicting_child", str(folder), store.name]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(words, cwd=ROOT, **pipes)

    def __call__(self, out, way, *, at=0, after=0.0):
        """Predict; die before the n-th change, or after seconds. Whether it was killed."""
        order = {"out": str(out), **WAYS[way], "at": at, "after": after}
        self.process.stdin.write(json.dumps({**order, "tally": str(self.tally)}) + "\n")
        self.process.stdin.flush()
        status = json.loads(self.process.stdout.readline())["status"]
        assert status in (0, -signal.SIGKILL)
        return status != 0

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def predicting():
    with scratch() as folder:
        predicting_process = Predicting(folder)
        yield predicting_process
        predicting_process.close()


def clean(predicting, way):
    """What a run that is not killed writes, and how many changes it makes."""
    out = predicting.folder / f"clean-{way}"
    if not out.exists():
        assert not predicting(out, way)
        predicting.tally.rename(predicting.folder / f"changes-{way}")
    return content(out), int((predicting.folder / f"changes-{way}").read_text())


def kill_and_go_on(predicting, way, **where):
    want, _ = clean(predicting, way)
    out = predicting.folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    killed = predicting(out, way, **where)
    if killed and out.exists():
        half = content(out)
        finished = {name: raw for name, raw in half.items() if not is_hidden(name)}
        assert finished.items() <= want.items(), "a final name on something that is not whole"
        assert COMPLETE not in half
    assert not predicting(out, way)
    assert content(out) == want
    return killed


def is_hidden(name):
    return any(part.startswith(".") and part.endswith(".partial") for part in Path(name).parts)


@pytest.mark.parametrize("way", WAYS)
def test_predict__killed_at_some_changes_goes_on_to_the_same_bytes(predicting, way):
    _, changes = clean(predicting, way)
    assert changes > 20
    for at in range(3, changes, max(1, changes // 4)):
        assert kill_and_go_on(predicting, way, at=at)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "step"), [("parquet", 1), ("zarr", 7), ("rows", 3)])
def test_predict__killed_at_every_change_goes_on_to_the_same_bytes(predicting, way, step):
    """Every one for Parquet; Zarr makes hundreds, file by file, of which some will do."""
    _, changes = clean(predicting, way)
    # The last change is the sync after the mark; all before leave the mark out.
    for at in range(1, changes, step):
        assert kill_and_go_on(predicting, way, at=at)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_predict__killed_at_random_goes_on_to_the_same_bytes(predicting, way):
    killed = [kill_and_go_on(predicting, way, after=0.01 + 0.02 * i) for i in range(12)]
    assert any(killed)
