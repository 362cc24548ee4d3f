"""Where the time goes: compiling is counted apart, and says nothing of the pace."""

import time

import pytest

from streammiml.learn.timing import CHECKPOINTS, COMPILING, KERNEL, TrainClock


class Compiler:
    """Stands for what the process has compiled so far."""

    seconds = 3.0

    def __call__(self):
        return self.seconds


def test_clock__leaves_compiling_out_of_what_is_timed_and_of_the_pace():
    compiler = Compiler()
    clock = TrainClock(compiler)
    begun = time.monotonic()
    with clock.spending(KERNEL) as spent:
        time.sleep(0.2)
        compiler.seconds += 0.15
        seconds = spent()
        assert 0.04 < seconds <= time.monotonic() - begun - 0.15
    clock.did(steps=10, rows=20, n_bytes=30)
    work = clock.work()
    times = work.times()
    assert times[COMPILING] == pytest.approx(0.15)
    assert times[KERNEL] == pytest.approx(work.spent[0], abs=1e-3)
    assert times[KERNEL] <= work.seconds - 0.15 + 1e-3
    assert work.seconds_at_work == pytest.approx(work.seconds - 0.15)
    assert work.per_second(work.steps) == pytest.approx(10 / (work.seconds - 0.15))


def test_clock__what_was_compiled_before_it_began_is_not_counted():
    assert TrainClock(Compiler()).work().times()[COMPILING] == 0


def test_work__of_a_while_is_the_difference():
    compiler = Compiler()
    clock = TrainClock(compiler)
    clock.did(5, 5, 5)
    before = clock.work()
    with clock.spending(CHECKPOINTS):
        compiler.seconds += 1
    clock.did(2, 3, 4)
    work = clock.work() - before
    assert (work.steps, work.rows, work.n_bytes) == (2, 3, 4)
    assert work.times()[COMPILING] == 1
