"""Reading ahead: in order, bounded, errors in their place, nothing left hanging."""

import subprocess
import sys
import threading
import time

import pytest

from streammiml.blocks.prefetch import ReadAhead, run_ahead
from streammiml.errors import StoreError


def readers():
    return [t for t in threading.enumerate() if t.name.startswith("reader-") and t.is_alive()]


def wait_for_no_readers():
    end = time.monotonic() + 60
    while readers() and time.monotonic() < end:
        time.sleep(0.01)
    return readers()


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("depth", [1, 3, 50])
def test_read_ahead__results_come_in_order_whatever_finishes_first(threads, depth):
    def slow_when_even(i):
        time.sleep(0.002 * (i % 2 == 0))
        return i * i

    with ReadAhead(slow_when_even, range(40), depth=depth, threads=threads) as ahead:
        assert list(ahead) == [i * i for i in range(40)]
    assert wait_for_no_readers() == []


@pytest.mark.parametrize("threads", [1, 3])
def test_read_ahead__never_reads_further_than_its_depth(threads):
    begun = []
    with ReadAhead(begun.append, range(100), depth=5, threads=threads) as ahead:
        for taken in range(1, 20):
            next(ahead)
            time.sleep(0.005)
            assert len(begun) <= taken + 5
    assert wait_for_no_readers() == []


def test_read_ahead__an_error_is_raised_in_its_place_and_ends_it():
    def read(i):
        if i == 3:
            raise StoreError("block 3 is damaged")
        return i

    ahead = ReadAhead(read, range(10), depth=8, threads=3)
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(StoreError, match="block 3 is damaged"):
        next(ahead)
    assert wait_for_no_readers() == []


def test_read_ahead__a_plan_that_fails_is_told_too():
    def plan():
        yield 1
        raise RuntimeError("no plan")

    ahead = ReadAhead(lambda i: i, plan(), depth=4)
    assert next(ahead) == 1
    with pytest.raises(RuntimeError, match="no plan"):
        next(ahead)


def test_read_ahead__a_thread_that_dies_with_exit_is_told_too():
    def read(_):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        next(ReadAhead(read, range(3), depth=2))


def test_read_ahead__a_read_that_hangs_is_told_within_the_deadline():
    release = threading.Event()
    begun = time.monotonic()
    with pytest.raises(StoreError, match=r"did not return within 0\.3 s"):
        next(ReadAhead(lambda _: release.wait(), range(3), depth=2, deadline=0.3))
    assert time.monotonic() - begun < 30
    release.set()
    assert wait_for_no_readers() == []


def test_read_ahead__a_hung_read_does_not_keep_the_process_alive():
    code = (
        "import time\nfrom streammiml.blocks.prefetch import ReadAhead\n"
        "ahead = ReadAhead(lambda _: time.sleep(600), range(3), depth=2, deadline=0.2)\n"
        "try:\n    next(ahead)\nexcept ValueError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "hangs" in done.stdout


def test_read_ahead__closing_early_lets_the_readers_go():
    ahead = ReadAhead(lambda i: i, iter(int, 1), depth=4, threads=2)
    next(ahead)
    ahead.close()
    assert wait_for_no_readers() == []


def test_read_ahead__closing_it_wakes_whoever_waits_for_a_result():
    release, errors = threading.Event(), []
    ahead = ReadAhead(lambda _: release.wait(60), range(3), depth=1)

    def wait():
        with pytest.raises(StoreError, match="reading has been stopped") as caught:
            next(ahead)
        errors.append(caught.value)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.05)
    ahead.close()
    waiter.join(50)
    release.set()
    assert len(errors) == 1
    with pytest.raises(StoreError, match="reading has been stopped"):
        next(ahead)
    assert wait_for_no_readers() == []


def test_read_ahead__counts_the_time_that_the_consumer_waited():
    with ReadAhead(lambda _: time.sleep(0.05), range(3), depth=1) as ahead:
        list(ahead)
        assert ahead.waited > 0.1


def test_run_ahead__gives_what_the_iterator_gives():
    assert list(run_ahead(iter(range(20)), depth=3)) == list(range(20))


def test_run_ahead__a_slow_iterator_does_not_hold_back_what_is_ready():
    taken = threading.Event()

    def slow():
        yield from range(4)
        assert taken.wait(60), "what was ready did not come"
        yield 4

    ahead = run_ahead(slow(), depth=8)
    assert [next(ahead) for _ in range(4)] == [0, 1, 2, 3]
    taken.set()
    assert list(ahead) == [4]


def test_read_ahead__says_again_that_it_has_ended():
    ahead = ReadAhead(lambda item: item, [1], depth=2)
    assert list(ahead) == [1]
    assert next(ahead, None) is None
