"""Bags of digits: real pictures, labels that follow from them, halves that share none."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="digits come with scikit-learn")

from streammiml_tools.corpora.digits import digit_bags, load_pictures


def test_digit_bags__labels_are_the_digits_shown():
    block, digits = digit_bags(50, seed=1)
    pictures, shown = load_pictures()
    known = {bytes(row): digit for row, digit in zip(pictures, shown, strict=True)}
    for bag in range(50):
        rows = block.rows_of(bag)
        want = sorted({int(known[bytes(row)]) for row in rows})
        assert block.labels_of(bag).tolist() == want
        assert len(want) <= 3
    np.testing.assert_array_equal(block.row_labels, digits)


def test_digit_bags__groups_stand_for_their_digits():
    block, digits = digit_bags(60, seed=2, groups=[(0, 1), (7, 8, 9)])
    group = np.full(10, -1)
    group[[0, 1]], group[[7, 8, 9]] = 0, 1
    np.testing.assert_array_equal(block.row_labels, group[digits])
    for bag in range(60):
        rows = block.row_labels[block.bag_offsets[bag] : block.bag_offsets[bag + 1]]
        assert block.labels_of(bag).tolist() == sorted(set(rows[rows >= 0].tolist()))


def test_digit_bags__seed_decides_and_halves_share_no_picture():
    first, again = digit_bags(20, seed=3)[0], digit_bags(20, seed=3)[0]
    np.testing.assert_array_equal(first.rows, again.rows)
    pictures, _ = load_pictures()
    half = [{bytes(row) for row in digit_bags(300, seed=0, half=h)[0].rows} for h in (0, 1)]
    twins = {bytes(row) for row in pictures[::2]} & {bytes(row) for row in pictures[1::2]}
    assert not (half[0] & half[1]) - twins
