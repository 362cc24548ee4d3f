"""Runs with replicas: the same bytes wherever turns run, however a run is cut; and its schedule."""

import json
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml._base import pool as pools
from streammiml._base.pool_interface import this_worker
from streammiml._base.thread_pool import ThreadPool
from streammiml.bags.memory import MemoryBags
from streammiml.config import TrainConfig
from streammiml.errors import DivergedError, StoreError, StreammimlError
from streammiml.learn import machines, rounds, worker_turns
from streammiml.learn import replica as turns
from streammiml.learn.begin import begin, settle
from streammiml.learn.checkpoint import has_checkpoint
from streammiml.learn.rounds import RoundLoop, RoundSchedule, last_step, round_schedule
from streammiml.learn.run_folder import RunFolder
from streammiml.learn.stop_signals import Stopped, StopSignals
from streammiml.learn.train import train
from tests.clusters import inside_client
from tests.planted import planted
from tests.stores import write_store

SMALL = {
    "shared_dim": 8, "subconcepts": 2, "block_bags": 4, "mix_blocks": 6, "replicas": 4,
    "round_steps": 192, "epochs": 9, "validation": 0.1, "validate_every": 90, "patience": 50,
    "checkpoint_every": "70",
}  # fmt: skip


def small(**changes):
    return TrainConfig(**{**SMALL, **changes})


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("made") / "s.zarr", planted())


@pytest.fixture(scope="module")
def sparse_store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("sparse") / "s.zarr", planted(sparse=True))


def model_bytes(run):
    return (run / "model.safetensors").read_bytes()


def trained(store, run, config=None, **options):
    train(store, config or small(), run=run, **options)
    return model_bytes(run)


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory):
    """The bytes of a run on the threads of this process, never interrupted."""
    return trained(store, tmp_path_factory.mktemp("whole") / "run")


def history(run):
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


# The schedule.


def test_schedule__rounds_begin_short_and_grow_to_the_limit():
    schedule, step, lengths = RoundSchedule(1024, 1000, 10**9), 0, []
    while step < 40_000:
        lengths.append(schedule.next_end(step) - step)
        step += lengths[-1]
    assert lengths[0] == rounds.FIRST_STEPS
    assert lengths == sorted(lengths)
    assert lengths[-1] == 1024
    assert all(length % 64 == 0 for length in lengths)


@given(st.integers(1, 3000), st.integers(1, 5000), st.integers(0, 400))
def test_schedule__looks_at_the_first_end_of_a_round_after_each_multiple(most, every, n_rounds):
    schedule, step = RoundSchedule(most, every, 10**9), 0
    for _ in range(n_rounds):
        before, step = step, schedule.next_end(step)
        assert schedule.is_look(step) == (step // every > before // every)
        if step - before > 1:
            assert not schedule.is_look(step - 1)
    assert schedule.is_look(0)


def test_last_step__counts_the_steps_of_each_replica():
    assert last_step(9, 270.0, 4) == 608
    assert last_step(1, 0.5, 8) == 1


def test_schedule__of_a_run_ends_with_its_epochs_or_steps(store):
    ready = begin(settle(store, small()))
    expected = last_step(9, ready.plan.visits.steps_an_epoch(), 4)
    assert round_schedule(ready).end == expected
    assert round_schedule(begin(settle(store, small(max_steps=100)))).end == 100


# The same bytes.


@pytest.mark.parametrize("n_cores", [1, 3])
def test_replicas__the_number_of_threads_changes_nothing(
    store, whole, n_cores, tmp_path, monkeypatch
):
    monkeypatch.setattr(machines, "usable_cores", lambda: n_cores)
    assert trained(store, tmp_path / "run") == whole


def test_replicas__streams_that_are_opened_anew_change_nothing(store, whole, tmp_path, monkeypatch):
    real = turns.take_turn

    def forgetful(at, start, job):
        turns._STREAMS.close(job.key)
        return real(at, start, job)

    monkeypatch.setattr(rounds, "take_turn", forgetful)
    assert trained(store, tmp_path / "run") == whole


def test_replicas__large_weights_that_are_summed_by_groups_give_the_same_bytes(
    store, tmp_path, monkeypatch
):
    """Ten replicas are two groups."""
    config = small(replicas=10, block_bags=1, mix_blocks=2)
    expected = trained(store, tmp_path / "small", config)
    monkeypatch.setattr(worker_turns, "SENT_BYTES", 0)
    monkeypatch.setattr(pools, "open_pool", lambda *_, **__: FakeCluster({"a": 1}))
    assert trained(store, tmp_path / "large", config) == expected


class CutError(Exception):
    """Stands for a kill at a moment that the test chooses."""


class OddPool(ThreadPool):
    """Threads whose results come in another order."""

    def map(self, *args, **options):
        yield from reversed(list(super().map(*args, **options)))


def test_replicas__control_results_in_another_order_are_noticed(store, tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "open_pool", lambda *_, **__: OddPool(2))
    with pytest.raises(AssertionError):
        train(store, small(), run=tmp_path / "run")


class RelabelledPool(OddPool):
    """The same, but each result says that it is the one that is wanted."""

    def map(self, *args, **options):
        for replica, result in enumerate(super().map(*args, **options)):
            yield replace(result, at=result.at._replace(replica=replica))


def test_replicas__control_results_that_pass_for_others_give_other_bytes(
    store, whole, tmp_path, monkeypatch
):
    monkeypatch.setattr(pools, "open_pool", lambda *_, **__: RelabelledPool(2))
    assert trained(store, tmp_path / "run") != whole


def test_replicas__bags_in_memory_give_the_weights_of_a_store(store):
    bags = MemoryBags(planted())
    one, other = (train(source, small()) for source in (store, bags))
    assert one.labels.tobytes() == other.labels.tobytes()
    assert one.shared.tobytes() == other.shared.tobytes()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"average": False},
        {"lift": "fourier:5,context"},
        {"shared_space": False},
        {"order": "full"},
        {"order": "uniform"},
        {"mix_blocks": 10**6},
        {"replicas": 9, "epochs": 20},
        {"validation": 0.0},
        {"round_steps": 50},
        {"weights": "1.5"},
    ],
    ids=str,
)
def test_replicas__a_run_that_was_cut_ends_in_the_same_bytes(store, changes, tmp_path):
    expected = trained(store, tmp_path / "whole", small(**changes))
    run = tmp_path / "run"
    for last in (0, 1, 128, 300, 500, 560):

        def watch(progress, last=last):
            if progress.step >= last:
                raise CutError

        with pytest.raises(CutError):
            train(store, small(**changes), run=run, resume=True, watch=watch)
    assert trained(store, run, small(**changes), resume=True) == expected


