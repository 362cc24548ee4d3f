"""Files of the staging folder: complete or absent; logs can be rolled back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.spool import (
    AppendLog,
    block_arrays,
    block_from,
    load_arrays,
    n_spooled,
    part_path,
    save_arrays,
)
from tests.stores import as_sparse, assert_same, made_block, plain, scratch


def test_saved_arrays__come_back_with_their_facts(tmp_path):
    arrays = {"a": np.arange(5), "b": np.zeros((2, 3), np.float32)}
    save_arrays(tmp_path / "part", arrays, {"n": 3})
    loaded, facts = load_arrays(tmp_path / "part")
    assert facts == {"n": 3}
    assert all(np.array_equal(loaded[name], array) for name, array in arrays.items())
    assert [path.name for path in tmp_path.iterdir()] == ["part"]


def test_incomplete_file__counts_as_missing(tmp_path):
    path = tmp_path / "part"
    assert load_arrays(path) is None
    save_arrays(path, {"a": np.arange(50)}, {})
    raw = path.read_bytes()
    for torn in (b"", raw[:11], raw[:-1], raw[:40] + b"\0" + raw[41:-1] + bytes([raw[-1] ^ 1])):
        path.write_bytes(torn)
        assert load_arrays(path) is None


@pytest.mark.parametrize("change", [lambda block: block, plain, as_sparse])
def test_block__comes_back_from_its_arrays(change):
    block = change(made_block())
    again = block_from(block_arrays(block), block.n_features)
    assert_same(again, block)
    assert again.bag_ids == block.bag_ids


def test_n_spooled__is_one_more_than_the_highest_number(tmp_path):
    (tmp_path / "parts").mkdir()
    assert n_spooled(tmp_path) == 0
    for name in (part_path(tmp_path, 7), part_path(tmp_path, 12)):
        name.touch()
    part_path(tmp_path, 99).with_suffix(".4711.partial").touch()
    assert n_spooled(tmp_path) == 13


@given(st.lists(st.binary(max_size=9), max_size=6), st.integers(0, 6), st.binary(max_size=9))
def test_append_log__rolls_back_to_any_state(pieces, kept, later):
    with scratch() as folder:
        log = AppendLog(folder / "log")
        states = [log.state()]
        for piece in pieces:
            log.append(piece)
            states.append(log.state())
        assert log.content() == b"".join(pieces)
        again = AppendLog(folder / "log")
        again.restore(states[min(kept, len(pieces))])
        again.append(later)
        assert again.content() == b"".join(pieces[:kept]) + later
