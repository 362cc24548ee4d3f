"""``explain``: sizes of images. Its tables are tested in tests/measure/test_explain.py."""

import pytest

from streammiml.errors import StreammimlError
from streammiml.tell.explain import explain, image_shape
from tests.clusters import inside_client
from tests.measure.models import made_model
from tests.stores import made_block, write_store


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


def test_explain__is_the_same_on_a_client_which_stays_open(tmp_path):
    store = write_store(tmp_path / "x.zarr", made_block(30), n_labels=4)
    alone = explain(made_model(), store, tmp_path / "alone", threads=1)
    with inside_client() as client:
        assert explain(made_model(), store, tmp_path / "out", client=client) == alone
        assert client.status == "running"
