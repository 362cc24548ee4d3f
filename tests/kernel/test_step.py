import inspect

import numpy as np
import pytest

from streammiml.kernel import score, step
from streammiml.kernel.average import make_averages
from streammiml.kernel.sweep import project_all
from tests.kernel.cases import dense_block, random_weights, sparse_block
from tests.oracles import step as oracle

FIELDS = ["label", "against", "tries", "distinct", "row", "against_row", "sub", "against_sub"]


def without_average(weights):
    return make_averages(*weights, stride=0)


def twin_of(weights, size):
    """The same weights in float64 and without padding."""
    shared = weights.shared[:, :size].astype(np.float64) if len(weights.shared) else None
    return oracle.Model(shared, weights.labels[..., :size].astype(np.float64))


def bag_of(block, bag):
    rows = slice(*block.bag_offsets[bag : bag + 2])
    labels = slice(*block.label_offsets[bag : bag + 2])
    return rows, block.labels[labels]


def sparse_bag(block, rows):
    offsets = block.row_offsets[rows.start : rows.stop + 1]
    places = slice(offsets[0], offsets[-1])
    return score.LiftedCsr(offsets - offsets[0], block.columns[places], block.values[places])


def distance(got, want):
    return np.abs(got - want).max() / np.abs(want).max()


@pytest.mark.parametrize("by_rank", [True, False], ids=["warp", "pairs"])
@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("size", [13, None], ids=["shared", "direct"])
@pytest.mark.parametrize("bag_weights", [[1.0], [0.0, 0.3, 1.0, 2.5]], ids=["alike", "weighted"])
def test_step__agrees_with_oracle_over_many_steps_with_projections(
    form, size, by_rank, bag_weights
):
    rng = np.random.default_rng(2)
    all_settings = [
        step.Settings(11, 0.04, 1e-3, 0.55, by_rank=by_rank, bag_weight=weight)
        for weight in bag_weights
    ]
    block = dense_block(rng, rng.integers(1, 9, 60), 20, 9, density=0.5)
    csr = sparse_block(block)
    weights = random_weights(rng, 20, size, 3, 9)
    project_all(weights, all_settings[0].max_norm)
    twin = twin_of(weights, size or 20)
    room = step.make_room(weights, 9, by_rank=by_rank)
    averages = without_average(weights)
    shrunk = violations = n_held = 0
    for number in range(1600):
        settings = all_settings[number % len(all_settings)]
        rows, relevant = bag_of(block, rng.integers(60))
        dense = block.rows[rows]
        before = twin.labels.copy()
        want = oracle.step(dense, relevant, number, twin, settings)
        if form == "dense":
            got = step.step_dense(dense, relevant, number, weights, averages, settings, room)
        else:
            got = step.step_sparse(
                sparse_bag(csr, rows),
                len(dense),
                relevant,
                number,
                weights,
                averages,
                settings,
                room,
            )
        assert [getattr(got, name) for name in FIELDS] == [getattr(want, name) for name in FIELDS]
        assert got.loss == pytest.approx(want.loss, rel=1e-4, abs=1e-5)
        assert got.is_finite
        violations += want.against >= 0
        moved = twin.labels[(before != twin.labels).any(axis=2)]
        shrunk += (np.linalg.norm(moved, axis=-1) > 0.55 - 1e-9).sum()
        if size:
            n_held += (np.linalg.norm(twin.shared, axis=1) > 0.55 - 1e-9).sum()
    assert violations > 800
    assert shrunk > 400
    assert distance(weights.labels[..., : size or 20], twin.labels) < 1e-5
    assert not weights.labels[..., size or 20 :].any()
    if size:
        assert n_held > 400
        assert distance(weights.shared[:, :size], twin.shared) < 1e-5
        assert not weights.shared[:, size:].any()


