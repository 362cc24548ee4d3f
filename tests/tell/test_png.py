"""Images inside a page: real PNG files that hold the pixels of a row."""

import base64
import io

import numpy as np
import pytest

from streammiml.tell.png import LARGEST, encode_png, image_url

image = pytest.importorskip("PIL.Image", reason="Pillow reads the pictures back")


def opened(raw):
    return np.asarray(image.open(io.BytesIO(raw)))


@pytest.mark.parametrize("shape", [(1, 1), (8, 8), (5, 3), (4, 6, 3), (2, 7, 4)])
def test_encode_png__another_reader_reads_the_same_pixels(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    np.testing.assert_array_equal(opened(encode_png(pixels)), pixels)


def content(address):
    kind, raw = address.split(",")
    assert kind == "data:image/png;base64"
    return opened(base64.b64decode(raw))


def test_image_url__the_highest_value_is_black_and_values_beyond_are_clipped():
    pixels = content(image_url(np.array([0, 8, 16, 99], np.uint8), (2, 2), 0, 16))
    np.testing.assert_array_equal(pixels, [[255, 128], [0, 0]])


def test_image_url__a_row_of_one_value_is_white():
    assert (content(image_url(np.zeros(4), (2, 2), 0, 0)) == 255).all()


def test_image_url__large_images_are_thinned_out():
    pixels = content(image_url(np.arange(400 * 250), (400, 250), 0, 1e5))
    assert max(pixels.shape) <= LARGEST
