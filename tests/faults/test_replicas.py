"""Replicas on clusters whose parts are killed, or come and go: the run ends in the same bytes.

The bytes are those of a run on the threads of one process, never interrupted.
"""

import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn import round_weights, worker_turns
from streammiml.learn.train import train
from tests.clusters import inside_client, inside_cluster, outside_processes
from tests.faults.test_training import Children, killed_until_done, model_bytes
from tests.planted import planted
from tests.stores import write_store

SETTINGS = {
    "shared_dim": 8, "subconcepts": 2, "block_bags": 4, "mix_blocks": 6, "replicas": 4,
    "round_steps": 128, "epochs": 40, "validation": 0.1, "validate_every": 300, "patience": 50,
    "checkpoint_every": "200",
}  # fmt: skip


def config(**changes):
    return TrainConfig(**{**SETTINGS, **changes})


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.zarr"
    write_store(path, planted(), chunk_bytes=256)
    return path


@pytest.fixture(scope="module")
def expected(store, tmp_path_factory):
    """The bytes of the model by the number of replicas."""
    made = {}

    def bytes_of(replicas):
        if replicas not in made:
            run = tmp_path_factory.mktemp("whole") / "run"
            train(store, config(replicas=replicas), run=run)
            made[replicas] = model_bytes(run)
        return made[replicas]

    return bytes_of


@pytest.mark.parametrize(("replicas", "workers"), [(4, 2), (8, 1)])
def test_replicas__on_workers_end_in_the_bytes_of_one_process(
    store, expected, replicas, workers, tmp_path
):
    run = tmp_path / "run"
    train(store, config(replicas=replicas), run=run, workers=workers)
    assert model_bytes(run) == expected(replicas)


@pytest.mark.parametrize("replicas", [4, 10])
def test_replicas__with_large_weights_end_in_the_same_bytes(
    store, expected, replicas, tmp_path, monkeypatch
):
    """Large weights are sent once; with several groups, each is summed on a worker."""
    monkeypatch.setattr(worker_turns, "SENT_BYTES", 0)
    run = tmp_path / "run"
    with inside_client() as client:
        train(store, config(replicas=replicas), run=run, client=client)
        assert not [key for key in client.futures if key.startswith("_same")]
    assert model_bytes(run) == expected(replicas)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [4, 8])
def test_replicas__on_any_number_of_workers(store, expected, replicas, tmp_path):
    for workers in (1, 2, 4):
        run = tmp_path / f"{workers}"
        train(store, config(replicas=replicas), run=run, workers=workers)
        assert model_bytes(run) == expected(replicas), workers


def test_replicas__on_a_client_and_on_a_cluster_object(store, expected, tmp_path):
    for number, opened in enumerate((inside_client, inside_cluster)):
        run = tmp_path / f"{number}"
        with opened() as client:
            train(store, config(), run=run, client=client)
        assert model_bytes(run) == expected(4)


def start_worker(address):
    words = [sys.executable, "-m", "dask", "worker", address, "--nthreads", "1"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*words, "--no-dashboard", "--no-nanny"], **quiet)


class Deaths:
    """Kills workers of an outside cluster while a run goes on, and starts others."""

    def __init__(self, address, workers, *, at_once=1):
        self._address, self._workers, self._at_once = address, list(workers), at_once
        self.n_killed = 0
        self._rng = np.random.default_rng(0)
        self._timers = []

    def __call__(self, progress):
        """Kill at some rounds, at a random moment within the next round."""
        # Dask gives a task up whose workers died four times, so all workers die less often.
        share = 0.6 if self._at_once == 1 else 0.2
        if progress.steps_here and self._rng.random() < share:
            self._timers.append(threading.Timer(self._rng.uniform(0, 0.1), self._kill))
            self._timers[-1].start()
        time.sleep(0.05)

    def _kill(self):
        victims = [self._workers.pop(0) for _ in range(self._at_once)]
        self._workers += [start_worker(self._address) for _ in victims]
        for victim in victims:
            victim.kill()
            victim.wait()
        self.n_killed += len(victims)

    def end(self):
        for timer in self._timers:
            timer.join()
        for worker in self._workers:
            worker.kill()
            worker.wait()