@pytest.mark.parametrize("size", [13, None], ids=["shared", "direct"])
def test_step__dense_and_sparse_leave_the_same_bits(size):
    rng = np.random.default_rng(3)
    settings = step.Settings(seed=2, step_size=0.05, decay=0.0, max_norm=0.7)
    block = dense_block(rng, rng.integers(1, 9, 30), 20, 9, density=0.3)
    csr = sparse_block(block)
    weights = random_weights(rng, 20, size, 2, 9)
    project_all(weights, settings.max_norm)
    other = score.Weights(*(array.copy() for array in weights))
    averages, others = (make_averages(*weights, stride=8) for _ in range(2))
    room = step.make_room(weights, 9)
    for number in range(300):
        rows, relevant = bag_of(block, rng.integers(30))
        step.step_dense(block.rows[rows], relevant, number, weights, averages, settings, room)
        bag, n_rows = sparse_bag(csr, rows), rows.stop - rows.start
        step.step_sparse(bag, n_rows, relevant, number, other, others, settings, room)
    for got, want in zip((*other, *others[:4]), (*weights, *averages[:4]), strict=True):
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("size", [5, None], ids=["shared", "direct"])
def test_step__of_a_bag_too_long_to_keep_is_the_same_step(form, size):
    rng = np.random.default_rng(5)
    settings = step.Settings(seed=2, step_size=0.05, decay=0.0, max_norm=0.7)
    block = dense_block(rng, [150, 131], 6, 20)
    csr = sparse_block(block)
    weights = random_weights(rng, 6, size, 2, 20)
    other = score.Weights(*(array.copy() for array in weights))
    averages = without_average(weights)
    large, small = step.make_room(weights, 150), step.make_room(weights, 1)
    table = score.make_scores(1, 21)
    for number in range(12):
        rows, relevant = bag_of(block, number % 2)
        bag = (
            (block.rows[rows],)
            if form == "dense"
            else (sparse_bag(csr, rows), len(block.rows[rows]))
        )
        rest = (averages, settings)
        short, long = {
            "dense": (step.step_dense, step.step_long_dense),
            "sparse": (step.step_sparse, step.step_long_sparse),
        }[form]
        outcome = short(*bag, relevant, number, weights, *rest, large)
        assert outcome == long(*bag, relevant, number, other, *rest, small, table)
        assert outcome.is_finite
    assert weights.labels.tobytes() == other.labels.tobytes()
    assert weights.shared.tobytes() == other.shared.tobytes()
    if form == "dense":
        block.rows[130] = np.nan
        bag = (block.rows[:150],)
    else:
        csr.values[csr.row_offsets[130]] = np.nan
        bag = (sparse_bag(csr, slice(0, 150)), 150)
    with np.errstate(all="ignore"):
        assert not long(*bag, relevant, 0, other, *rest, small, table).is_finite


# What a step must do, checked on whatever takes a step: the kernel, its twin, and the twin with a
# mistake built in, which the check must notice.


def kernel_step(rows, relevant, number, model, settings):
    """The kernel behind the twin's signature."""
    size = model.labels.shape[-1]
    weights = random_weights(np.random.default_rng(0), len(model.shared), size, 1, 1)
    weights = weights._replace(
        labels=np.zeros((*model.labels.shape[:2], weights.shared.shape[1]), "f4")
    )
    weights.shared[:, :size] = model.shared
    weights.labels[..., :size] = model.labels
    outcome = step.step_dense(
        rows,
        relevant,
        number,
        weights,
        without_average(weights),
        settings,
        step.make_room(weights, 9),
    )
    model.shared[:] = weights.shared[:, :size]
    model.labels[:] = weights.labels[..., :size]
    return outcome


def mutant(old, new):
    """The twin's step with one piece of its text replaced."""
    source = inspect.getsource(oracle.step)
    assert source.count(old) == 1
    space = dict(vars(oracle))
    exec(source.replace(old, new), space)
    return space["step"]


