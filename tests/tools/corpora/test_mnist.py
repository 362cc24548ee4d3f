import gzip
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock
from streammiml.errors import StreammimlError
from streammiml_tools.command import run_command
from streammiml_tools.corpora import mnist
from streammiml_tools.corpora.mnist import Drawn, drawn_part, load_pictures, read_idx, write_bags
from tests.stores import assert_same, scratch

DIGITS = np.repeat(np.arange(10), 4).astype(np.uint8)
# A picture tells its digit and its number, so that a row can be traced back.
PICTURES = np.zeros((40, 2, 3), np.uint8)
PICTURES[:, 0, 0], PICTURES[:, 1, 2] = DIGITS, np.arange(40)


def idx(array):
    return (
        b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
    )


@pytest.fixture
def folder(tmp_path):
    """Training files gzipped, test files not, as both are found."""
    for name, stop in (("train", 40), ("t10k", 20)):
        for kind, array in (("images-idx3", PICTURES), ("labels-idx1", DIGITS)):
            path = tmp_path / f"{name}-{kind}-ubyte"
            raw = idx(array[:stop])
            if name == "train":
                path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(raw))
            else:
                path.write_bytes(raw)
    return tmp_path


def test_load_pictures__reads_each_part(folder):
    pictures, digits = load_pictures(folder, "train")
    np.testing.assert_array_equal(pictures, PICTURES.reshape(40, 6))
    np.testing.assert_array_equal(digits, DIGITS)
    assert len(load_pictures(folder, "test")[0]) == 20
    assert len(load_pictures(folder, "all")[0]) == 60


@given(
    n_bags=st.integers(1, 40),
    low=st.integers(1, 4),
    more=st.integers(0, 4),
    shown=st.integers(1, 10),
    groups=st.sampled_from([None, ("02468", "13579"), ("7", "123")]),
    seed=st.integers(0, 99),
)
def test_drawn_part__labels_are_those_of_the_digits_shown(n_bags, low, more, shown, groups, seed):
    drawn = Drawn(
        n_bags=n_bags,
        seed=seed,
        rows_per_bag=(low, low + more),
        digits_per_bag=shown,
        groups=groups,
    )
    block = drawn_part(drawn, 0, PICTURES.reshape(40, 6), DIGITS.astype(np.int32))
    assert len(block) == n_bags
    label_of = {digit: digit for digit in range(10)}
    if groups is not None:
        label_of = dict.fromkeys(range(10), -1)
        label_of |= {int(digit): i for i, members in enumerate(groups) for digit in members}
    want = [label_of[digit] for digit in block.rows[:, 0].tolist()]
    assert block.row_labels.tolist() == want
    for bag in range(n_bags):
        start, stop = block.bag_offsets[bag : bag + 2]
        assert low <= stop - start <= low + more
        assert len(set(block.rows[start:stop, 0].tolist())) <= shown
        assert block.labels_of(bag).tolist() == sorted(set(want[start:stop]) - {-1})


def test_drawn_part__all_pictures_come(folder):
    block = drawn_part(Drawn(n_bags=300), 0, *load_pictures(folder, "train"))
    assert set(block.rows[:, 5].tolist()) == set(range(40))


