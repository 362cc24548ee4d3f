"""SharedEpochs: the workers of a loop agree on an epoch, however they are started or ended."""

import copy
import multiprocessing
import os
import pickle
import threading

import pytest

from streammiml._base import shared_epochs
from streammiml._base.shared_epochs import SharedEpochs

METHODS = ["fork", "spawn", "forkserver"]
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")


def work(epochs, worker, n_loops, answers, resumed):
    """What a worker does: begin loops, and tell their epochs."""
    answers.put([epochs.begin(worker, epoch=resumed) for _ in range(n_loops)])


def loop(epochs, method="fork", workers=range(3), n_loops=1, resumed=None):
    """Start workers in one thread; return the epochs that each of them began."""
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    processes = [
        context.Process(target=work, args=(epochs, worker, n_loops, answers, resumed), daemon=True)
        for worker in workers
    ]
    for process in processes:
        process.start()
    received = [answers.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    return received


@pytest.mark.parametrize("method", METHODS)
def test_workers__of_a_loop_agree_and_the_next_loop_is_the_next_epoch(method):
    epochs = SharedEpochs(5)
    assert loop(epochs, method) == [[5]] * 3
    assert epochs.next() == 6
    # Workers that stay for several loops.
    assert loop(epochs, method, n_loops=2) == [[6, 7]] * 3
    epochs.set_next(20)
    assert loop(epochs, method, workers=range(2)) == [[20]] * 2
    assert epochs.begin() == 21


def end_before_beginning():
    os._exit(0)


def test_workers__that_end_before_they_begin_change_nothing():
    epochs = SharedEpochs(0)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    for epoch in range(3):
        # The second of three workers never begins.
        targets = [
            (work, (epochs, 0, 1, answers, None)),
            (end_before_beginning, ()),
            (work, (epochs, 2, 1, answers, None)),
        ]
        processes = [context.Process(target=target, args=args) for target, args in targets]
        for process in processes:
            process.start()
        assert [answers.get(timeout=60) for _ in range(2)] == [[epoch]] * 2
        for process in processes:
            process.join()
    assert loop(epochs) == [[3]] * 3


def test_loops__that_start_in_several_threads_at_once_do_not_mix():
    epochs, loops = SharedEpochs(0), []
    threads = [threading.Thread(target=lambda: loops.append(loop(epochs))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(loops) == [[[epoch]] * 3 for epoch in range(4)]


def begin_and_be_killed(epochs):
    with epochs._locked():
        epochs._map[1:6] = 99
        os._exit(1)


def test_worker__killed_while_it_holds_the_lock_does_not_stop_the_others():
    epochs = SharedEpochs(0)
    process = multiprocessing.get_context("fork").Process(
        target=begin_and_be_killed, args=(epochs,)
    )
    process.start()
    process.join()
    assert loop(epochs) == [[0]] * 3


def test_resumed_loop__has_the_epoch_of_its_state_and_later_loops_follow():
    epochs = SharedEpochs(0)
    assert loop(epochs, resumed=7) == [[7]] * 3
    assert loop(epochs) == [[8]] * 3
    assert epochs.begin(epoch=3) == 3
    assert epochs.begin() == 4


def rank(epochs, answers):
    answers.put([loop(epochs), epochs.begin(), loop(epochs)])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes__that_share_a_dataset_count_their_own_loops(method):
    epochs = SharedEpochs(2)
    epochs.begin()
    epochs.set_next(4)
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    ranks = [context.Process(target=rank, args=(epochs, answers)) for _ in range(2)]
    for process in ranks:
        process.start()
    for _ in ranks:
        assert answers.get(timeout=120) == [[[4]] * 3, 5, [[6]] * 3]
    for process in ranks:
        process.join()
    assert epochs.next() == 4


def test_copy__has_epochs_of_its_own():
    epochs = SharedEpochs(0)
    epochs.begin()
    for other in (copy.deepcopy(epochs), pickle.loads(pickle.dumps(epochs))):
        assert [other.begin(), other.begin()] == [1, 2]
    assert epochs.begin() == 1


def test_table__forgets_the_oldest_loops_only(monkeypatch):
    monkeypatch.setattr(shared_epochs, "N_RECORDS", 4)
    epochs = SharedEpochs(0)
    assert [epochs.begin() for _ in range(11)] == list(range(11))
    assert loop(epochs, n_loops=4) == [[11, 12, 13, 14]] * 3
