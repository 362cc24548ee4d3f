"""Training that is killed, interrupted, starved or lied to: resumed, it ends in the same bytes.

Every comparison has a control: with a part of the state lost, the same comparison fails.
"""

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from streammiml.bags.store import BagStore
from streammiml.bags.views import Bags
from streammiml.blocks import budget
from streammiml.blocks.stream import ReadSettings
from streammiml.config import TrainConfig
from streammiml.errors import StoreError, StreammimlError
from streammiml.learn.checkpoint import CHECKPOINT_FORMAT
from streammiml.learn.train import train
from streammiml.model import load_tensors
from streammiml.verbs.main import run as run_command
from tests.planted import planted
from tests.stores import write_store

SETTINGS = {
    "shared_dim": 8, "subconcepts": 2, "block_bags": 8, "mix_blocks": 6, "epochs": 3,
    "validation": 0.1, "validate_every": 90, "patience": 50, "checkpoint_every": "50",
}  # fmt: skip


def words(**changes):
    """Options as the command line takes them."""
    return [f"--{k.replace('_', '-')}={v}" for k, v in {**SETTINGS, **changes}.items()]


FOREVER = {"epochs": 10**8, "patience": 10**8, "checkpoint_every": "1d"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.zarr"
    write_store(path, planted(), chunk_bytes=256)
    return path


@pytest.fixture(scope="module")
def uninterrupted(store, tmp_path_factory):
    """The bytes of the model that was never interrupted."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train(store, TrainConfig(**SETTINGS), run=run)
    return model_bytes(run)


def saved_step(run):
    """Step of the newest checkpoint that verifies, 0 without one."""
    for path in sorted((run / "checkpoints").glob("step-*.safetensors"), reverse=True):
        with contextlib.suppress(StreammimlError):
            _, content = load_tensors(path, kind="checkpoint", version=CHECKPOINT_FORMAT)
            return content["position"]["step"]
    return 0


def model_bytes(run):
    return (run / "model.safetensors").read_bytes()


class Children:
    """Asks the process that forks others."""

    def __init__(self):
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.training_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def train(self, store, run, *, settings=SETTINGS, **order):
        """Status of a process that trained, or was killed while it did."""
        log = run.with_suffix(".log")
        options = {"store": str(store), "run": str(run), "log": str(log), "settings": settings}
        self.server.stdin.write(json.dumps({**options, **order}) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())


@pytest.fixture(scope="module")
def children():
    processes = Children()
    yield processes
    processes.server.stdin.close()
    processes.server.wait(30)


def killed_until_done(children, store, run, rng, **order):
    """Train with kills at random instants until it is finished; how many there were."""
    kills = 0
    while True:
        # Shorter at first than the pauses of a whole run (0.3 s), so that each run is killed;
        # then longer and longer, so that a slow machine gets anywhere.
        after = rng.uniform(0, 0.25 + 0.05 * kills)
        status = children.train(store, run, pace=0.01, kill_after=after, **order)
        if status == 0:
            return kills
        assert status == -signal.SIGKILL, run.with_suffix(".log").read_text()
        kills += 1


def test_kill__at_random_instants(children, store, uninterrupted, tmp_path):
    rng, kills = np.random.default_rng(0), 0
    for i in range(2):
        kills += killed_until_done(children, store, tmp_path / f"{i}", rng)
        assert model_bytes(tmp_path / f"{i}") == uninterrupted
    assert kills >= 2, kills


@pytest.mark.slow
def test_kill__sixty_times_over_twenty_runs(children, store, tmp_path):
    kinds = []
    for order in ("blocks", "full", "uniform"):
        settings = {**SETTINGS, "order": order, "lift": "fourier:20,context"}
        kinds.append((settings, tmp_path / order))
        train(store, TrainConfig(**settings), run=tmp_path / order)
    rng, kills, runs = np.random.default_rng(1), 0, 0
    while runs < 21 or kills < 60:
        (settings, uninterrupted_run), run = kinds[runs % 3], tmp_path / f"{runs}"
        kills += killed_until_done(children, store, run, rng, settings=settings)
        runs += 1
        assert model_bytes(run) == model_bytes(uninterrupted_run)
        lines = [
            (path / "history.jsonl").read_text().splitlines() for path in (run, uninterrupted_run)
        ]
        losses = [
            [json.loads(line)["validation_loss"] for line in lines_of_run] for lines_of_run in lines
        ]
        assert losses[0] == losses[1]


@pytest.mark.parametrize("part", ["place", "averages"])
def test_kill__control_with_a_part_of_the_state_lost_the_bytes_differ(
    part, children, store, uninterrupted, tmp_path
):
    run = tmp_path / "run"
    # Three calls a write: settings, and the third checkpoint is not complete.
    assert children.train(store, run, faults={"call": 12}) == -signal.SIGKILL
    assert children.train(store, run, faults={"forget": part}) == 0
    assert model_bytes(run) != uninterrupted


def assert_mended(children, store, run, uninterrupted):
    """What a kill left is resumed to the same bytes, and its leftovers are gone."""
    step = saved_step(run)
    assert children.train(store, run) == 0
    assert model_bytes(run) == uninterrupted
    assert not [*run.rglob("*.partial")]
    return step


def killed_at_every(children, store, tmp_path, uninterrupted, kind, numbers):
    steps = []
    for number in numbers:
        run = tmp_path / f"{kind}-{number}"
        status = children.train(store, run, faults={kind: number})
        if status == 0:
            break
        assert status == -signal.SIGKILL
        steps.append(assert_mended(children, store, run, uninterrupted))
    # A checkpoint that was complete is never lost by a later one.
    assert steps == sorted(steps)
    return steps


@pytest.mark.parametrize(("kind", "numbers"), [("call", [1, 5, 6, 9]), ("piece", [3, 30, 31])])
def test_kill__inside_a_write(kind, numbers, children, store, uninterrupted, tmp_path):
    assert killed_at_every(children, store, tmp_path, uninterrupted, kind, numbers)[-1] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["call", "piece"])
def test_kill__at_every_sync_rename_and_piece(kind, children, store, uninterrupted, tmp_path):
    numbers = range(1, 10**6, 1 if kind == "call" else 5)
    steps = killed_at_every(children, store, tmp_path, uninterrupted, kind, numbers)
    assert len(steps) > 30
    assert max(steps) > 750


# Signals.


def started(store, run, **changes):
    """The command itself, once it has looked at the held-out bags for the first time."""
    process = subprocess.Popen(
        [sys.executable, "-m", "streammiml", "train", store, run, *words(**changes)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 120
    while not (run / "history.jsonl").exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal__saves_says_how_to_go_on_and_ends(number, code, store, tmp_path):
    run = tmp_path / "run"
    process = started(store, run, **FOREVER)
    assert saved_step(run) == 0
    process.send_signal(number)
    begun = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - begun < 30
    assert (process.returncode, out) == (code, "")
    assert re.search(
        r"streammiml: stopped at step [\d,]+; the same command with --resume continues", err
    )
    step = saved_step(run)
    config = TrainConfig(**{**SETTINGS, **FOREVER, "max_steps": step + 300})
    train(store, config, run=run, resume=True)
    train(store, config, run=tmp_path / "whole")
    assert model_bytes(run) == model_bytes(tmp_path / "whole")


def scripted(code, *words):
    """A process with a fault of its own; its first line says that the fault has come."""
    head = "import signal, sys, threading, time\nfrom streammiml.bags import store as stores\n"
    process = subprocess.Popen(
        [sys.executable, "-c", head + code, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "now\n", process.stderr.read()
    return process


HANG_IN_A_READ = """
# Reads for training, not for scaling or a look; all blocks of an epoch are one.
real, left = stores.BagStore.read_ranges, [1]
def read(*args):
    left[0] -= 1
    if left[0] < 0:
        if left[0] == -1:
            time.sleep(1)
            print("now", flush=True)
        time.sleep(600)
    return real(*args)
stores.BagStore.read_ranges = read
from streammiml.verbs.main import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal__does_not_wait_for_a_read_that_hangs(number, code, store, uninterrupted, tmp_path):
    run = tmp_path / "run"
    process = scripted(HANG_IN_A_READ, "train", store, run, *words(checkpoint_every="1d"))
    process.send_signal(number)
    begun = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - begun < 30
    assert process.returncode == code, err
    assert saved_step(run) > 50
    train(store, TrainConfig(**SETTINGS), run=run, resume=True)
    assert model_bytes(run) == uninterrupted


HANG_AT_A_STEP = """
from streammiml.config import TrainConfig
from streammiml.learn.train import train
def watch(progress):
    if progress.step > 100:
        print("now", flush=True)
        time.sleep(600)
train(sys.argv[1], TrainConfig(shared_dim=8, subconcepts=2), run=sys.argv[2], watch=watch)
"""


def test_signal__a_second_one_ends_at_once(store, tmp_path):
    process = scripted(HANG_AT_A_STEP, store, tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
    process.communicate()


WITHOUT_A_FOLDER = """
from streammiml.config import TrainConfig
from streammiml.learn.train import train
def watch(progress):
    if progress.step > 100 and not said:
        said.append(print("now", flush=True))
said = []
try:
    train(sys.argv[1], TrainConfig(shared_dim=8, epochs=10**8, patience=10**8), watch=watch)
except KeyboardInterrupt:
    left = [each.name for each in threading.enumerate() if each.name.startswith("reader")]
    print("interrupted", left)
"""


def test_signal__without_a_folder_is_a_keyboard_interrupt(store):
    process = scripted(WITHOUT_A_FOLDER, store)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "interrupted []\n"), err
    process = scripted(WITHOUT_A_FOLDER, store)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == -signal.SIGTERM
    process.communicate()


def test_signal__handlers_are_given_back(store, tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train(store, TrainConfig(**SETTINGS, max_steps=5), run=tmp_path / "run")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_signal__another_thread_can_train_too(store, uninterrupted, tmp_path):
    thread = threading.Thread(
        target=train, args=(store, TrainConfig(**SETTINGS)), kwargs={"run": tmp_path / "run"}
    )
    thread.start()
    thread.join()
    assert model_bytes(tmp_path / "run") == uninterrupted


# Disks and folders.


def test_disk_full__in_a_checkpoint_leaves_the_older_ones(children, store, tmp_path):
    run = tmp_path / "run"
    # The second checkpoint holds the best model too, and is larger than the first.
    assert children.train(store, run, settings={**SETTINGS, "max_steps": 50}) == 0
    first, small = sorted((run / "checkpoints").iterdir())
    assert first.name == "step-000000000000.safetensors"
    content = small.read_bytes()
    size = len(content)
    status = children.train(
        store, run, settings={**SETTINGS, "max_steps": 10**9}, faults={"file_size": size + 100}
    )
    log = run.with_suffix(".log").read_text()
    assert status == 2
    assert re.search(r"step-000000000100\.safetensors is not saved: File too large; ", log)
    assert re.search(r"it takes [\d.]+ KiB and [\d.]+ [KMGT]iB are free", log)
    assert log.count("\n") == 1
    assert sorted((run / "checkpoints").iterdir()) == [first, small]
    assert small.read_bytes() == content
    assert children.train(store, run, settings={**SETTINGS, "max_steps": 10**9}) == 0
    assert saved_step(run) > 700


def test_sync__that_fails_is_never_reported_as_saved(store, tmp_path, monkeypatch):
    run = tmp_path / "run"
    train(store, TrainConfig(**SETTINGS, max_steps=60), run=run)
    before = sorted((run / "checkpoints").iterdir())

    def failing(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(StreammimlError, match="is not saved: Input/output error"):
            train(store, TrainConfig(**SETTINGS, max_steps=200), run=run, resume=True)
    assert sorted((run / "checkpoints").iterdir()) == before


def test_sync__control_if_errors_of_fsync_were_ignored_it_would_be_reported_as_saved(
    store, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    train(store, TrainConfig(**SETTINGS, max_steps=60), run=tmp_path / "run")
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_two__processes_on_one_run_the_second_names_the_first(store, tmp_path, capsys):
    run = tmp_path / "run"
    process = started(store, run, **FOREVER)
    try:
        assert run_command(["train", str(store), str(run), "--resume"]) == 2
        line = capsys.readouterr().err
        assert f"is being written by process {process.pid} on " in line
        assert line.count("\n") == 1
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
    assert run_command(["train", str(store), str(run), "--resume", "--max-steps=1"]) == 0


# Stores that fail in the middle.


def rows_file(store):
    return max(
        (path for path in (store / "rows").rglob("*") if path.is_file()), key=os.path.getsize
    )


def test_store__that_was_changed_is_refused_by_fingerprint(tmp_path):
    path, run = tmp_path / "s.zarr", tmp_path / "run"
    write_store(path, planted(seed=1))
    train(path, TrainConfig(**SETTINGS, max_steps=60), run=run)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    path.rename(tmp_path / "old.zarr")
    write_store(path, planted(seed=2))
    with pytest.raises(StreammimlError, match=r"run was begun on a store of fingerprint \w{32}, "):
        train(path, TrainConfig(**SETTINGS), run=run, resume=True)
    same = {file for file in before if file.name != "lock"}
    assert {file: file.read_bytes() for file in same} == {file: before[file] for file in same}


def in_the_middle(step, act):
    """A watcher that acts once, when this step is done."""
    done = []

    def watch(progress):
        if progress.step >= step and not done:
            done.append(True)
            act()

    return watch


def test_store__a_chunk_damaged_while_training_is_named_and_nothing_is_lost(
    uninterrupted, tmp_path, monkeypatch
):
    # Otherwise all epochs of so few bags would be read ahead before the damage.
    monkeypatch.setattr(budget, "READ_THREADS", 1)
    monkeypatch.setattr(budget, "BATCH_BAGS", 8)
    path, run = tmp_path / "s.zarr", tmp_path / "run"
    write_store(path, planted(), chunk_bytes=256)
    file = rows_file(path)
    good = file.read_bytes()
    settings = TrainConfig(**{**SETTINGS, "checkpoint_every": "1d"})
    steps = []

    def harm():
        with file.open("r+b") as opened:
            opened.write(bytes(byte ^ 255 for byte in good))

    watch = in_the_middle(200, harm)
    name = re.escape(str(file.relative_to(tmp_path)))
    with pytest.raises(StoreError, match=f"{name} is damaged: rows at byte") as caught:
        train(path, settings, run=run, watch=lambda p: (steps.append(p.step), watch(p)))
    assert "\n" not in str(caught.value)
    assert saved_step(run) == steps[-1] >= 200
    with file.open("r+b") as opened:
        opened.write(good)
    train(path, settings, run=run, resume=True)
    assert model_bytes(run) == uninterrupted


@pytest.mark.parametrize("step", [0, 95, 400])
@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_store__a_read_that_fails_names_the_file(
    step, code, store, uninterrupted, tmp_path, monkeypatch
):
    run, real = tmp_path / "run", os.preadv

    def failing(*_):
        raise OSError(code, os.strerror(code))

    def fail():
        monkeypatch.setattr(os, "preadv", failing)

    fail() if step == 0 else None
    with pytest.raises(StoreError, match=f"corpus.zarr/.* cannot be read: {os.strerror(code)}"):
        train(store, TrainConfig(**SETTINGS), run=run, watch=in_the_middle(step, fail))
    monkeypatch.setattr(os, "preadv", real)
    train(store, TrainConfig(**SETTINGS), run=run, resume=True)
    assert model_bytes(run) == uninterrupted
    assert readers() == []


def readers():
    """Reader threads that are alive, after they had time to go."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        threads = [t for t in threading.enumerate() if t.name.startswith("reader-")]
        if not threads:
            break
        time.sleep(0.01)
    return threads


@pytest.mark.parametrize(
    ("kind", "method", "calls"),
    [
        (BagStore, "read", 0),
        (BagStore, "read_ranges", 0),
        (BagStore, "read_ranges", 1),
        (Bags, "read_bags", 0),
    ],
    ids=["fit", "first bags", "middle", "held out"],
)
def test_store__a_read_that_hangs_is_told_within_the_deadline(
    kind, method, calls, store, uninterrupted, tmp_path, monkeypatch
):
    run, release, left = tmp_path / "run", threading.Event(), [calls]
    real = getattr(kind, method)

    def hanging(*args, **options):
        left[0] -= 1
        if left[0] < 0:
            release.wait(60)
        return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(kind, method, hanging)
        patch.setattr(budget, "ReadSettings", partial(ReadSettings, deadline=0.5))
        begun = time.monotonic()
        with pytest.raises(StoreError, match=r"did not return within 0\.5 s"):
            train(store, TrainConfig(**SETTINGS), run=run)
        assert time.monotonic() - begun < 30
    release.set()
    assert readers() == []
    train(store, TrainConfig(**SETTINGS), run=run, resume=True)
    assert model_bytes(run) == uninterrupted
