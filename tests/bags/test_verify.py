"""Checking a store: a line for each problem."""

import shutil
from dataclasses import replace

import pytest

import streammiml as sm
from streammiml.bags import verify
from streammiml.bags.layout import table_key


@pytest.fixture
def store(tiny, tmp_path):
    shutil.copytree(tiny.path, tmp_path / tiny.path.name)
    return sm.open_store(tmp_path / tiny.path.name)


def problems(store):
    return list(verify.problems(store, store.manifest, store.location, store.tables()))


def test_intact_store__has_no_problem(store):
    assert problems(store) == store.check() == []
    assert verify.fingerprint(store, verify.spec_of(store)) == store.fingerprint


def test_every_damaged_file__has_a_line(store):
    keys = [key for key, _, _ in store.manifest.files[:2]]
    for key in keys:
        with (store.location.path / key).open("r+b") as file:
            first = file.read(1)
            file.seek(0)
            file.write(bytes([first[0] ^ 1]))
    store.location.forget()
    assert problems(store) == [
        f"{store.name}/{key} is damaged: it fails its checksum" for key in keys
    ]


def test_missing_and_long_files__have_a_line(store):
    key, size, _ = store.manifest.files[0]
    with (store.location.path / key).open("ab") as file:
        file.write(b"x")
    (store.location.path / table_key("label_indices")).unlink()
    lines = problems(store)
    assert lines[0] == f"{store.name}/{key} has {size + 1} bytes, expected {size}"
    assert "chunks-label_indices.bin has 0 bytes, expected" in lines[1]


def test_wrong_fingerprint__has_a_line(store):
    store.fingerprint = "0" * 32
    [line] = problems(store)
    assert line.endswith(f"expected {'0' * 32}")
    assert "the fingerprint is" in line


def test_scan_bags__makes_blocks_of_about_16_mib(store):
    n_bags = verify.scan_bags(store)
    rows_per_bag = store.n_rows / store.n_bags
    assert 15 << 20 < n_bags * rows_per_bag * store.n_features * 4 <= 16 << 20


def test_spec__is_that_of_the_store(store):
    spec = verify.spec_of(store)
    assert (spec.n_features, spec.n_labels, spec.row_labels) == (3, 4, True)
    assert replace(spec, n_labels=None).labels_known is None
