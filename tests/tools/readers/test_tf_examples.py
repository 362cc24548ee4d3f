"""Messages of TensorFlow: what was put in comes out, in every form of the wire."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from streammiml_tools.readers.tf_examples import (
    MAX_INTEGER_BYTES,
    MessageError,
    feature_values,
    frame_rows,
    parse_message,
)
from tests.tools.readers.tf_messages import (
    entry,
    example,
    feature,
    features,
    field,
    sequence,
    varint,
)

INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1)


@given(values=INTEGERS, packed=st.booleans())
def test_integers__come_out(values, packed):
    message = parse_message(example({"x": np.array(values, np.int64)}, packed=packed))
    assert message.features["x"].numbers.tolist() == values


@given(values=arrays(np.float32, st.integers(1, 9)), packed=st.booleans())
def test_floats__come_out_bit_for_bit(values, packed):
    message = parse_message(example({"x": values}, packed=packed))
    assert message.features["x"].numbers.tobytes() == values.tobytes()


@given(texts=st.lists(st.binary(), min_size=1))
def test_texts__come_out(texts):
    assert parse_message(example({"x": texts, "y": [1]})).features["x"].texts == texts


@given(rows=arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 300))))
def test_frames_of_bytes__come_out(rows):
    message = parse_message(sequence({"id": b"v"}, {"rgb": [row.tobytes() for row in rows]}))
    np.testing.assert_array_equal(frame_rows(message, "rgb"), rows)


@given(
    rows=arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 70))), packed=st.booleans()
)
def test_frames_of_floats__come_out(rows, packed):
    message = parse_message(sequence({}, {"x": list(rows)}, packed=packed))
    assert frame_rows(message, "x").tobytes() == rows.tobytes()


def test_frames__with_other_headers_are_read_one_by_one():
    # The length of the second frame's list is written in two bytes, where one would do.
    wide = b"\x0a\x85\x00" + field(1, b"cde")
    frames = field(1, feature(b"cde")) + field(1, wide)
    message = parse_message(field(2, entry("x", frames)))
    np.testing.assert_array_equal(frame_rows(message, "x"), [list(b"cde")] * 2)


def test_fields__that_are_unknown_are_passed_over():
    unknown = varint(9 << 3) + varint(300) + varint(10 << 3 | 1) + bytes(8) + field(11, b"xyz")
    content = unknown + field(1, unknown + features({"x": [7]}) + unknown) + unknown
    assert parse_message(content).features["x"].numbers.tolist() == [7]


def test_empty_lists_and_frames__have_no_values():
    message = parse_message(
        field(1, entry("x", b"") + entry("y", field(3, b""))) + sequence({}, {"z": []})
    )
    assert [len(message.features[name]) for name in "xy"] == [0, 0]
    assert frame_rows(message, "z").shape == (0, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x0a", r"a number is cut short, or has more than ten bytes"),
        (b"\x0a" + b"\xff" * 11, r"a number is cut short, or has more than ten bytes"),
        (b"\x0a\xff\xff\xff\xff\x0f", r"field 1 has 4,294,967,295 bytes, more than the 0 that are"),
        (b"\x0b", r"field 1 is of kind 3, which no Example has"),
        (example({"x": [1]}) + example({"x": [1]}), r"'x' occurs twice"),
        (field(1, entry("x", field(2, field(1, bytes(5))))), r"has 5 bytes, not a multiple of 4"),
        (field(1, entry("x", field(3, field(1, b"\x80")))), r"a list of integers is cut short"),
        (
            field(1, entry("x", field(3, field(1, b"\x80" * 10 + b"\x01")))),
            r"an integer has more than ten bytes",
        ),
        (
            field(1, entry("x", field(3, field(1, bytes(MAX_INTEGER_BYTES))))),
            r"a list of integers has 4,194,3\d\d bytes, more than 4,194,304",
        ),
        (field(1, field(1, field(1, b"\xff"))), r"b'\\xff' is not UTF-8"),
    ],
)
def test_message__that_is_damaged_is_refused(content, message):
    with pytest.raises(MessageError, match=message):
        parse_message(content)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (
            [b"ab", b"abc"],
            r"frame 1 of 'x' has 3 values of type uint8, but the first has 2 of uint",
        ),
        ([b"ab", [1.0, 2.0]], r"frame 1 of 'x' has 2 values of type float32, but the first has 2"),
        ([[b"a", b"b"]], r"frame 0 of 'x' has 2 values, expected one text of bytes, or numbers"),
        ([b""], r"frame 0 of 'x' has 0 values of type uint8, but the first has 0 of uint8"),
    ],
)
def test_frames__that_are_no_rows_are_refused(frames, message):
    with pytest.raises(MessageError, match=message):
        frame_rows(parse_message(sequence({}, {"x": frames})), "x")


def test_limits__hold_for_what_becomes_python_objects(monkeypatch):
    monkeypatch.setattr("streammiml_tools.readers.tf_examples.MAX_TEXTS", 2)
    content = feature([b"a", b"b"])
    assert feature_values(content, 0, len(content)).texts == [b"a", b"b"]
    content = feature([b"a", b"b", b"c"])
    with pytest.raises(MessageError, match="a list has more than 2 texts"):
        feature_values(content, 0, len(content))
    monkeypatch.setattr("streammiml_tools.readers.tf_examples.MAX_FEATURES", 2)
    with pytest.raises(MessageError, match="more than 2 features"):
        parse_message(example({"a": [1], "b": [1], "c": [1]}))


@given(content=st.binary(max_size=60), at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_bytes__are_read_or_refused(content, at, bit):
    whole = bytearray(sequence({"id": b"v", "labels": [1, 5]}, {"rgb": [b"abc", b"def"]}))
    whole[at % len(whole)] ^= 1 << bit
    for raw in (content, bytes(whole), bytes(whole[: at % len(whole)])):
        try:
            message = parse_message(raw)
            for name in message.frames:
                frame_rows(message, name)
        except MessageError:
            pass


def test_unpacked_floats__need_little_more_than_their_bytes():
    content = feature(np.ones(1 << 16, np.float32), packed=False)
    tracemalloc.start()
    values = feature_values(content, 0, len(content)).numbers
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert values.tolist() == [1.0] * (1 << 16)
    assert peak < 4 * values.nbytes
