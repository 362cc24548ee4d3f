from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock
from streammiml.errors import StreammimlError
from streammiml_tools.command import run_command
from streammiml_tools.corpora import synth
from streammiml_tools.corpora.synth import (
    Planted,
    dense_directions,
    planted_part,
    sparse_directions,
    write_corpus,
)
from tests.stores import assert_same, scratch
from tests.traced import traced

SMALL = {"n_bags": 60, "n_features": 40, "n_labels": 7}


@st.composite
def corpora(draw):
    n_labels = draw(st.integers(1, 9))
    low, least = draw(st.integers(1, 4)), draw(st.integers(0, n_labels))
    return Planted(
        n_bags=draw(st.integers(1, 40)),
        n_features=draw(st.integers(1, 30)),
        n_labels=n_labels,
        rows_per_bag=(low, low + draw(st.integers(0, 4))),
        labels_per_bag=(least, draw(st.integers(least, n_labels))),
        subconcepts=draw(st.integers(1, 3)),
        background=draw(st.floats(0, 1)),
        sparse=draw(st.booleans()),
        nonzeros=draw(st.integers(1, 6)),
        dtype=draw(st.sampled_from(["float32", "float16", "uint8", "int8", "int16"])),
        order=draw(st.sampled_from(synth.ORDERS)),
        seed=draw(st.integers(0, 99)),
    )


@given(corpus=corpora())
def test_planted_part__rows_show_the_labels_of_their_bag_and_every_label_is_shown(corpus):
    block = planted_part(corpus, 0)
    assert len(block) == corpus.n_bags
    low, high = corpus.rows_per_bag
    sizes = np.diff(block.bag_offsets)
    assert low <= sizes.min()
    assert sizes.max() <= high
    for bag in range(len(block)):
        start, stop = block.bag_offsets[bag : bag + 2]
        shown = set(block.row_labels[start:stop].tolist()) - {-1}
        labels = block.labels_of(bag).tolist()
        assert labels == sorted(shown)
        assert min(corpus.labels_per_bag[0], sizes[bag]) <= len(labels) <= corpus.labels_per_bag[1]


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_planted_part__the_nearest_direction_tells_the_label_of_a_row(dtype):
    corpus = Planted(n_bags=300, n_features=200, n_labels=10, subconcepts=3, dtype=dtype)
    block = planted_part(corpus, 0)
    rows = block.rows.astype(np.float64) - (128 if dtype == "uint8" else 0)
    scores = np.einsum("nd,lkd->nlk", rows, dense_directions(corpus)).max(axis=2)
    known = block.row_labels >= 0
    assert (scores.argmax(axis=1)[known] == block.row_labels[known]).mean() > 0.99
    # A row without a label is near no direction: the best score falls short of the planted one.
    assert scores[known].max(axis=1).mean() > 2 * scores[~known].max(axis=1).mean()


def test_planted_part__shared_features_tell_the_label_of_a_sparse_row():
    corpus = Planted(n_bags=200, n_features=5000, n_labels=10, subconcepts=2, sparse=True)
    block = planted_part(corpus, 0)
    model = np.zeros((10, 2, 5000), np.float32)
    features = sparse_directions(corpus)
    model[np.arange(10)[:, None, None], np.arange(2)[:, None], features] = 1
    scores = np.einsum("nd,lkd->nlk", block.rows.dense(), model).max(axis=2)
    known = block.row_labels >= 0
    assert (scores.argmax(axis=1)[known] == block.row_labels[known]).mean() > 0.99


def test_planted_part__all_subconcepts_occur_and_noise_has_the_length_asked_for():
    corpus = Planted(n_bags=400, n_features=300, n_labels=4, subconcepts=3, noise=0.5)
    block = planted_part(corpus, 0)
    scores = np.einsum("nd,lkd->nlk", block.rows, dense_directions(corpus))
    known = np.flatnonzero(block.row_labels >= 0)
    concepts = scores[known, block.row_labels[known]].argmax(axis=1)
    assert len({(a, b) for a, b in zip(block.row_labels[known], concepts, strict=True)}) == 12
    lengths = np.linalg.norm(block.rows[block.row_labels < 0], axis=1)
    assert lengths.mean() == pytest.approx(0.5, rel=0.05)