def test_replicas__sparse_rows_are_trained_on_too(sparse_store, tmp_path, monkeypatch):
    expected = trained(sparse_store, tmp_path / "one")
    monkeypatch.setattr(machines, "usable_cores", lambda: 1)
    assert trained(sparse_store, tmp_path / "other") == expected


def test_replicas__extended_runs_equal_runs_begun_longer(store, tmp_path):
    longer = trained(store, tmp_path / "longer", small(epochs=14))
    trained(store, tmp_path / "run")
    train(store, run=tmp_path / "run", extend=5)
    assert model_bytes(tmp_path / "run") == longer


def test_replicas__more_steps_on_resume_equal_runs_begun_longer(store, tmp_path):
    longer = trained(store, tmp_path / "longer", small(max_steps=500))
    # 300 is in the middle of a round of the longer run.
    trained(store, tmp_path / "run", small(max_steps=300))
    assert trained(store, tmp_path / "run", small(max_steps=500), resume=True) == longer


def test_replicas__a_finished_run_resumed_is_the_same_model(store, whole, tmp_path):
    trained(store, tmp_path / "run")
    assert trained(store, tmp_path / "run", resume=True) == whole


def test_replicas__start_from_a_model(store, tmp_path):
    start = train(store, small(epochs=1))
    run = tmp_path / "run"
    one = trained(store, run, small(epochs=2), start=start)
    assert one == trained(store, tmp_path / "again", small(epochs=2), start=start)
    assert history(run)[0]["step"] == 0


def test_replicas__that_start_from_a_model_and_are_cut_in_the_first_round_look_once(
    store, tmp_path, monkeypatch
):
    start, config = train(store, small(epochs=1)), small(epochs=2, patience=2)
    expected = trained(store, tmp_path / "whole", config, start=start)
    for _ in range(2):
        monkeypatch.setattr(rounds, "take_turn", gone)
        with pytest.raises(StoreError, match="the disk is gone"):
            train(store, config, run=tmp_path / "cut", start=start, resume=True)
    monkeypatch.undo()
    assert trained(store, tmp_path / "cut", config, start=start, resume=True) == expected
    assert [line["step"] for line in history(tmp_path / "cut")] == [
        line["step"] for line in history(tmp_path / "whole")
    ]


def gone(*_):
    raise StoreError("the disk is gone")


def test_replicas__learn(store, tmp_path):
    run = tmp_path / "run"
    trained(store, run)
    losses = [line["validation_loss"] for line in history(run)]
    assert losses[-1] < 0.6 * losses[0]


def test_replicas__early_stopping_ends_the_run(store, tmp_path):
    run = tmp_path / "run"
    model = train(store, small(epochs=500, patience=2), run=run)
    assert model.provenance["steps"] < 500 * 270 / 4
    losses = [line["validation_loss"] for line in history(run)]
    assert min(losses) == min(losses[:-2])