@contextmanager
def deaths_of(n_workers, at_once):
    with outside_processes(n_workers) as (address, _, workers):
        deaths = Deaths(address, workers, at_once=at_once)
        try:
            yield address, deaths
        finally:
            deaths.end()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "at_once", "sent_bytes"),
    [(4, 1, worker_turns.SENT_BYTES), (8, 1, 0), (10, 1, 0), (4, 3, worker_turns.SENT_BYTES)],
)
def test_replicas__workers_that_are_killed_and_others_that_join_change_nothing(
    store, expected, replicas, at_once, sent_bytes, tmp_path, monkeypatch
):
    """With three at once, all workers are dead for a while.

    Workers receive what changed in the round before, although that is nearly everything here.
    """
    monkeypatch.setattr(round_weights, "MOST_CHANGED", 2.0)
    monkeypatch.setattr(worker_turns, "SENT_BYTES", sent_bytes)
    n_killed = 0
    for attempt in range(10):
        run = tmp_path / f"{attempt}"
        with deaths_of(3, at_once) as (address, deaths):
            train(store, config(replicas=replicas), run=run, scheduler=address, watch=deaths)
        assert model_bytes(run) == expected(replicas)
        n_killed += deaths.n_killed
        if n_killed >= 10:
            break
    assert n_killed >= 10


@pytest.mark.slow
def test_replicas__a_scheduler_that_is_killed_ends_the_run_in_one_line(store, expected, tmp_path):
    run, heads = tmp_path / "run", []

    def watch(progress):
        if progress.step >= 640:
            heads[-1].kill()

    for _ in range(2):
        with outside_processes(2) as (address, head, _):
            heads.append(head)
            with pytest.raises(StreammimlError, match="run the same command with --resume") as info:
                train(store, config(), run=run, resume=True, scheduler=address, watch=watch)
            assert "\n" not in str(info.value)
    with outside_processes(2) as (address, _, _):
        train(store, config(), run=run, resume=True, scheduler=address)
    assert model_bytes(run) == expected(4)


@pytest.fixture(scope="module")
def children():
    processes = Children()
    yield processes
    processes.server.stdin.close()
    processes.server.wait(30)


def test_replicas__a_run_on_threads_that_is_killed_resumes(children, store, expected, tmp_path):
    rng = np.random.default_rng(0)
    kills = killed_until_done(children, store, tmp_path / "run", rng, settings=SETTINGS)
    assert model_bytes(tmp_path / "run") == expected(4)
    assert kills >= 1


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [4, 8])
def test_replicas__a_driver_that_is_killed_twenty_times_resumes(
    children, store, expected, replicas, tmp_path
):
    rng, kills, runs = np.random.default_rng(1), 0, 0
    settings = {**SETTINGS, "replicas": replicas}
    while kills < 20:
        run = tmp_path / f"{runs}"
        kills += killed_until_done(children, store, run, rng, settings=settings)
        runs += 1
        assert model_bytes(run) == expected(replicas)


def command(store, run, *words, **changes):
    settings = {**SETTINGS, **changes}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    words = ["-m", "streammiml", "train", str(store), str(run), *options, *words]
    return [sys.executable, *words]


@pytest.mark.slow
def test_replicas__a_driver_that_is_killed_leaves_workers_that_others_use(
    store, expected, tmp_path
):
    run, rng = tmp_path / "run", np.random.default_rng(2)
    with outside_processes(2) as (address, _, _):
        words = command(store, run, "--resume", "--scheduler", address)
        n_killed = 0
        for _ in range(5):
            driver = subprocess.Popen(words, stderr=subprocess.DEVNULL)
            before = {*run.glob("checkpoints/step-*")}
            # Killed a little after its first checkpoint, if it has not ended by then.
            while driver.poll() is None and {*run.glob("checkpoints/step-*")} == before:
                time.sleep(0.02)
            time.sleep(rng.uniform(0, 0.2))
            n_killed += driver.poll() is None
            driver.kill()
            driver.wait()
        assert n_killed
        subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    assert model_bytes(run) == expected(4)


@pytest.mark.slow
@pytest.mark.parametrize("where", [[], ["--workers", "2"]], ids=["threads", "workers"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_replicas__a_signal_saves_and_says_how_to_go_on(store, where, number, tmp_path):
    run = tmp_path / "run"
    endless = command(store, run, *where, epochs=10**6, patience=10**6)
    driver = subprocess.Popen(endless, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (run / "history.jsonl").exists():
        assert time.monotonic() < deadline
        assert driver.poll() is None, driver.stderr.read()
        time.sleep(0.1)
    driver.send_signal(number)
    _, text = driver.communicate(timeout=60)
    assert driver.returncode == 128 + number
    assert "the same command with --resume continues" in text
    assert "Traceback" not in text
    assert list((run / "checkpoints").glob("step-*.safetensors"))