UPDATE_LABEL = "onto_ball(w + rate * projected[outcome.row], settings.max_norm)"
OUTER = "np.outer(against_x, against_w) - np.outer(x, w)"
NEW_W = "model.labels[against, outcome.against_sub]), np.outer(x, model.labels[label, outcome.sub])"
MISTAKES = {
    "dummy never drawn": (
        "label = draws.draw_label(key, relevant, dummy)",
        "label = int(relevant[draws.below(key, 0, len(relevant))])",
    ),
    "dummy always against": (
        "against = draws.draw_against(key, v, relevant, n_against)",
        "against = dummy",
    ),
    "negative by the positive's sub-concept": (
        "outcome.against_row, outcome.against_sub = against, row, sub",
        "outcome.against_row, outcome.against_sub = against, row, outcome.sub",
    ),
    "negative by the positive's row": (
        "outcome.against_row, outcome.against_sub = against, row, sub",
        "outcome.against_row, outcome.against_sub = against, outcome.row, sub",
    ),
    "W0 from w after the step": (OUTER, f"np.subtract(np.outer(against_x, {NEW_W})"),
    "w from W0 after the step": (
        UPDATE_LABEL,
        "onto_ball(w + rate * (x @ (model.shared - rate * (" + OUTER + "))), settings.max_norm)",
    ),
    "harmonic of all labels": (
        "weight = harmonic(n_against // outcome.tries)",
        "weight = harmonic(dummy // outcome.tries)",
    ),
    "harmonic without the tries": (
        "weight = harmonic(n_against // outcome.tries)",
        "weight = harmonic(n_against)",
    ),
    "rank instead of its harmonic": (
        "weight = harmonic(n_against // outcome.tries)",
        "weight = n_against // outcome.tries",
    ),
    "no margin": ("if other > value - 1:", "if other > value:"),
    "sign": ("model.shared -= rate", "model.shared += rate"),
    "step size never decays": ("settings.step_size * number)", "settings.step_size * 0)"),
    "features not projected": (
        "model.shared[feature] = onto_ball(model.shared[feature], settings.max_norm)",
        "pass",
    ),
    "w not projected": (UPDATE_LABEL, "w + rate * projected[outcome.row]"),
}


def steps_of(take, n_steps, max_norm=1e9, seed=0):
    """Yield bag, labels, settings, model before, model after and outcome of ``n_steps`` steps."""
    rng = np.random.default_rng(seed)
    settings = step.Settings(seed=seed, step_size=0.3, decay=0.02, max_norm=max_norm)
    weights = random_weights(rng, 6, 5, 3, 12, spread=0.8)
    project_all(weights, max_norm)
    model = twin_of(weights, 5)
    for number in range(n_steps):
        rows = rng.normal(size=(4, 6)).astype(np.float32)
        relevant = np.sort(rng.choice(12, 3, replace=False)).astype(np.int32)
        model.shared[:] = weights.shared[:, :5]
        model.labels[:] = weights.labels[..., :5]
        outcome = take(rows, relevant, number, model, settings)
        yield rows, relevant, number, settings, twin_of(weights, 5), model, outcome


def check_draws(take):
    """y is the dummy once in four; ȳ is it once in ten else, and never relevant; v is the first."""
    n_dummy = n_against_dummy = n_found = 0
    for rows, relevant, number, settings, before, _, outcome in steps_of(take, 400):
        assert outcome.label == 12 or outcome.label in relevant
        assert outcome.against not in relevant
        n_dummy += outcome.label == 12
        if outcome.label != 12 and outcome.tries == 1 and outcome.against >= 0:
            n_found += 1
            n_against_dummy += outcome.against == 12
        want = oracle.step(rows, relevant, number, before, settings)
        assert outcome.tries == want.tries
    assert 65 < n_dummy < 135
    assert 0.02 * n_found < n_against_dummy < 0.25 * n_found