def test_replicas__every_bag_is_visited_about_once_an_epoch(store):
    ready = begin(settle(store, small(validation=0.0)))
    loop = RoundLoop(ready, lambda _: None, StopSignals(), ThreadPool(2))
    loop.run()
    at = ready.state.at
    assert at.step == round_schedule(ready).end == 9 * 300 // 4
    assert all(abs(epoch * 75 + place - at.step) < 60 for epoch, place in at.replicas)


# The history and the folder.


def test_seconds_of_turns__tell_waiting_from_work():
    """Two threads; one takes two turns of 3 s, the other one of 2 s."""

    def turn(thread, seconds):
        return SimpleNamespace(
            worker="a", thread=thread, seconds=seconds, kernel_seconds=seconds - 1,
            reading_seconds=0.5,
        )  # fmt: skip

    spent = rounds.seconds_of_turns([turn(1, 3), turn(2, 2), turn(1, 3)], 2)
    assert spent == {"kernel": 2.5, "reading": 0.75, "reducing": 0.75, "waiting": 2.0}


def test_history__tells_the_time_of_rounds_and_their_steps(store, tmp_path):
    run, moments = tmp_path / "run", []
    train(store, small(), run=run, watch=moments.append)
    lines = history(run)
    steps = [line["step"] for line in lines]
    assert steps == sorted({*steps})
    for line in lines:
        assert {"kernel", "reducing", "waiting", "moving"} <= set(line["time"])
        assert sum(line["time"].values()) <= line["seconds"] + 0.01
        assert line["rows_per_second"] > line["steps_per_second"] > 0
        assert 0 < line["share_of_violations"] <= 1
        assert line["loss"] > 0
    shares = [moment.done for moment in moments]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert {moment.replicas for moment in moments} == {4}


def test_settings__record_the_replicas_and_the_length_of_rounds(store, tmp_path):
    run = tmp_path / "run"
    trained(store, run, small(round_steps=None))
    recorded = RunFolder(run, resume=True).settings()
    assert recorded["replicas"] == 4
    assert recorded["round_steps"] == 128
    with pytest.raises(StreammimlError, match="was begun with replicas 4, not 5; leave it out"):
        train(store, small(round_steps=None, replicas=5), run=run, resume=True)


def test_model__of_one_replica_does_not_speak_of_replicas(store):
    plain = {
        name: value for name, value in SMALL.items() if name not in ("replicas", "round_steps")
    }
    model = train(store, TrainConfig(**plain))
    assert {"replicas", "round_steps"}.isdisjoint(model.settings)
    assert train(store, small()).settings["replicas"] == 4


# What goes wrong.


def ready_in(folder, store, **changes):
    # ``train`` would choose this threshold: the run holds out bags.
    return begin(settle(store, small(threshold="count", **changes), folder))


def test_signal__saves_the_state_before_the_round_and_resumes(store, whole, tmp_path):
    run, stop = tmp_path / "run", StopSignals()

    def signalled(progress):
        if progress.step >= 128:
            stop.number = signal.SIGTERM

    with RunFolder(run, resume=False) as folder:
        ready = ready_in(folder, store, checkpoint_every="1d")
        with pytest.raises(Stopped, match="stopped at step "):
            RoundLoop(ready, signalled, stop, ThreadPool(2)).run()
        assert has_checkpoint(folder.checkpoints)
    assert trained(store, run, resume=True) == whole


def test_turn__that_cannot_read_saves_the_state(store, whole, tmp_path, monkeypatch):
    run, calls = tmp_path / "run", []

    def failing(at, start, job):
        calls.append(at)
        if len(calls) > 6:
            raise StoreError("the disk is gone")
        return turns.take_turn(at, start, job)

    monkeypatch.setattr(rounds, "take_turn", failing)
    with pytest.raises(StoreError, match="the disk is gone"):
        train(store, small(checkpoint_every="1d"), run=run)
    monkeypatch.undo()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "step-000000000000.safetensors",
        "step-000000000128.safetensors",
    ]
    assert trained(store, run, resume=True) == whole


def test_divergence__names_the_step(store):
    ready = begin(settle(store, small()))
    ready.state.weights.labels[:] = float("nan")
    with pytest.raises(DivergedError, match="training diverged at step 0: a score or weight"):
        RoundLoop(ready, lambda _: None, StopSignals(), ThreadPool(2)).run()


def otherwise(at, start, job):
    """A turn on a machine that computes other bits, for one of the replicas."""
    result = turns.take_turn(at, start, job)
    return replace(result, arithmetic="other") if at.replica == 2 else result


def test_machines__of_another_kind_are_refused_unless_accepted(store, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "take_turn", otherwise)
    with pytest.raises(StreammimlError, match="this machine computes other bits than the machines"):
        train(store, small(), run=tmp_path / "run")
    assert trained(store, tmp_path / "run", resume=True, mixed_machines=True) == whole


