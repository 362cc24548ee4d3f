"""Does the model learn? Bags of scikit-learn's digits, against bounds that a broken step misses.

The twin of the step is broken on purpose, one line at a time, and must then miss its bound: a bound
that every mistake passes would check nothing.
"""

import inspect

import numba
import numpy as np
import pytest

from streammiml.config import LiftSpec, ScaleSpec
from streammiml.kernel.average import averaged, make_averages
from streammiml.kernel.lift import lift_bag, lift_width
from streammiml.kernel.score import DenseBlock, Weights, score_block
from streammiml.kernel.step import Settings
from streammiml.kernel.sweep import Learner, make_sweep_room, make_tally, project_all, sweep
from streammiml.kernel.tile import padded
from streammiml.learn.scaler import ScalerFit
from tests.oracles import step as twin

pytestmark = pytest.mark.skipif(
    bool(numba.config.DISABLE_JIT), reason="thousands of steps take minutes without the compiler"
)

DIGITS = np.arange(10)
PAIRS = np.arange(10) % 5
"""Five labels, each the union of two digits."""


class Task:
    """Training bags, test bags and test rows drawn from disjoint images."""

    def __init__(self, images, digits, label_of, longest_bag, n_bags):
        order = np.random.default_rng(0).permutation(len(images))
        train, self.test = order[:1200], order[1200:]
        self.images, self.digits, self.label_of = images, digits, label_of
        self.n_labels = int(label_of.max()) + 1
        self.train, _ = self.bags(train, n_bags, longest_bag, seed=1)
        self.held_out, self.row_labels = self.bags(self.test, 500, longest_bag, seed=2)

    def bags(self, pool, n_bags, longest, seed):
        """Random images in bags of 2 to ``longest``, labelled by what is in them."""
        rng = np.random.default_rng(seed)
        offsets = np.concatenate([[0], np.cumsum(rng.integers(2, longest + 1, n_bags))])
        rows = rng.choice(pool, offsets[-1])
        row_labels = self.label_of[self.digits[rows]]
        sets = [np.unique(part) for part in np.split(row_labels, offsets[1:-1])]
        ends = np.concatenate([[0], np.cumsum([len(labels) for labels in sets])])
        block = DenseBlock(
            self.images[rows],
            offsets.astype(np.int64),
            ends.astype(np.int64),
            np.concatenate(sets).astype(np.int32),
        )
        return block, row_labels

    def lift(self, scale):
        width = self.images.shape[1]
        fit = ScalerFit(width, ScaleSpec.parse(scale), LiftSpec(), seed=0, sparse=False)
        fit.update_dense(self.train.rows)
        return fit.finish().lift

    def start(self, lift, n_sub, size, rng):
        d = lift_width(lift)
        shared = rng.normal(0, d**-0.5, (d, size))
        return shared, rng.normal(0, d**-0.5, (self.n_labels + 1, n_sub, size))

    def order(self, n_steps, rng):
        n_bags = len(self.train.bag_offsets) - 1
        epochs = [rng.permutation(n_bags) for _ in range(-(-n_steps // n_bags))]
        return np.concatenate(epochs)[:n_steps].astype(np.int64)


def by_kernel(task, lift, n_sub, size, settings, n_steps):
    """Weights after ``n_steps``, averaged as training returns them."""
    rng = np.random.default_rng(settings.seed)
    start = task.start(lift, n_sub, size, rng)
    weights = Weights(*(padded(array.astype(np.float32)) for array in start))
    project_all(weights, settings.max_norm)
    averages = make_averages(*weights)
    learner = Learner(weights, averages, settings, lift)
    room = make_sweep_room(weights, lift, int(np.diff(task.train.bag_offsets).max()))
    visit = task.order(n_steps, rng)
    assert sweep(task.train, visit, 0, learner, room, make_tally()) == -1
    return Weights(*averaged(*weights, averages, n_steps))


def by_twin(step, task, lift, n_sub, size, settings, n_steps):
    """The same by the twin, or by a twin with a mistake: the last iterate."""
    rng = np.random.default_rng(settings.seed)
    model = twin.Model(*task.start(lift, n_sub, size, rng))
    block = task.train
    rows = np.empty((len(block.rows), lift_width(lift)), np.float32)
    lift_bag(lift, block.rows, rows)
    for number, bag in enumerate(task.order(n_steps, rng)):
        labels = block.labels[block.label_offsets[bag] : block.label_offsets[bag + 1]]
        bag_rows = rows[block.bag_offsets[bag] : block.bag_offsets[bag + 1]]
        step(bag_rows, labels, number, model, settings)
    return Weights(*(padded(array.astype(np.float32)) for array in (model.shared, model.labels)))


def broken_step(old, new):
    """The twin's step with one passage exchanged."""
    source = inspect.getsource(twin.step)
    assert source.count(old) == 1, f"the twin no longer says {old!r}"
    names = dict(vars(twin))
    exec(source.replace(old, new), names)
    return names["step"]


def ranking_loss(task, scores):
    """Mean share of (relevant, irrelevant) pairs in the wrong order, where there are any."""
    losses = []
    block = task.held_out
    for bag in range(len(block.bag_offsets) - 1):
        is_relevant = np.zeros(task.n_labels, bool)
        is_relevant[block.labels[block.label_offsets[bag] : block.label_offsets[bag + 1]]] = True
        if not is_relevant.all():
            values = scores.value[bag, : task.n_labels]
            losses.append((values[is_relevant][:, None] <= values[~is_relevant]).mean())
    return np.mean(losses)


def key_instance_accuracy(task, scores):
    """Share of (bag, label) whose key row shows that label."""
    block = task.held_out
    bags = np.repeat(np.arange(len(block.bag_offsets) - 1), np.diff(block.label_offsets))
    keys = block.bag_offsets[bags] + scores.row[bags, block.labels]
    return (task.row_labels[keys] == block.labels).mean()


def subconcept_purity(task, lift, weights):
    """Share of test images that show their sub-concept's most frequent digit: .5 if it has both."""
    n = len(task.test)
    no_labels = np.zeros(n + 1, np.int64), np.zeros(0, np.int32)
    block = DenseBlock(task.images[task.test], np.arange(n + 1), *no_labels)
    digits = task.digits[task.test]
    labels = task.label_of[digits]
    subs = score_block(block, lift, weights).subconcept[np.arange(n), labels]
    counts = np.zeros((task.n_labels, weights.labels.shape[1], 10), int)
    np.add.at(counts, (labels, subs, digits), 1)
    return counts.max(axis=2).sum() / n


@pytest.fixture(scope="module")
def images():
    datasets = pytest.importorskip("sklearn.datasets")
    return datasets.load_digits(return_X_y=True)


@pytest.fixture(scope="module")
def digits_task(images):
    """Labels are digits, rows are pixels."""
    pixels, digits = images
    return Task(pixels.astype(np.float32), digits, DIGITS, longest_bag=5, n_bags=1000)


@pytest.fixture(scope="module")
def pairs_task(images):
    """Labels are unions of two digits, rows so short that one linear model cannot have both.

    With all 64 pixels one vector tells most unions from the rest and nothing calls for a second.
    """
    pixels, digits = images
    centred = pixels - pixels.mean(axis=0)
    axes = np.linalg.eigh(centred.T @ centred)[1][:, -12:]
    return Task((centred @ axes).astype(np.float32), digits, PAIRS, longest_bag=2, n_bags=2000)


RANKING_BOUND, KEY_BOUND, PURITY_BOUND = 0.035, 0.95, 0.8


def digits_figures(train, task, n_steps):
    lift = task.lift("standard")
    settings = Settings(seed=0, step_size=0.02, decay=1e-5, max_norm=10.0)
    weights = train(task, lift, 2, 16, settings, n_steps)
    scores = score_block(task.held_out, lift, weights)
    return ranking_loss(task, scores), key_instance_accuracy(task, scores)


def pairs_purity(train, task, n_steps):
    lift = task.lift("standard")
    settings = Settings(seed=0, step_size=0.05, decay=1e-5, max_norm=10.0)
    return subconcept_purity(task, lift, train(task, lift, 4, 16, settings, n_steps))


def test_kernel__ranks_digits_and_finds_the_image_that_shows_each(digits_task):
    loss, keys = digits_figures(by_kernel, digits_task, 10_000)
    assert loss < 0.02
    assert keys > 0.97


def test_kernel__gives_the_digits_of_a_union_to_different_subconcepts(pairs_task):
    assert pairs_purity(by_kernel, pairs_task, 40_000) > 0.9


def twin_step(*args):
    return lambda *rest: by_twin(*args, *rest)


def test_twin__passes_the_same_bounds_when_nothing_is_broken(digits_task, pairs_task):
    loss, keys = digits_figures(twin_step(twin.step), digits_task, 4000)
    assert loss < RANKING_BOUND
    assert keys > KEY_BOUND
    assert pairs_purity(twin_step(twin.step), pairs_task, 12_000) > PURITY_BOUND


UPDATE = "    weight = harmonic(n_against // outcome.tries)\n"
MISTAKES = {
    "no step at all": (UPDATE, "    return outcome\n" + UPDATE),
    "negative's sub-concept taken from the positive": (
        UPDATE,
        "    outcome.against_sub = outcome.sub\n" + UPDATE,
    ),
    "first row taken for the key instance": (
        UPDATE,
        "    outcome.row = outcome.against_row = 0\n" + UPDATE,
    ),
    "no margin": ("other > value - 1", "other > value"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_bounds__are_missed_by_a_broken_step(digits_task, mistake):
    step = broken_step(*MISTAKES[mistake])
    loss, keys = digits_figures(twin_step(step), digits_task, 4000)
    assert loss > RANKING_BOUND
    assert keys < KEY_BOUND


SUB_MISTAKES = {
    "no step at all": MISTAKES["no step at all"],
    "negative's sub-concept taken from the positive": MISTAKES[
        "negative's sub-concept taken from the positive"
    ],
    "first sub-concept always": (UPDATE, "    outcome.sub = 0\n" + UPDATE),
    "sub-concepts of the two labels swapped": (
        UPDATE,
        "    outcome.sub, outcome.against_sub = outcome.against_sub, outcome.sub\n" + UPDATE,
    ),
}


@pytest.mark.parametrize("mistake", SUB_MISTAKES)
def test_purity_bound__is_missed_by_a_broken_step(pairs_task, mistake):
    step = broken_step(*SUB_MISTAKES[mistake])
    assert pairs_purity(twin_step(step), pairs_task, 12_000) < PURITY_BOUND
