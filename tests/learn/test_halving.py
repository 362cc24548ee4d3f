import math

from hypothesis import given
from hypothesis import strategies as st

from streammiml.learn.halving import ALL_STEPS, LEAST, NO_LOOKS, STOPPING_EARLY, rungs, survivors

paces = st.sampled_from([ALL_STEPS, STOPPING_EARLY, NO_LOOKS])


@given(n=st.integers(1, 300), k=st.integers(2, 6), steps=st.integers(100, 10**6), pace=paces)
def test_rungs__those_that_go_to_the_end_have_every_fold_at_all_steps(n, k, steps, pace):
    for halving in (True, False):
        result = rungs(n, k, steps, pace, halving=halving)
        folds = [fold for rung in result if rung.steps == steps for fold in rung.folds]
        assert sorted(folds) == list(range(k))
        assert all(rung.steps <= steps for rung in result)
    assert len(result) == 1


@given(n=st.integers(18, 300), k=st.integers(3, 6), needed=st.sampled_from([1500, 3000, 6000]))
def test_rungs__cost_a_quarter_of_the_full_grid_even_if_trainings_stop_early(n, k, needed):
    pace = ALL_STEPS if needed == 6000 else STOPPING_EARLY
    steps, left, cost = 6000, list(range(n)), 0
    for rung in rungs(n, k, steps, pace, halving=True):
        cost += sum(min(needed, trial.steps) for trial in rung.trials(left))
        left = survivors(left, [0.0] * len(left), pace)
    assert cost <= n * k * needed / 4


def test_rungs__without_looks_all_see_the_first_fold_and_a_third_the_others():
    first, rest = rungs(32, 3, 500, NO_LOOKS, halving=True)
    assert (first.folds, first.steps) == ((0,), 500)
    assert (rest.folds, rest.steps) == ((1, 2), 500)
    assert survivors(range(32), [32.0 - i for i in range(32)], NO_LOOKS) == list(range(21, 32))


@given(
    losses=st.lists(st.sampled_from([0.1, 0.2, 0.3, float("inf")]), min_size=1, max_size=40),
    pace=paces,
)
def test_survivors__are_the_lowest_losses_of_equal_ones_the_first(losses, pace):
    settings = [3 * i for i in range(len(losses))]
    result = survivors(settings, losses, pace)
    assert result == sorted(result)
    assert len(result) == min(len(losses), max(LEAST, math.ceil(len(losses) * pace.kept)))
    order = sorted(range(len(losses)), key=lambda i: (losses[i], i))
    assert result == sorted(settings[i] for i in order[: len(result)])
