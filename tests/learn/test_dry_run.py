"""Dry runs: what is foretold is what training then does."""

import pytest

from streammiml._base.platform import bytes_read
from streammiml.bags.store import BagStore, open_store
from streammiml.config import TrainConfig
from streammiml.errors import StreammimlError
from streammiml.learn import choice, defaults
from streammiml.learn import dry_run as dry_runs
from streammiml.learn.dry_run import dry_run
from streammiml.learn.machines import TrainMachines
from streammiml.learn.train import train
from tests.clusters import inside_client
from tests.planted import planted
from tests.stores import write_store

SMALL = {"shared_dim": 8, "subconcepts": 2, "block_bags": 8, "mix_blocks": 6, "epochs": 3}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("s") / "s.zarr", planted(), chunk_bytes=256)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(dry_runs, "STEP_SECONDS", 0.05)


@pytest.mark.parametrize("changes", [{}, {"order": "full"}, {"max_steps": 77}, {"validation": 0}])
def test_dry_run__steps_and_bags_are_those_of_the_run(changes, store):
    config = TrainConfig(**{**SMALL, **changes}, patience=1000)
    estimate = dry_run(store, config)
    model = train(store, config)
    assert estimate.steps == model.provenance["steps"]
    assert estimate.validate_every == model.settings["validate_every"]
    assert estimate.training_bags + estimate.held_out_bags == 300
    assert (
        estimate.memory_total == sum(estimate.memory.values()) <= estimate.memory_allowed == 1 << 30
    )
    assert 0 < estimate.seconds_per_step < 1
    assert estimate.seconds >= estimate.steps * estimate.seconds_per_step


@pytest.mark.parametrize("average", [True, False])
def test_dry_run__of_replicas_foretells_rounds_and_what_they_move(average, store):
    config = TrainConfig(**SMALL, replicas=3, average=average, patience=1000)
    estimate = dry_run(store, config)
    moved = []

    def watch(progress):
        if progress.is_line and progress.rounds:
            moved.append(1e6 * progress.moved_mb / progress.rounds)

    with inside_client() as client:
        model = train(store, config, client=client, watch=watch)
    assert (estimate.steps, estimate.replicas) == (model.provenance["steps"], 3)
    assert estimate.round_steps == model.settings["round_steps"]
    # Rows of the changed vectors are numbered, 8 bytes each; small tables have few values a row.
    assert 0.3 * estimate.round_bytes < max(moved) <= 1.4 * estimate.round_bytes
    assert 0 < estimate.efficiency < 1
    for memory in (estimate.driver_memory, estimate.worker_memory):
        assert 0 < memory < estimate.memory_total


def test_dry_run__counts_the_trials_before_training(store, monkeypatch):
    monkeypatch.setattr(defaults, "MOST_STEPS", 1200)
    monkeypatch.setattr(defaults, "LOOK_EVERY", 200)
    seen = []
    for preset, n_trials in (("auto", 15), ("plain", 3)):
        config = TrainConfig(preset=preset)
        estimate = dry_run(store, config)
        train(store, config, watch_choice=seen.append)
        assert estimate.trials == seen[-1].n_trials == n_trials
        assert estimate.trial_steps == {"auto": 9, "plain": 3}[preset] * 1200
        assert estimate.seconds_of_trials > 0
        limited = dry_run(store, TrainConfig(preset=preset, time_limit="0.001s"))
        assert limited.seconds_of_trials == 0.001
    assert dry_run(store, TrainConfig(**SMALL)).trials == 0


def test_dry_run__knows_the_bound_of_work_of_a_run_after_short_trials(store, monkeypatch):
    config = TrainConfig(lift="none", subconcepts=1, shared_space=True)
    assert dry_run(store, config).steps == defaults.STEPS + -defaults.STEPS % 300
    plan = choice.plan_choice(store, config, {"subconcepts": 1}, has_start=False)
    monkeypatch.setattr(choice, "MOST_WORK", 2000 * plan.work[0])
    monkeypatch.setattr(choice, "MOST_EXTRA_WORK", 5000 * plan.work[0])
    assert dry_run(store, config).steps == 5000 // 300 * 300


def test_dry_run__seconds_of_trials_lie_between_those_of_the_cheapest_and_costliest_steps(
    store, monkeypatch
):
    def timed(config, *_):
        # Multiplications differ by far more than a factor of two between these settings.
        return (2e-3 if config.lift != "none" else 1e-3), 0.0

    monkeypatch.setattr(dry_runs, "timed_step", timed)
    for preset, least, most in (("auto", 1.1, 1.9), ("plain", 1.0, 1.0)):
        estimate = dry_run(store, TrainConfig(preset=preset))
        share = estimate.seconds_of_trials / (estimate.trial_steps * 1e-3)
        assert least - 1e-9 <= share <= most + 1e-9


@pytest.mark.skipif(not bytes_read(), reason="this system does not count what is read")
@pytest.mark.parametrize("kind", [{}, {"sparse": True}, {"dtype": "uint8"}])
@pytest.mark.parametrize("changes", [{}, {"mix_blocks": 1000}])
def test_dry_run__bytes_are_about_those_that_training_asks_for(
    kind, changes, tmp_path, monkeypatch
):
    store = write_store(tmp_path / "s.zarr", planted(2000, n_features=40, **kind))
    config = TrainConfig(**{**SMALL, "block_bags": 32, **changes}, validation=0, threads=1)
    estimate = dry_run(store, config)
    read, real = [], BagStore.read_ranges

    def counting(self, ranges):
        read.extend(self.read(*bags).nbytes for bags in ranges)
        return real(self, ranges)

    monkeypatch.setattr(BagStore, "read_ranges", counting)
    train(open_store(store.name), config)
    # Every read fetches whole chunks: what is foretold is that much larger.
    seen = sum(read) / max(estimate.read_total, 1)
    n_epochs = estimate.read_total / estimate.read_per_epoch
    assert n_epochs == (1 if "mix_blocks" in changes else pytest.approx(3, rel=0.01))
    assert 0.02 < seen < 1.5


def test_dry_run__of_weights_and_a_validation_store(store, tmp_path):
    other = write_store(tmp_path / "v.zarr", planted(70, seed=3))
    config = TrainConfig(**SMALL, weights="2,0.5", validation_store=other.name)
    estimate = dry_run([store.name, other.name], config)
    assert estimate.held_out_bags == 70
    assert estimate.training_bags == 370
    assert estimate.steps_per_epoch == 2 * 300 + 35


@pytest.mark.parametrize(
    ("replicas", "options", "message"),
    [
        (2, {"worker_memory": "9MiB"}, "^a worker may hold 9 MiB, and training would hold"),
        (1, {}, "^--workers trains the replicas of a run, and this run has one"),
    ],
)
def test_dry_run__refuses_workers_that_training_would_refuse(replicas, options, message, store):
    machines = TrainMachines(workers=2, **options)
    with pytest.raises(StreammimlError, match=message):
        dry_run(store, TrainConfig(**SMALL, replicas=replicas), machines=machines)


def test_dry_run__refuses_what_training_would_refuse(store, monkeypatch):
    def read(*_, **__):
        raise AssertionError("a row was read")

    monkeypatch.setattr(BagStore, "read", read)
    with pytest.raises(StreammimlError, match=r"training would hold .*more than --memory 1GiB"):
        dry_run(store, TrainConfig(shared_dim=10**8))