def test_resume__on_a_machine_of_another_kind_is_refused(store, tmp_path, monkeypatch):
    train(store, small(max_steps=256), run=tmp_path / "run")
    monkeypatch.setattr(turns, "arithmetic", lambda **_: "other")
    with pytest.raises(StreammimlError, match="use machines of one kind, or give --mixed-machines"):
        train(store, small(max_steps=600), run=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"replicas": 301, "block_bags": None},
            "--replicas 301 is too many: .* has 300 bags; give",
        ),
        ({"replicas": 76}, "has 75 blocks of 4 bags; give at most --replicas 75"),
        ({"memory": "1MiB"}, "training would hold .* more than --memory 1MiB"),
    ],
)
def test_plan__replicas_that_do_not_fit_are_refused(store, changes, message):
    with pytest.raises(StreammimlError, match=message):
        train(store, small(**changes))


def test_plan__the_streams_of_all_replicas_are_within_the_memory(store):
    held = [
        begin(settle(store, small(replicas=n, round_steps=128, mix_blocks=2))).plan.budget.held
        for n in (2, 4)
    ]
    for name in ("mixing", "batches"):
        assert held[1][name] == 2 * held[0][name]


# Where turns run.


class FakeCluster(ThreadPool):
    """Threads that pretend to be workers, which come and go."""

    is_remote = True

    def __init__(self, *rounds_of_workers):
        super().__init__(2)
        self._rounds = list(rounds_of_workers)
        self.dealt = []

    def workers(self):
        return self._rounds.pop(0) if len(self._rounds) > 1 else self._rounds[0]

    def on_every_worker(self, function, *values):
        return {"here": function(*values)}

    def map(self, task, items, *shared, prefer, **_):
        if task is rounds._probe:
            yield from (task(item, *shared) for item in items)
            return
        self.dealt.append([prefer(item) for item in items])
        for item, address in zip(items, self.dealt[-1], strict=True):
            yield replace(task(item, *shared), worker=address)


def test_workers__keep_their_replicas_and_share_them_evenly(store, monkeypatch):
    two, three = {"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 2}
    monkeypatch.setattr(rounds, "WORKERS_SECONDS", 0.0)
    # The first answer is for the probe.
    pool = FakeCluster(two, two, two, three, {"c": 2, "d": 1}, two)
    ready = begin(settle(store, small(max_steps=128 * 5)))
    RoundLoop(ready, lambda _: None, StopSignals(), pool).run()
    first, second, third, fourth, *_ = pool.dealt
    assert sorted(first) == ["a", "a", "b", "b"]
    assert second == first
    assert sorted(third) == ["a", "b", "c", "c"]
    assert sum(one == other for one, other in zip(second, third, strict=True)) == 2
    assert set(fourth) == {"c", "d"}


class BlindWorkers(FakeCluster):
    """Workers that do not see the files of the store; one of them does not answer."""

    def on_every_worker(self, function, *_):
        if function is turns.end_turns:
            return {}
        missing = StoreError("/data/s.zarr is not a store")
        return {"tcp://gone:1": TimeoutError(), "tcp://far:1": missing}


def test_workers__that_cannot_read_the_store_are_refused_before_any_step(store):
    ready = begin(settle(store, small()))
    message = "the worker at tcp://far:1 cannot read the store: /data/s.zarr is not a store; wor"
    with pytest.raises(StreammimlError, match=message):
        RoundLoop(ready, lambda _: None, StopSignals(), BlindWorkers({"a": 1})).run()
    assert ready.state.at.step == 0


class SmallWorkers(BlindWorkers):
    """Workers that see the store and may hold little."""

    def on_every_worker(self, *_):
        return {}

    def least_memory(self):
        return 8 << 20


def test_workers__that_may_hold_too_little_are_refused_before_any_step(store):
    ready = begin(settle(store, small()))
    message = r"^a worker may hold 8 MiB, and training would hold \S+ MiB in each worker; give wor"
    with pytest.raises(StreammimlError, match=message):
        RoundLoop(ready, lambda _: None, StopSignals(), SmallWorkers({"a": 1})).run()
    assert ready.state.at.step == 0


def test_workers__of_two_kinds_are_refused_before_any_step(store, monkeypatch):
    monkeypatch.setattr(rounds, "arithmetic", lambda **_: this_worker())
    steps = []
    with inside_client() as client, pytest.raises(StreammimlError, match="computes other bits"):
        train(store, small(), client=client, watch=lambda progress: steps.append(progress.step))
    assert not steps


def test_scheduler__that_does_not_answer_leaves_no_run_behind(store, whole, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(StreammimlError, match="no Dask scheduler answers at"):
        train(store, small(), run=run, scheduler="tcp://127.0.0.1:1")
    assert trained(store, run) == whole
