"""Memory: what is refused names the setting that fits, it does fit, and promises are kept."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.offsets import from_sizes
from streammiml.blocks.budget import (
    INDEX_BAG_BYTES,
    MOST_LISTED,
    STORE_BYTES,
    _sum_of,
    bag_bytes,
    fit,
    largest_bags,
    largest_block,
    largest_blocks,
    row_bytes,
)
from streammiml.blocks.plan import BlockPlan
from streammiml.config import TrainConfig, parse_size
from streammiml.errors import StreammimlError
from streammiml.learn.train import train
from tests.stores import as_sparse, write_store

FIXED = {"weights": 1 << 20}


class Shape:
    """As much of a store as a budget looks at."""

    reads_in_place = True

    def __init__(self, sizes, *, n_features=1000, dtype="float32"):
        self.sizes = np.asarray(sizes)
        self.n_bags, self.n_rows = len(self.sizes), int(self.sizes.sum())
        self.n_features, self.dtype, self.sparse = n_features, dtype, False

    def bag_sizes(self, start, stop):
        return self.sizes[start:stop]


EVEN = Shape(np.full(20_000, 8))


def test_largest_block__is_that_of_the_plan():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 9, 200_001)
    for block_bags in (1, 7, 1000, 65_537):
        blocks = [sizes[i : i + block_bags].sum() for i in range(0, len(sizes), block_bags)]
        assert largest_block(Shape(sizes), block_bags) == max(blocks) * 4000


def test_largest_blocks_and_bags__come_sorted_and_leave_out_long_bags():
    sizes = np.random.default_rng(0).integers(1, 90, 1000)
    store, short = Shape(sizes), np.where(sizes < 50, sizes, 0)
    blocks = np.add.reduceat(sizes, np.arange(0, 1000, 7))
    assert largest_blocks(store, 7, 5).tolist() == sorted(blocks * 4000)[:-6:-1]
    blocks = np.add.reduceat(short, np.arange(0, 1000, 7))
    assert largest_blocks(store, 7, 5, 200_000).tolist() == sorted(blocks * 4000)[:-6:-1]
    assert largest_bags(store, 9).tolist() == sorted(sizes * 4000)[:-10:-1]
    assert largest_bags(store, 2000, 200_000).tolist() == sorted(short[short > 0] * 4000)[::-1]


@pytest.mark.parametrize("block_bags", [1, 3, 64, 1000])
@pytest.mark.parametrize("stretch", [2, 65_536])
def test_largest_block__of_sparse_rows_is_the_one_with_most_values(
    block_bags, stretch, tmp_path, monkeypatch
):
    monkeypatch.setattr("streammiml.blocks.budget.SCAN_BAGS", stretch)
    rng = np.random.default_rng(0)
    # A few bags are full where most are nearly empty: their mean says nothing of them.
    rows = rng.random((300, 50), np.float32) * (rng.random((300, 50)) < 0.02)
    rows[100:110] = 1
    block = BagBlock(np.arange(301), rows, np.arange(301), np.zeros(300, np.int32))
    store = write_store(tmp_path / "s.zarr", as_sparse(block))
    sizes = [
        sum(
            store.read(i, i + 1).rows.values.size * 8 + 16
            for i in range(a, min(a + block_bags, 300))
        )
        for a in range(0, 300, block_bags)
    ]
    assert largest_block(store, block_bags) == max(sizes)
    read = store.read(100, 110)
    sizes = store.bag_sizes(100, 110)
    assert (
        bag_bytes(store, 100, 110, sizes).sum()
        >= read.rows.values.nbytes + read.rows.columns.nbytes
    )


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4000), ("float16", 2000), ("uint8", 1000)])
def test_row_bytes__are_those_of_the_stored_type(dtype, size):
    assert row_bytes(Shape([1], dtype=dtype)) == size


def test_fit__mixes_as_much_as_memory_allows():
    windows = [
        fit(EVEN, TrainConfig(memory=memory), FIXED).plan.window
        for memory in ("48MiB", "56MiB", "64MiB", "1GiB")
    ]
    assert windows == sorted(windows)
    assert windows[0] < windows[1] < windows[2] < windows[3] == 512


@given(
    st.integers(30, 2000),
    st.sampled_from([None, 1, 4, 64]),
    st.sampled_from(["blocks", "full", "uniform"]),
    st.integers(1, 300),
)
def test_fit__is_within_memory_or_refused_with_one_that_is(mib, block_bags, order, rows):
    store = Shape(np.full(5000, rows))
    config = TrainConfig(memory=f"{mib}MiB", block_bags=block_bags, order=order)
    try:
        budget = fit(store, config, FIXED)
    except StreammimlError as error:
        needed = re.search(r"more than --memory \d+MiB; .*--memory (\d+MiB) would do", str(error))
        assert parse_size(needed[1]) > parse_size(config.memory)
        budget = fit(store, replace(config, memory=needed[1]), FIXED)
        assert budget.allowed == parse_size(needed[1])
    assert budget.total <= budget.allowed
    assert budget.held["weights"] == 1 << 20
    assert budget.held["store"] == STORE_BYTES + INDEX_BAG_BYTES * store.n_bags


@given(st.integers(30, 300), st.integers(2, 2000), st.integers(1, 32))
def test_fit__the_mix_blocks_that_a_refusal_names_fit_and_one_more_would_not(
    mib, mix_blocks, block_bags
):
    config = TrainConfig(memory=f"{mib}MiB", mix_blocks=mix_blocks, block_bags=block_bags)
    try:
        fit(EVEN, config, FIXED)
        assume(False)
    except StreammimlError as error:
        named = re.search(r"--mix-blocks (\d+) would fit, or --memory \d+MiB would do", str(error))
    assume(named is not None)
    fits = int(named[1])
    assert fit(EVEN, replace(config, mix_blocks=fits), FIXED).plan.window == fits
    with pytest.raises(StreammimlError, match=f"--mix-blocks {fits} would fit"):
        fit(EVEN, replace(config, mix_blocks=fits + 1), FIXED)


def test_fit__what_a_refusal_names_fits_where_the_length_of_blocks_is_open():
    n_named = 0
    for mib, mix_blocks in product((32, 36, 45, 60, 90), (50, 300, 2000)):
        config = TrainConfig(memory=f"{mib}MiB", mix_blocks=mix_blocks)
        try:
            fit(EVEN, config, FIXED)
        except StreammimlError as error:
            named = re.search(r"--mix-blocks (\d+) --block-bags (\d+) would fit, or", str(error))
            if named is None:
                continue
            n_named += 1
            fits = replace(config, mix_blocks=int(named[1]), block_bags=int(named[2]))
            assert fit(EVEN, fits, FIXED).plan.window == int(named[1])
    assert n_named > 2


def test_fit__names_no_fewer_blocks_where_a_mixing_is_asked_for():
    config = TrainConfig(memory="36MiB", max_vif=1.0001)
    with pytest.raises(
        StreammimlError, match=r"more than --memory 36MiB; --memory \d+MiB would do"
    ):
        fit(EVEN, config, FIXED)


def test_fit__a_bag_too_long_is_refused_with_the_memory_that_would_do():
    store = Shape([*np.full(1000, 3), 100_000])
    line = r"training would hold .*, more than --memory 256MiB; --memory (\d+MiB) would do"
    with pytest.raises(StreammimlError, match=line) as caught:
        fit(store, TrainConfig(memory="256MiB"), FIXED)
    memory = re.search(line, str(caught.value))[1]
    assert parse_size(memory) < 3 * store.n_rows * 4000
    assert fit(store, TrainConfig(memory=memory), FIXED).plan.window == 512


# Blocks counted alike, and by size.

MANY = Shape(np.full(200, 3000), n_features=512)
UNEVEN = Shape(np.tile([5, 500], 2000), n_features=100)
ONE_LONG = Shape([*np.full(5000, 10), 1_000_000, *np.full(5000, 10)], n_features=64)


@pytest.mark.parametrize(
    ("store", "settings", "arguments", "plan"),
    [
        (EVEN, {"memory": "64MiB"}, {}, (2, 234)),
        (EVEN, {"memory": "128MiB"}, {}, (2, 512)),
        (EVEN, {"memory": "1GiB"}, {}, (8, 512)),
        (EVEN, {"memory": "256MiB"}, {"exact": True, "exact_bags": 32}, (8, 512)),
        (EVEN, {"memory": "1GiB"}, {"replicas": 4, "streams": 4}, (8, 512)),
        (MANY, {"memory": "1GiB"}, {}, (1, 124)),
        (MANY, {"memory": "512MiB"}, {}, (1, 47)),
        (UNEVEN, {"memory": "256MiB"}, {}, (2, 512)),
        (UNEVEN, {"memory": "128MiB"}, {"exact": True}, (1, 358)),
        (ONE_LONG, {"memory": "8GiB"}, {"exact": True, "exact_bags": 32}, (9, 1)),
    ],
)
def test_fit__a_store_whose_blocks_fit_alike_keeps_its_plan(store, settings, arguments, plan):
    budget = fit(store, TrainConfig(**settings), FIXED, **arguments)
    assert (budget.plan.block_bags, budget.plan.mix_blocks) == plan
    assert not budget.by_size


def test_fit__one_long_bag_costs_its_length_a_few_times_and_leaves_the_plan_as_it_is():
    budgets = [fit(ONE_LONG, TrainConfig(memory=size), FIXED) for size in ("1GiB", "8GiB", "1TiB")]
    plans = {(budget.plan.block_bags, budget.plan.window) for budget in budgets}
    assert len(plans) == 1
    assert plans.pop()[1] == 512
    assert [budget.by_size for budget in budgets] == [True, True, False]
    assert budgets[0].total == budgets[1].total < 3 * 256_000_000
    # A run that was begun with fewer blocks to mix goes on with them.
    fewer = TrainConfig(memory="8GiB", block_bags=9, mix_blocks=2)
    assert not fit(ONE_LONG, fewer, FIXED).by_size


def test_fit__a_store_that_is_nearly_one_bag_costs_little_more_than_its_bytes():
    store = Shape([*np.full(10, 100), 300_000, *np.full(10, 100)], n_features=256)
    budget = fit(store, TrainConfig(memory="1GiB"), FIXED)
    assert budget.plan.window == budget.plan.n_blocks
    assert budget.total < 1.15 * store.n_rows * 1024 + (40 << 20)


def test_fit__rows_that_are_decoded_cost_copies_while_they_are_read():
    decoded = Shape(ONE_LONG.sizes, n_features=64)
    decoded.reads_in_place = False
    budgets = [fit(store, TrainConfig(memory="8GiB"), FIXED) for store in (ONE_LONG, decoded)]
    assert budgets[1].total - budgets[0].total > 2 * 256_000_000


def test_fit__by_size_mixes_as_much_as_memory_allows():
    sizes = np.full(3000, 10)
    sizes[::100] = 20_000
    store = Shape(sizes, n_features=250)
    windows = [
        fit(store, TrainConfig(memory=memory, block_bags=1), FIXED).plan.window
        for memory in ("400MiB", "500MiB", "600MiB")
    ]
    assert 1 <= windows[0] < windows[1] < windows[2]


def test_fit__a_refusal_names_the_full_order_where_that_fits():
    store = Shape(np.full(300, 10_000), n_features=1000)
    n_named = 0
    for mib in (250, 300, 350, 400, 450):
        config = TrainConfig(memory=f"{mib}MiB")
        try:
            fit(store, config, FIXED)
        except StreammimlError as error:
            if "--order full would fit, or --memory" not in str(error):
                continue
            n_named += 1
            assert fit(store, replace(config, order="full"), FIXED).total <= mib << 20
    assert n_named


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=12),
    st.integers(0, 40),
    st.integers(1, 4),
)
def test_sum_of__is_that_of_the_largest_with_repetitions(numbers, n, n_times):
    numbers = sorted(numbers, reverse=True)
    want = sum(sorted(numbers * n_times, reverse=True)[:n])
    assert _sum_of(np.array(numbers), n, n_times) == want


def test_sum_of__takes_what_is_not_listed_for_as_large_as_the_last():
    listed = np.full(MOST_LISTED, 7)
    assert _sum_of(listed, 2 * MOST_LISTED + 3, 1) == 7 * (2 * MOST_LISTED + 3)
    assert _sum_of(listed, 2 * MOST_LISTED + 3, 2) == 7 * (2 * MOST_LISTED + 3)


@pytest.mark.parametrize("max_vif", [1.01, 1.5, 4.0])
def test_max_vif__is_kept_by_the_fewest_blocks(max_vif):
    plan = fit(EVEN, TrainConfig(max_vif=max_vif, memory="4GiB"), FIXED).plan
    assert plan.vif <= max_vif
    assert plan.mix_blocks == 1 or replace(plan, mix_blocks=plan.mix_blocks - 1).vif > max_vif


def test_max_vif__that_does_not_fit_is_refused_with_the_memory_that_would_do():
    config = TrainConfig(max_vif=1.01, memory="64MiB")
    with pytest.raises(StreammimlError, match=r"more than --memory 64MiB; .*would do") as caught:
        fit(EVEN, config, FIXED)
    memory = re.search(r"--memory (\d+MiB) would do", str(caught.value))[1]
    assert fit(EVEN, replace(config, memory=memory), FIXED).plan.vif <= 1.01


def test_max_vif__that_mix_blocks_contradicts_is_refused_with_both_numbers():
    config = TrainConfig(max_vif=1.1, mix_blocks=2, block_bags=16)
    line = r"--mix-blocks 2 gives a variance inflation of [\d.]+, more than --max-vif 1\.1; "
    with pytest.raises(StreammimlError, match=line + r"--mix-blocks \d+ would do") as caught:
        fit(EVEN, config, FIXED)
    enough = int(re.search(r"--mix-blocks (\d+) would do", str(caught.value))[1])
    assert fit(EVEN, replace(config, mix_blocks=enough), FIXED).plan.vif <= 1.1
    plan = BlockPlan(
        order="blocks", n_bags=EVEN.n_bags, seed=0, block_bags=16, mix_blocks=enough - 1
    )
    assert plan.vif > 1.1


# What a process really holds.

MEASURE = """
import json, sys
from streammiml.config import TrainConfig
from streammiml.learn.train import train

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) << 10

