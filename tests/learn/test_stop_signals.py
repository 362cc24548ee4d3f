"""Signals that ask a run to stop: noted between steps, raised only while a run waits."""

import signal
import threading

import pytest

from streammiml.learn.stop_signals import Interrupted, Stopped, StopSignals


def test_listening__notes_the_first_signal_and_restores_the_handlers():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    stop = StopSignals()
    with stop.listening():
        signal.raise_signal(signal.SIGTERM)
        assert stop.number == signal.SIGTERM
        # A second signal ends the process, as without a handler.
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_interrupting__a_signal_interrupts_the_wait():
    stop = StopSignals()
    with stop.listening(), pytest.raises(Interrupted), stop.interrupting():
        signal.raise_signal(signal.SIGINT)
    assert stop.number == signal.SIGINT


def test_interrupting__a_signal_from_before_interrupts_at_once():
    stop = StopSignals()
    stop.number = signal.SIGTERM
    with pytest.raises(Interrupted), stop.interrupting():
        pytest.fail("the wait began")


def test_listening__in_another_thread_does_nothing():
    before, entered = signal.getsignal(signal.SIGINT), []

    def listen():
        with StopSignals().listening():
            entered.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert entered == [before]


def test_stopped__names_the_step_and_keeps_the_signal():
    stopped = Stopped(15, 12_000)
    assert str(stopped) == "stopped at step 12,000"
    assert stopped.number == 15
