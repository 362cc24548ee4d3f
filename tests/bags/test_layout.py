"""The format of a store: manifests are read back, and invalid manifests are refused."""

import json
import re
from dataclasses import replace

import pytest

import streammiml as sm
from streammiml.bags.layout import (
    FORMATS,
    RECORD_LIMIT,
    Manifest,
    array_names,
    refuse_huge,
)
from streammiml.errors import StoreError


@pytest.fixture
def manifest(tiny):
    return sm.open_store(tiny.path).manifest


def test_manifest__comes_back_from_its_bytes(manifest):
    assert Manifest.from_bytes(manifest.to_bytes(), "x") == manifest
    assert not manifest.contradiction()


def test_manifest__that_was_edited_is_refused(manifest):
    fields = json.loads(manifest.to_bytes())
    raw = json.dumps({**fields, "n_bags": 13}).encode()
    with pytest.raises(StoreError, match=r"x/_streammiml/manifest.json is damaged \(checksum"):
        Manifest.from_bytes(raw, "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_bags": 13}, "_offsets has 13 elements, expected 14"),
        ({"dtype": "float16"}, "rows holds float32, expected float16"),
        ({"n_features": 4}, "rows has 3 features, expected 4"),
        ({"metadata": {}}, "the description of .* is not listed"),
    ],
)
def test_contradiction__is_named(manifest, change, message):
    problem = replace(manifest, **change).contradiction()
    assert re.search(message, problem), problem


def test_coding_of_another_backend__is_a_contradiction(manifest):
    coding = {"zarr": "tail", "parquet": "blosc"}[manifest.backend]
    rows = replace(manifest.arrays["rows"], coding=coding)
    wrong = replace(manifest, arrays={**manifest.arrays, "rows": rows})
    codings = " or ".join(FORMATS[manifest.backend].codings)
    assert wrong.contradiction() == f"rows is coded as {coding}, expected {codings}"


def test_refuse_huge__names_the_limit():
    refuse_huge("x", RECORD_LIMIT, RECORD_LIMIT, "less")
    with pytest.raises(StoreError, match=rf"x has 4294967296 bytes, more than {RECORD_LIMIT}; wr"):
        refuse_huge("x", RECORD_LIMIT + 1, 1, "less")


def test_array_names__depend_on_the_kind_of_store():
    names = array_names(sparse=True, row_labels=True, bag_ids=False)
    assert names[-4:] == ["row_offsets", "columns", "values", "row_labels"]
    assert array_names(sparse=False, row_labels=False, bag_ids=True)[3:] == [
        "rows",
        "bag_id_offsets",
        "bag_id_bytes",
    ]