def test_planted_part__by_label_gives_neighbours_the_same_labels():
    corpus = Planted(n_bags=700, n_labels=7, labels_per_bag=(2, 2), order="by-label")
    labels = planted_part(corpus, 0).label_indices.reshape(700, 2).tolist()
    assert labels == [sorted([i // 100, (i // 100 + 1) % 7]) for i in range(700)]


@given(st.integers(1, 12), st.data())
def test_distinct__gives_different_numbers_below_the_limit(limit, data):
    count = data.draw(st.integers(0, limit))
    draws = synth.distinct(limit, count, 50, np.random.default_rng(0))
    assert draws.shape == (50, count)
    assert all(len(set(row)) == count and set(row) <= set(range(limit)) for row in draws.tolist())


def test_distinct__gives_every_set_equally_often():
    draws = np.sort(synth.distinct(5, 3, 20_000, np.random.default_rng(1)), axis=1)
    sets, counts = np.unique(draws, axis=0, return_counts=True)
    assert len(sets) == 10
    assert counts.min() > 1800
    assert counts.max() < 2200


@pytest.mark.parametrize("suffix", ["zarr", "parquet"])
def test_write_corpus__is_its_parts_in_order(suffix):
    options = {**SMALL, "sparse": suffix == "parquet", "seed": 3}
    with scratch() as folder, mock.patch.object(synth, "PART_BYTES", 4096):
        corpus = Planted(**options)
        assert corpus.n_parts > 3
        store = write_corpus(folder / f"alone.{suffix}", **options)
        parts = [planted_part(corpus, part) for part in range(corpus.n_parts)]
        assert_same(store.read(0, 60), BagBlock.join(parts))
        other = write_corpus(folder / f"other.{suffix}", **{**options, "seed": 4})
        assert other.fingerprint != store.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["zarr", "parquet"])
def test_write_corpus__is_the_same_whoever_writes_it(suffix):
    options = {"n_bags": 20_000, "n_features": 200, "n_labels": 30}
    with scratch() as folder:
        assert Planted(**options).n_parts > 3
        alone = write_corpus(folder / f"alone.{suffix}", **options)
        by_two = write_corpus(folder / f"two.{suffix}", workers=2, **options)
        assert by_two.fingerprint == alone.fingerprint


def test_write_corpus__goes_on_with_what_was_begun():
    def stop_at_three(corpus, part):
        if part == 3:
            raise KeyboardInterrupt
        return planted_part(corpus, part)

    with scratch() as folder, mock.patch.object(synth, "PART_BYTES", 4096):
        with (
            mock.patch.object(synth, "planted_part", stop_at_three),
            pytest.raises(KeyboardInterrupt),
        ):
            write_corpus(folder / "a.zarr", **SMALL)
        resumed = write_corpus(folder / "a.zarr", **SMALL)
        assert resumed.fingerprint == write_corpus(folder / "b.zarr", **SMALL).fingerprint


def test_write_corpus__holds_a_few_parts_whatever_the_size():
    part_bytes = 512 << 10
    options = {"n_bags": 8000, "n_features": 64, "n_labels": 9}
    with scratch() as folder, mock.patch.object(synth, "PART_BYTES", part_bytes):
        assert Planted(**options).n_parts >= 20
        write_corpus(folder / "warm.zarr", n_bags=10, n_features=64)
        with traced() as memory:
            store = write_corpus(folder / "a.zarr", **options)
        assert store.n_rows * 64 * 4 > 20 * part_bytes
        assert memory.peak < 8 * part_bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_bags": 0}, r"^n_bags must be at least 1, got 0$"),
        (
            {"rows_per_bag": (0, 3)},
            r"^rows_per_bag must be two ascending numbers from 1 on, got 0 and",
        ),
        (
            {"labels_per_bag": (3, 2)},
            r"^labels_per_bag must be two ascending numbers from 0 on, got 3",
        ),
        ({"labels_per_bag": (1, 8)}, r"^a bag cannot have 8 of 7 labels$"),
        ({"background": 1.5}, r"^background must be 0 to 1, got 1.5$"),
        ({"noise": -1}, r"^noise must be at least 0 and finite, got -1$"),
        ({"order": "sorted"}, r"^no order is called 'sorted'; known: by-label, random$"),
        ({"dtype": "int64"}, r"^no dtype is called 'int64'; known: float16, float32, int16, int8"),
    ],
)
def test_planted__refuses_what_cannot_be(change, message):
    with pytest.raises(StreammimlError, match=message):
        Planted(**{**SMALL, **change})


def test_command__writes_a_store_or_says_why_not_in_one_line(capsys):
    with scratch() as folder:
        path = str(folder / "a.parquet")
        words = [path, "--n-bags", "20", "--rows-per-bag", "2", "3", "--dtype", "uint8"]
        assert run_command(synth.synth, words) == 0
        assert ": 20 bags, " in capsys.readouterr().out
        assert run_command(synth.synth, [path, "--order", "wild"]) == 2
        assert capsys.readouterr().err.startswith("streammiml: no order is called 'wild'; known:")
        assert run_command(synth.synth, [path, "--n-bogs", "3"]) == 2
        assert "--n-bogs" in capsys.readouterr().err
