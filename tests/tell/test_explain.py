"""``explain``: sizes of images. Its tables are tested in tests/measure/test_explain.py."""

import pytest

from streammiml.errors import StreammimlError
from streammiml.tell.explain import image_shape


@pytest.mark.parametrize(
    ("text", "n_features", "shape"), [("28x28", 784, (28, 28)), ("32x32x3", 3072, (32, 32, 3))]
)
def test_image_shape__is_height_width_and_channels(text, n_features, shape):
    assert image_shape(text, n_features) == shape


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("28", "^image must be a size such as 28x28 or 32x32x3, got '28'$"),
        ("0x12", "^image must be a size such as"),
        ("3x5", "^an image of 3x5 has 15 values, and rows of the store have 12$"),
    ],
)
def test_image_shape__refuses_what_rows_are_not(text, message):
    with pytest.raises(StreammimlError, match=message):
        image_shape(text, 12)