small, large, run, settings, steps = sys.argv[1:]
usual = {"shared_dim": 16, "subconcepts": 2, "validate_every": 2000, "checkpoint_every": "1500"}
train(small, TrainConfig(**usual, max_steps=2500))
train(small, TrainConfig(**usual, max_steps=2500, lift="fourier:8,context"))
before = peak()
config = TrainConfig(**{**usual, **json.loads(settings)}, max_steps=int(steps))
train(large, config, run=run, resume=True)
print(peak() - before)
"""


def random_store(path, n_bags, rows, n_features, seed=0):
    rng = np.random.default_rng(seed)
    offsets = from_sizes(np.full(n_bags, rows))
    values = rng.random((n_bags * rows, n_features), np.float32)
    labels = rng.integers(0, 9, n_bags).astype(np.int32)
    write_store(path, BagBlock(offsets, values, np.arange(n_bags + 1), labels), n_labels=10)
    return path


def growth(*words, code=MEASURE):
    """Bytes by which a process that runs ``code`` with these words grows."""
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


# Bags of 64 KiB, so small ones that what is kept of each outweighs its rows, and large models.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_bags", "rows", "n_features", "settings"),
    [
        (8000, 16, 1024, {"memory": "128MiB"}),
        (8000, 16, 1024, {"memory": "170MiB", "order": "full"}),
        (1_500_000, 1, 16, {"memory": "64MiB"}),
        (1_500_000, 1, 16, {"memory": "256MiB"}),
        (2000, 2, 4096, {"memory": "160MiB", "shared_dim": 512}),
        (2000, 2, 2000, {"memory": "160MiB", "lift": "fourier:5000"}),
    ],
    ids=["bags", "drawn", "small", "small in more", "model", "lift"],
)
def test_memory__a_process_grows_by_less_than_it_was_allowed(
    n_bags, rows, n_features, settings, tmp_path
):
    small = random_store(tmp_path / "small.zarr", 300, rows, 16)
    large = random_store(tmp_path / "large.zarr", n_bags, rows, n_features)
    # The compiler takes memory of its own: compile everything before measuring.
    growth(small, large, tmp_path / "compiled", json.dumps(settings), 2500)
    for steps in (4000, 6000):  # The second one loads a checkpoint.
        grown = growth(small, large, tmp_path / "run", json.dumps(settings), steps)
        assert grown < parse_size(settings["memory"])


def skewed_store(path, n_bags, n_features):
    """Sparse rows, of which those at the beginning have a hundred times as many values."""
    rng = np.random.default_rng(0)
    counts = np.where(np.arange(n_bags) < n_bags // 20, 2000, 20)
    columns = [np.sort(rng.choice(n_features, n, replace=False)) for n in counts]
    rows = SparseRows(
        from_sizes(counts),
        np.concatenate(columns).astype(np.uint32),
        rng.random(int(counts.sum()), np.float32),
        n_features,
    )
    labels = rng.integers(0, 9, n_bags).astype(np.int32)
    offsets = np.arange(n_bags + 1)
    write_store(path, BagBlock(offsets, rows, offsets, labels), n_labels=10)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"memory": "128MiB"}, {"memory": "200MiB", "order": "full"}])
def test_memory__of_sparse_rows_is_kept_where_they_are_longest(settings, tmp_path):
    small = skewed_store(tmp_path / "small.zarr", 300, 4000)
    large = skewed_store(tmp_path / "large.zarr", 60_000, 4000)
    code = MEASURE.replace(', lift="fourier:8,context"', "")
    growth(small, large, tmp_path / "compiled", json.dumps(settings), 2500, code=code)
    grown = growth(small, large, tmp_path / "run", json.dumps(settings), 30000, code=code)
    assert grown < parse_size(settings["memory"])


def uneven_store(path, sizes, n_features, codec="none"):
    """A store whose bags have these numbers of rows."""
    rng = np.random.default_rng(0)
    rows = rng.random((int(np.sum(sizes)), n_features), np.float32)
    labels = rng.integers(0, 9, len(sizes)).astype(np.int32)
    offsets = np.arange(len(sizes) + 1)
    block = BagBlock(from_sizes(sizes), rows, offsets, labels)
    store = write_store(path, block, n_labels=10, codec=codec)
    assert store.reads_in_place is (codec == "none")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "n_features", "settings"),
    [
        ([*[10] * 5000, 1_000_000, *[10] * 5000], 64, {"memory": "700MiB"}),
        ([*[2000] * 20, 60_000, *[2000] * 19], 256, {"memory": "300MiB"}),
        ([*[100] * 10, 200_000, *[100] * 10], 256, {"memory": "350MiB"}),
        ([*[100] * 500, 60_000, *[100] * 500], 256, {"memory": "512MiB", "order": "full"}),
    ],
    ids=["a million rows", "all mixed", "nearly one bag", "drawn"],
)
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_memory__of_one_long_bag_is_kept(sizes, n_features, settings, codec, tmp_path):
    small = random_store(tmp_path / "small.zarr", 300, 12, 16)
    large = uneven_store(tmp_path / "large.zarr", sizes, n_features, codec)
    if codec != "none":
        settings = {**settings, "memory": f"{3 * parse_size(settings['memory']) >> 20}MiB"}
    growth(small, large, tmp_path / "compiled", json.dumps(settings), 400)
    steps = 2 * len(sizes) + 100
    grown = growth(small, large, tmp_path / "run", json.dumps(settings), steps)
    assert grown < parse_size(settings["memory"])


@pytest.mark.slow
def test_memory__decides_no_byte_of_a_model_of_one_long_bag_among_short_ones(tmp_path):
    store = uneven_store(tmp_path / "s.zarr", [*[10] * 3000, 1_000_000, *[10] * 3000], 64)
    models = []
    for memory in ("1GiB", "8GiB"):
        settings = {"shared_dim": 16, "validation": 0.0, "preset": "plain", "init": "clusters"}
        train(store, TrainConfig(**settings, memory=memory, epochs=1), run=tmp_path / memory)
        models.append((tmp_path / memory / "model.safetensors").read_bytes())
    assert models[0] == models[1]