@pytest.mark.parametrize("suffix", ["zarr", "parquet"])
def test_write_bags__is_its_parts_in_order(folder, suffix):
    drawn = Drawn(n_bags=50, seed=5)
    with scratch() as out, mock.patch.object(mnist, "PART_BYTES", 400):
        size = drawn.bags_per_part(6)
        assert size == 11
        store = write_bags(folder, out / f"a.{suffix}", drawn)
        pictures = load_pictures(folder, "train")
        parts = [drawn_part(drawn, part, *pictures) for part in range(-(-50 // size))]
        assert_same(store.read(0, 50), BagBlock.join(parts))
        assert store.dtype == "uint8"
        assert store.label_names == list(mnist.NAMES)


@pytest.mark.slow
def test_write_bags__real_digits_are_the_same_whoever_writes_them(real_data):
    with scratch() as out:
        drawn = Drawn(n_bags=10_000, seed=1)
        alone = write_bags(real_data / "mnist", out / "a.zarr", drawn)
        by_two = write_bags(real_data / "mnist", out / "b.parquet", drawn, workers=2)
        assert alone.fingerprint == by_two.fingerprint
        assert not alone.check()


def test_real_files__have_the_counts_of_the_set(real_data):
    pictures, digits = load_pictures(real_data / "mnist", "all")
    assert (pictures.shape, pictures.dtype, len(digits)) == ((70_000, 784), np.uint8, 70_000)
    # Known of the training set: how often each digit occurs in both parts together.
    want = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    assert np.bincount(digits).tolist() == want


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", r"a is not an idx file of bytes: it begins with b''$"),
        (b"\0\0\x0d\x01", r"a is not an idx file of bytes: it begins with"),
        (idx(DIGITS)[:6], r"a ends within its header; fetch it again$"),
        (idx(DIGITS)[:-1], r"a declares 40 values and has fewer; fetch it again$"),
        (idx(DIGITS) + b"1", r"a declares 40 values and has more; fetch it again$"),
        (b"\0\0\x08\x02" + b"\xff" * 8, r"a declares 16777216 TiB, more than 1 GiB$"),
    ],
)
def test_read_idx__refuses_what_is_broken(tmp_path, raw, message):
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(StreammimlError, match=message):
        read_idx(tmp_path / "a")


def test_read_idx__refuses_a_gzip_cut_short(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx(PICTURES))[:-20])
    with pytest.raises(
        StreammimlError, match=r"a.gz (is damaged or cut short|declares 240 values)"
    ):
        read_idx(tmp_path / "a.gz")


def test_load_pictures__refuses_files_that_disagree(folder):
    with pytest.raises(StreammimlError, match=r"^no part of MNIST is called 'dev'; known: all, te"):
        load_pictures(folder, "dev")
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(DIGITS[:19]))
    with pytest.raises(
        StreammimlError, match=r"t10k has pictures of shape \(20, 2, 3\) and labels"
    ):
        load_pictures(folder, "test")
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(DIGITS[:20] + 9))
    with pytest.raises(StreammimlError, match=r"t10k has a label 13, expected 0 to 9$"):
        load_pictures(folder, "test")
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(StreammimlError, match=r"has no t10k-labels-idx1-ubyte or t10k-labels-idx1"):
        load_pictures(folder, "test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_bags": 0}, r"^the number of bags must be at least 1, got 0$"),
        (
            {"rows_per_bag": (0, 2)},
            r"^rows_per_bag must be two ascending numbers from 1 on, got 0 and",
        ),
        ({"digits_per_bag": 11}, r"^digits_per_bag must be 1 to 10, got 11$"),
        ({"groups": ("12", "2")}, r"^groups must be digits, each in one group at most, got 12,2$"),
        ({"groups": ("ab",)}, r"^groups must be digits, each in one group at most, got ab$"),
    ],
)
def test_drawn__refuses_what_cannot_be(change, message):
    with pytest.raises(StreammimlError, match=message):
        Drawn(**{"n_bags": 5, **change})


def test_drawn_part__refuses_digits_without_pictures():
    with pytest.raises(StreammimlError, match=r"^no picture shows the digit 1$"):
        drawn_part(Drawn(n_bags=50), 0, PICTURES[:4].reshape(4, 6), DIGITS[:4].astype(np.int32))


def test_command__writes_a_store_or_says_why_not_in_one_line(folder, tmp_path, capsys):
    words = [str(folder), str(tmp_path / "a.zarr"), "--bags", "9", "--groups", "02468,13579"]
    assert run_command(mnist.mnist, words) == 0
    assert ": 9 bags of " in capsys.readouterr().out
    assert run_command(mnist.mnist, [*words[:-1], "0,0"]) == 2
    assert capsys.readouterr().err.startswith("streammiml: groups must be digits")
