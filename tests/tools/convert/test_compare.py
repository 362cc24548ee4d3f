"""verify --source: the same bags, or the first that differs and how many do."""

import re

import numpy as np
import pytest

from streammiml.errors import StoreError, StreammimlError
from streammiml.verbs.main import run
from streammiml_tools.convert import convert
from streammiml_tools.convert.compare import compare
from streammiml_tools.convert.plan import ConvertConfig
from streammiml_tools.readers.base import SourceOptions
from tests.stores import made_block, plain, write_store
from tests.tools.source_files import arrays_of, save_npz

BLOCK = made_block(30)


@pytest.fixture
def pair(tmp_path):
    source = save_npz(tmp_path / "d.npz", BLOCK)
    convert(source, tmp_path / "d.zarr")
    return source, tmp_path / "d.zarr"


def changed(tmp_path, **changes):
    np.savez(tmp_path / "e.npz", **{**arrays_of(BLOCK), **changes})
    return tmp_path / "e.npz"


def test_same__is_said(pair, backend, tmp_path, capsys):
    source, store = pair
    comparison = compare(store, source)
    assert comparison.is_same
    assert comparison.same == comparison.n_bags == 30
    assert run(["verify", str(store), "--source", str(source)]) == 0
    assert "30 bags are as in the source" in capsys.readouterr().out
    sparse = SourceOptions(sparse=True)
    convert(source, tmp_path / f"s.{backend}", ConvertConfig(codec="zstd"), sparse)
    assert compare(tmp_path / f"s.{backend}", source).is_same


def test_float64_source__is_compared_as_the_store_holds_it(tmp_path):
    rows = np.random.default_rng(0).normal(size=BLOCK.rows.shape)
    source = changed(tmp_path, instances=rows)
    for dtype in ("float32", "float16"):
        convert(source, tmp_path / f"{dtype}.zarr", ConvertConfig(dtype=dtype))
        assert compare(tmp_path / f"{dtype}.zarr", source).is_same


def with_value(place, value):
    rows = BLOCK.rows.copy()
    rows[place] = value
    return rows


LABELLED = int(np.flatnonzero(np.diff(BLOCK.label_offsets))[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            lambda: {"instances": with_value((int(BLOCK.bag_offsets[7]), 2), 99.0)},
            r"bag 7 \('bag-0007'\) has \S+ in row 0, feature 2 in the store and 99.0 in the source "
            r"\(1 values differ\)",
        ),
        (
            lambda: {"label_indices": (BLOCK.label_indices + 1) % 4},
            rf"bag {LABELLED} .* has labels \[.*\] in the store and \[.*\] in the source",
        ),
        (
            lambda: {"bag_ids": np.array([f"x{i}" for i in range(30)])},
            r"bag 0 \('x0'\) is called 'bag-0000' in the store",
        ),
        (lambda: {"row_labels": np.full(BLOCK.n_rows, 3)}, "has other row labels in the store"),
        (
            lambda: {"offsets": np.r_[BLOCK.bag_offsets[:-2], BLOCK.n_rows - 1, BLOCK.n_rows]},
            r"has \d rows in the store and \d in the source",
        ),
    ],
)  # fmt: skip
def test_differences__are_named(pair, tmp_path, changes, message, capsys):
    source = changed(tmp_path, **changes())
    if "offsets" in changes() and np.array_equal(changes()["offsets"], BLOCK.bag_offsets):
        pytest.skip("the last bag has one row already")
    assert run(["verify", str(pair[1]), "--source", str(source)]) == 2
    comparison = compare(pair[1], source)
    assert comparison.different > 0
    assert comparison.same + comparison.different == 30
    out = capsys.readouterr().out
    assert f"{comparison.different} of 30 bags differ from the source; the first: " in out
    assert re.search(message, out)


def test_missing_and_surplus_bags__are_counted(pair, tmp_path, capsys):
    few, many = tmp_path / "few.zarr", pair[1]
    convert(pair[0], few, ConvertConfig(limit=12))
    comparison = compare(few, pair[0])
    assert (comparison.same, comparison.different, comparison.surplus) == (12, 18, 0)
    assert comparison.first == "bag 12 ('bag-0012') is not in the store"
    assert run(["verify", str(few), "--source", str(pair[0])]) == 2
    out = capsys.readouterr().out
    assert "; the store has 12 bags, the source 30: compare a store that was split" in out
    assert out.rstrip().endswith("that was split or filtered with --subset")
    comparison = compare(many, few)
    assert (comparison.same, comparison.different, comparison.surplus) == (12, 0, 18)
    assert comparison.first == "bag 12 of the store is not in the source"
    assert run(["verify", str(many), "--source", str(few)]) == 2
    assert "18 bags of the store are not in it" in capsys.readouterr().out


def test_any_order_and_subset__of_shuffled_and_split_stores(pair, tmp_path):
    source = pair[0]
    convert(source, tmp_path / "s.zarr", ConvertConfig(shuffle=True))
    assert not compare(tmp_path / "s.zarr", source).is_same
    assert compare(tmp_path / "s.zarr", source, any_order=True).is_same
    done = convert(source, tmp_path / "t.zarr", ConvertConfig(split="a=.5,b=.5"))
    for store in done.stores:
        comparison = compare(store, source, any_order=True)
        assert comparison.different == 30 - store.n_bags
        assert "is not in the store" in comparison.first
        assert compare(store, source, subset=True).is_same
    other = changed(tmp_path, instances=with_value((0, 0), 99.0))
    comparison = compare(pair[1], other, subset=True)
    assert (comparison.surplus, comparison.is_same) == (1, False)
    assert comparison.first == "1 bags of the store are not in the source"


def test_stores_that_cannot_be_alike__are_refused(pair, tmp_path):
    write_store(tmp_path / "w.zarr", plain(made_block(n_features=5)))
    with pytest.raises(StoreError, match=r"w\.zarr has 5 features, the source 3"):
        compare(tmp_path / "w.zarr", pair[0])
    source = changed(tmp_path, label_names=np.array(list("abcd")))
    convert(source, tmp_path / "n.zarr", options=SourceOptions(labels=tuple("dcba")))
    with pytest.raises(StoreError, match=r"has other label names than the source, or another"):
        compare(tmp_path / "n.zarr", source)
    assert compare(tmp_path / "n.zarr", source, SourceOptions(labels=tuple("dcba"))).is_same
    with pytest.raises(
        StreammimlError, match="a store made with --group cannot be compared with its source"
    ):
        compare(pair[1], pair[0], SourceOptions(group=True))


def test_damaged_store__is_told_before_it_is_compared(pair, capsys):
    source, store = pair
    chunk = next((store / "rows" / "c").rglob("0"))
    chunk = chunk if chunk.is_file() else next(path for path in chunk.rglob("*") if path.is_file())
    raw = bytearray(chunk.read_bytes())
    raw[5] ^= 1
    chunk.write_bytes(raw)
    assert run(["verify", str(store), "--source", str(source)]) == 2
    assert "fails its checksum" in capsys.readouterr().out
