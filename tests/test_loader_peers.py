"""The parts of the loader's peers that need no peer."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.loader_peers import (
    BLOCK_BAGS,
    PEERS,
    SHAPE,
    corpus,
    drop_from_cache,
    measured_vif,
    mixed_batches,
)

ROOT = Path(__file__).parent.parent


def run(*words):
    command = [sys.executable, "-m", "benchmarks.loader_peers", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_measured_vif__of_a_full_shuffle_is_about_one_and_of_sorted_labels_about_the_window():
    labels = np.repeat(np.arange(100), 2560)
    assert measured_vif(labels) == pytest.approx(256, rel=0.05)
    assert measured_vif(np.random.default_rng(0).permutation(labels)) == pytest.approx(1, abs=0.05)


def test_measured_vif__of_blocks_in_random_order_is_about_the_size_of_a_block():
    blocks = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 160))
    assert measured_vif(np.repeat(blocks, 16)) == pytest.approx(16, rel=0.1)


def test_measured_vif__of_fewer_than_two_windows_or_one_label_is_nan():
    assert np.isnan(measured_vif(np.arange(300)))
    assert np.isnan(measured_vif(np.array([], np.int64)))
    assert np.isnan(measured_vif(np.zeros(1000, np.int64)))


def test_corpus__is_the_same_each_time_and_sorted_by_label():
    rows, labels = (np.concatenate(parts) for parts in zip(*corpus(1100), strict=True))
    again = np.concatenate([rows for rows, _ in corpus(1100)])
    np.testing.assert_array_equal(rows, again)
    assert rows.shape == (1100, *SHAPE)
    np.testing.assert_array_equal(labels, np.arange(1100) * 100 // 1100)


@pytest.mark.parametrize("n_bags", [1, BLOCK_BAGS, 10 * BLOCK_BAGS + 7])
def test_mixed_batches__give_every_bag_once_with_its_label(n_bags):
    labels = np.arange(n_bags)

    def read_blocks(blocks):
        for start, stop, out in blocks:
            out[:] = np.arange(start, stop).reshape(-1, 1, 1)

    batches = list(mixed_batches(labels, 1, read_blocks))
    bags = np.concatenate([rows[:, 0, 0] for rows, _ in batches])
    np.testing.assert_array_equal(bags, np.concatenate([numbers for _, numbers in batches]))
    np.testing.assert_array_equal(np.sort(bags), labels)


@pytest.mark.parametrize("peer", ["pread-direct", "zarr-python"])
def test_peer__writes_and_reads_all_bytes_in_new_processes(peer, tmp_path):
    run(peer, "write", tmp_path / "corpus", 600)
    drop_from_cache(tmp_path / "corpus")
    facts = json.loads(run(peer, "read", tmp_path / "corpus", "--memory", "64MiB", "--check"))
    assert facts["bytes"] == 600 * 9 * 512 * 4
    assert facts["peer"] == peer
    assert facts.get("every_bag_once", True)
    assert {"version", "seconds", "cpu_seconds", "vif"} < set(facts)


def test_peer__that_is_not_installed_says_why(tmp_path, monkeypatch):
    (tmp_path / "annbatch.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    absent = {"peer": "annbatch", "absent": "ImportError: not here"}
    assert json.loads(run("annbatch", "read", tmp_path)) == absent
    assert "annbatch" in PEERS