def check_equations(take):
    """What changes is what the equations say, all of it from the values before the step."""
    n_subs_differ = n_rows_differ = 0
    for rows, _, number, _, before, after, outcome in steps_of(take, 60):
        if outcome.against < 0:
            continue
        projected = rows.astype(np.float64) @ before.shared
        dots = projected @ before.labels[outcome.label].T
        row, k = np.unravel_index(dots.argmax(), dots.shape)
        others = projected @ before.labels[outcome.against].T
        other_row, other_k = np.unravel_index(others.argmax(), others.shape)
        n_subs_differ += k != other_k
        n_rows_differ += row != other_row
        n_against = 9 + (outcome.label != 12)
        weight = (1 / np.arange(1, n_against // outcome.tries + 1)).sum()
        rate = 0.3 / (1 + 0.02 * 0.3 * number) * weight
        w, other_w = before.labels[outcome.label, k], before.labels[outcome.against, other_k]
        labels = before.labels.copy()
        labels[outcome.label, k] = w + rate * projected[row]
        labels[outcome.against, other_k] = other_w - rate * projected[other_row]
        shared = before.shared - rate * (
            np.outer(rows[other_row], other_w) - np.outer(rows[row], w)
        )
        np.testing.assert_allclose(after.labels, labels, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(after.shared, shared, rtol=1e-4, atol=1e-5)
        assert outcome.loss == pytest.approx(weight * (1 + others.max() - dots.max()), rel=1e-4)
    assert n_subs_differ > 10
    assert n_rows_differ > 10


def check_norms(take):
    """Nothing is longer than C after a step, and something was held back by it."""
    n_held = 0
    for _, _, _, _, _, after, _ in steps_of(take, 60, max_norm=0.5):
        lengths = [
            *np.linalg.norm(after.shared, axis=-1),
            *np.linalg.norm(after.labels, axis=-1).flat,
        ]
        assert max(lengths) < 0.5 + 1e-6
        n_held += np.isclose(max(lengths), 0.5)
    assert n_held > 30


CHECKS = {
    check_draws: ["dummy never drawn", "dummy always against", "no margin"],
    check_equations: [
        "negative by the positive's sub-concept",
        "negative by the positive's row",
        "W0 from w after the step",
        "w from W0 after the step",
        "harmonic of all labels",
        "harmonic without the tries",
        "rank instead of its harmonic",
        "sign",
        "step size never decays",
    ],
    check_norms: ["features not projected", "w not projected"],
}


@pytest.mark.parametrize("take", [kernel_step, oracle.step], ids=["kernel", "oracle"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_step__does_what_the_paper_says(check, take):
    check(take)


@pytest.mark.parametrize(
    ("check", "mistake"),
    [(check, mistake) for check, mistakes in CHECKS.items() for mistake in mistakes],
)
def test_step__checks_notice_the_classic_mistakes(check, mistake):
    with pytest.raises(AssertionError):
        check(mutant(*MISTAKES[mistake]))


def test_checks__leave_no_mistake_unnoticed():
    assert sorted(MISTAKES) == sorted(
        mistake for mistakes in CHECKS.values() for mistake in mistakes
    )


# The edges.


def take(rows, relevant, weights, number=0, settings=None):
    settings = settings or step.Settings(seed=0, step_size=0.1, decay=0.0, max_norm=10.0)
    averages = without_average(weights)
    labels = np.array(relevant, np.int32)
    room = step.make_room(weights, len(rows))
    return step.step_dense(rows, labels, number, weights, averages, settings, room)


def test_step__with_every_label_relevant_has_nothing_against_the_dummy():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, 4)).astype(np.float32)
    drawn = set()
    for number in range(12):
        weights = random_weights(rng, 4, 5, 2, 3, spread=0.1)
        before = [array.tobytes() for array in weights]
        outcome = take(rows, [0, 1, 2], weights, number)
        drawn.add(outcome.label == 3)
        is_dummy = bool(outcome.label == 3)
        assert outcome.tries == (0 if is_dummy else 1)
        assert outcome.against == (-1 if is_dummy else 3)
        assert ([array.tobytes() for array in weights] == before) is is_dummy
    assert drawn == {True, False}


def test_step__of_a_bag_without_labels_sets_the_dummy_against_a_label():
    rng = np.random.default_rng(0)
    weights = random_weights(rng, 4, 5, 2, 3, spread=0.1)
    for number in range(5):
        outcome = take(rng.normal(size=(3, 4)).astype(np.float32), [], weights, number)
        assert outcome.label == 3
        assert 0 <= outcome.against < 3


SHAPES = [(1, 4, 5, 2, 3), (3, 4, 1, 2, 3), (3, 1, 5, 1, 1), (1, 1, 1, 1, 1), (2, 3, None, 1, 1)]
SHAPES += [(3, 4, 9, 1, 3), (3, 4, 8, 5, 3), (2, 5, 16, 7, 2), (130, 3, 4, 2, 3), (4, 6, 112, 4, 2)]


@pytest.mark.parametrize(("n_rows", "n_features", "size", "n_sub", "n_labels"), SHAPES)
def test_step__of_the_smallest_shapes_agrees_with_oracle(n_rows, n_features, size, n_sub, n_labels):
    rng = np.random.default_rng(1)
    settings = step.Settings(seed=0, step_size=0.1, decay=0.0, max_norm=0.9)
    weights = random_weights(rng, n_features, size, n_sub, n_labels, spread=0.2)
    project_all(weights, settings.max_norm)
    width = size or n_features
    twin = twin_of(weights, width)
    n_found = 0
    for number in range(30):
        rows = rng.normal(size=(n_rows, n_features)).astype(np.float32)
        relevant = np.flatnonzero(rng.random(n_labels) < 0.4)
        got = take(rows, relevant, weights, number, settings)
        want = oracle.step(rows, relevant, number, twin, settings)
        assert [getattr(got, name) for name in FIELDS] == [getattr(want, name) for name in FIELDS]
        n_found += got.against >= 0
    assert n_found > 5
    assert distance(weights.labels[..., :width], twin.labels) < 1e-5


def test_step__of_all_zero_rows_changes_nothing_and_stays_finite():
    rng = np.random.default_rng(0)
    weights = random_weights(rng, 4, 5, 2, 3)
    before = [array.tobytes() for array in weights]
    outcome = take(np.zeros((2, 4), np.float32), [1], weights)
    assert outcome.against >= 0
    assert outcome.is_finite
    assert [array.tobytes() for array in weights] == before


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 2])
def test_step__says_when_a_row_is_not_finite(value, row):
    rng = np.random.default_rng(0)
    weights = random_weights(rng, 4, 5, 2, 3)
    rows = rng.normal(size=(3, 4)).astype(np.float32)
    assert take(rows, [1], weights).is_finite
    rows[row, 1] = value
    with np.errstate(all="ignore"):
        assert not take(rows, [1], weights).is_finite


@pytest.mark.parametrize("which", ["shared", "labels"])
def test_step__says_when_a_weight_overflows(which):
    rows = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for step_size in (0.1, 1e37):
        weights = random_weights(np.random.default_rng(1), 4, 5, 2, 3, spread=0.1)
        # The other factor is so small that the step overflows on one side only.
        getattr(weights, "labels" if which == "shared" else "shared")[:] *= np.float32(1e3)
        getattr(weights, which)[:] *= np.float32(1e-9)
        settings = step.Settings(seed=0, step_size=step_size, decay=0.0, max_norm=10.0)
        with np.errstate(all="ignore"):
            outcome = take(rows, [1], weights, settings=settings)
        assert outcome.against >= 0
        assert outcome.is_finite is (step_size < 1)


def test_step__stamps_of_an_earlier_run_do_not_hide_a_label():
    rng = np.random.default_rng(0)
    weights = random_weights(rng, 4, 5, 2, 6)
    rows = rng.normal(size=(3, 4)).astype(np.float32)
    labels = np.array([1], np.int32)
    settings = step.Settings(seed=0, step_size=0.1, decay=0.0, max_norm=10.0)
    room = step.make_room(weights, 3)
    fresh = random_weights(np.random.default_rng(0), 4, 5, 2, 6)
    first = step.step_dense(rows, labels, 7, weights, without_average(weights), settings, room)
    again = step.step_dense(rows, labels, 7, fresh, without_average(fresh), settings, room)
    assert first == again
    assert first.against >= 0


@pytest.mark.slow
def test_step__of_a_million_rows_agrees_with_oracle():
    rng = np.random.default_rng(0)
    settings = step.Settings(seed=0, step_size=0.1, decay=0.0, max_norm=10.0)
    weights = random_weights(rng, 4, 5, 2, 6)
    twin = twin_of(weights, 5)
    rows = rng.normal(size=(1_000_000, 4)).astype(np.float32)
    room = step.make_room(weights, len(rows))
    assert room.panel.projected.nbytes <= step.KEPT_BYTES
    labels = np.array([2], np.int32)
    table, averages = score.make_scores(1, 7), without_average(weights)
    for number in range(3):
        got = step.step_long_dense(rows, labels, number, weights, averages, settings, room, table)
        want = oracle.step(rows, labels, number, twin, settings)
        assert [getattr(got, name) for name in FIELDS] == [getattr(want, name) for name in FIELDS]
    assert distance(weights.shared[:, :5], twin.shared) < 1e-5
