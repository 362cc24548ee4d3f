"""A team: jobs at the same time, results in order, errors told, nobody left behind."""

import threading
import time

import pytest

from streammiml.blocks.team import Team


@pytest.mark.parametrize("n", [1, 2, 5])
def test_team__gives_results_in_order_time_and_again(n):
    with Team(n) as team:
        for round_number in range(3):
            jobs = [lambda i=i, r=round_number: (r, i) for i in range(n)]
            assert team.run(jobs) == [(round_number, i) for i in range(n)]


def test_team__works_at_the_same_time():
    meeting = threading.Barrier(3, timeout=60)
    with Team(3) as team:
        team.run([meeting.wait] * 3)
    assert not meeting.broken


def test_team__an_error_is_raised_after_all_are_done_and_the_team_goes_on():
    done = []

    def fail():
        raise ValueError("job 1 failed")

    with Team(3) as team:
        with pytest.raises(ValueError, match="job 1 failed"):
            team.run([lambda: done.append(0), fail, lambda: done.append(2)])
        assert sorted(done) == [0, 2]
        assert team.run([lambda: 1] * 3) == [1, 1, 1]


def test_team__its_threads_end_with_it():
    with Team(3):
        pass
    end = time.monotonic() + 60
    while any(t.name.startswith("team-") for t in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.01)
