"""Pictures inside a page: real PNG files that hold the pixels of a row."""

import base64
import io

import numpy as np
import pytest

from streammiml.tell.pictures import LARGEST, picture, png

image = pytest.importorskip("PIL.Image", reason="Pillow reads the pictures back")


def opened(raw):
    return np.asarray(image.open(io.BytesIO(raw)))


@pytest.mark.parametrize("shape", [(1, 1), (8, 8), (5, 3), (4, 6, 3), (2, 7, 4)])
def test_png__another_reader_finds_the_same_pixels(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    np.testing.assert_array_equal(opened(png(pixels)), pixels)


def content(address):
    kind, raw = address.split(",")
    assert kind == "data:image/png;base64"
    return opened(base64.b64decode(raw))


def test_picture__the_highest_is_black_and_what_lies_beyond_is_cut():
    found = content(picture(np.array([0, 8, 16, 99], np.uint8), (2, 2), 0, 16))
    np.testing.assert_array_equal(found, [[255, 128], [0, 0]])


def test_picture__a_row_of_one_value_is_white():
    assert (content(picture(np.zeros(4), (2, 2), 0, 0)) == 255).all()


def test_picture__large_ones_are_thinned_out():
    found = content(picture(np.arange(400 * 250), (400, 250), 0, 1e5))
    assert max(found.shape) <= LARGEST
