"""TFRecord: YouTube-8M and AudioSet by hand, checksums, spans, what is refused."""

import gzip
import struct

import numpy as np
import pytest

import streammiml as sm
from streammiml.errors import StreammimlError
from streammiml.verbs.main import run
from streammiml_tools.convert import convert
from streammiml_tools.convert.plan import ConvertConfig
from streammiml_tools.readers.base import SourceError, SourceOptions
from streammiml_tools.readers.tfrecord import READER
from tests.tools.readers import tf_messages as tf
from tests.tools.readers.damage import DamagedReads
from tests.tools.readers.foreign import read_all
from tests.tools.source_files import bags_of


def videos(n_videos=20):
    """Frames as YouTube-8M has them, with narrower rgb and audio."""
    rng = np.random.default_rng(8)
    for number in range(n_videos):
        n_frames = int(rng.integers(1, 6))
        rows = rng.integers(0, 256, (n_frames, 12), dtype=np.uint8)
        labels = sorted({int(rng.integers(0, 9)), number % 3})
        yield f"v{number:02d}", rows, labels


def message(name, rows, labels, cut=8):
    # Labels of the real corpus are not sorted.
    context = {"id": name.encode(), "labels": labels[::-1], "segment_start_times": [0]}
    frames = {"audio": [row[cut:].tobytes() for row in rows]}
    frames["rgb"] = [row[:cut].tobytes() for row in rows]
    return tf.sequence(context, frames)


@pytest.fixture
def source(tmp_path):
    return tf.write(tmp_path / "train.tfrecord", [message(*video) for video in videos()])


def check(store_bags):
    want = [(name, tuple(labels), rows.tobytes()) for name, rows, labels in videos()]
    assert [bag[:3] for bag in store_bags] == want


def test_youtube_8m__comes_out_as_the_numbers_put_in(source, tmp_path):
    options = SourceOptions(n_labels=3862)
    store = convert(source, tmp_path / "o.zarr", options=options).store
    check(bags_of(store))
    assert (store.n_features, store.n_labels, store.dtype) == (12, 3862, "uint8")
    scan, _ = read_all(READER, source)
    assert scan.n_labels is None
    assert scan.n_bags == 20
    assert scan.notes == (
        "a record a bag: tf.train.SequenceExample, rows from rgb (8 uint8) + audio (4 uint8)",
        "ids from 'id'",
        "labels from 'labels'",
    )


def test_spans_gzip_and_several_files__give_the_same_bags(source, tmp_path):
    for span_bytes in (100, 1000, 1 << 20):
        scan, block = read_all(READER, source, span_bytes=span_bytes)
        assert len(scan.spans) == {100: 20, 1000: 5}.get(span_bytes, 1) or span_bytes == 1000
        assert block.bag_ids == [name for name, _, _ in videos()]
    whole = convert(source, tmp_path / "a.zarr").store.fingerprint
    (tmp_path / "z.tfrecord.gz").write_bytes(gzip.compress(source.read_bytes()))
    (tmp_path / "plain-00000-of-00001").write_bytes(source.read_bytes())
    small = SourceOptions(span_bytes=400)
    for number, name in enumerate(("z.tfrecord.gz", "plain-00000-of-00001", "train.tfrecord")):
        out = tmp_path / f"{number}.zarr"
        assert convert(tmp_path / name, out, options=small).store.fingerprint == whole
    messages = [message(*video) for video in videos()]
    halves = [
        tf.write(tmp_path / f"h{i}.tfrecord", messages[a:b])
        for i, (a, b) in enumerate(((0, 7), (7, 7), (7, 20)))
    ]
    assert convert([halves[0], halves[2]], tmp_path / "h.zarr").store.fingerprint == whole


def test_audio_set__and_names_from_a_vocabulary(tmp_path):
    frames = [bytes([i, 255 - i]) for i in range(10)]
    content = tf.sequence(
        {"video_id": b"yt", "labels": [2, 0], "start_time_seconds": [1.0]},
        {"audio_embedding": frames},
    )
    tf.write(tmp_path / "bal.tfrecord", [content])
    (tmp_path / "vocabulary.csv").write_text(
        'index,mid,display_name\n0,/m/1,Speech\n2,/m/3,"Child speech, kid"\n1,/m/2,\n'
        "3,/m/4,Speech\n"
    )
    words = ["convert", str(tmp_path / "bal.tfrecord"), str(tmp_path / "o.zarr"), "--labels"]
    assert run([*words, str(tmp_path / "vocabulary.csv")]) == 0
    store = sm.open_store(tmp_path / "o.zarr")
    assert store.label_names == ["Speech", "/m/2", "Child speech, kid", "Speech (3)"]
    assert list(bags_of(store)) == [("yt", (0, 2), b"".join(frames), None)]


def test_examples__have_one_row_or_rows_of_n_features(tmp_path):
    values = np.arange(6, dtype=np.float32)
    contents = [
        tf.example({"id": b"a", "labels": [b"sky", b"sea"], "mean_rgb": values, "other": [1]}),
        tf.example({"id": b"b", "labels": [b"sky"], "mean_rgb": -values, "other": [1]}),
    ]
    path = tf.write(tmp_path / "d.tfrecord", contents)
    scan, block = read_all(READER, path)
    assert (scan.n_features, scan.dtype, scan.label_names) == (6, "float32", ("sea", "sky"))
    np.testing.assert_array_equal(block.rows, [values, -values])
    assert [block.labels_of(i).tolist() for i in range(2)] == [[0, 1], [1]]
    _, block = read_all(READER, path, n_features=2, labels=("sky", "sea"))
    np.testing.assert_array_equal(block.rows_of(0), values.reshape(3, 2))
    assert block.labels_of(1).tolist() == [0]
    raw = [tf.example({"id": [7], "rows": [b"abc", b"def"]})]
    _, block = read_all(
        READER,
        tf.write(tmp_path / "b.tfrecord", raw),
        feature_columns=("rows",),
        label_columns=("none",),
    )
    np.testing.assert_array_equal(block.rows, [list(b"abc"), list(b"def")])
    assert block.bag_ids == ["7"]


def test_videos_without_frames__are_empty_bags(tmp_path):
    empty = tf.sequence({"id": b"e", "labels": [1]}, {"rgb": [], "audio": []})
    path = tf.write(tmp_path / "d.tfrecord", [empty, message(*next(videos()))])
    done = convert(path, tmp_path / "o.zarr", ConvertConfig(empty_bags="drop"))
    assert done.summary()["left_out"]["empty_bags"] == 1
    with pytest.raises(SourceError, match=r"d\.tfrecord: 1 bags? ha.* no rows, .* bag 'e'"):
        convert(path, tmp_path / "p.zarr")
    tf.write(tmp_path / "n.tfrecord", [empty])
    with pytest.raises(SourceError, match=r"n\.tfrecord has no rows at all"):
        convert(tmp_path / "n.tfrecord", tmp_path / "p.zarr")


# What is refused.


def test_flipped_bits__are_all_found_with_file_and_record(tmp_path):
    contents = [message(*video) for video in videos(3)]
    records = [tf.record(content) for content in contents]
    starts = np.cumsum([0, *map(len, records)])
    raw = b"".join(records)
    path = tmp_path / "d.tfrecord"
    rng = np.random.default_rng(0)
    for at in [0, 9, 12, len(raw) - 1, *rng.integers(0, len(raw), 40).tolist()]:
        damaged = bytearray(raw)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        number = int(np.searchsorted(starts, at, "right")) - 1
        message_ = (
            rf"d\.tfrecord, record {number}(: the length)? does not have its checksum; the fi"
        )
        with pytest.raises(SourceError, match=message_):
            read_all(READER, path)


def test_file__that_is_cut_short_is_refused(source):
    raw = source.read_bytes()
    for n_bytes in (len(raw) - 1, len(raw) - 5, 5, 20):
        source.write_bytes(raw[:n_bytes])
        with pytest.raises(
            SourceError, match=r"train\.tfrecord, record \d+ is cut short; fetch the"
        ):
            read_all(READER, source)
    packed = gzip.compress(raw)
    source = source.with_name("t.tfrecord.gz")
    source.write_bytes(packed[:-40])
    with pytest.raises(SourceError, match=r"t\.tfrecord\.gz is damaged or cut short"):
        read_all(READER, source)
    source.write_bytes(gzip.compress(raw[:-1]))
    with pytest.raises(
        SourceError, match=r"t\.tfrecord\.gz, record 19 is cut short; fetch the file"
    ):
        read_all(READER, source)


def test_lengths__beyond_file_and_memory_are_refused(tmp_path):
    length = struct.pack("<Q", 1 << 40)
    path = tmp_path / "d.tfrecord"
    path.write_bytes(length + tf.masked(length) + bytes(100))
    with pytest.raises(
        SourceError, match=r"record 0, of 1,099,511,627,776 bytes, needs about 4 TiB"
    ):
        read_all(READER, path)
    with gzip.open(tmp_path / "d.tfrecord.gz", "wb") as file:
        length = struct.pack("<Q", 64 << 20)
        file.write(length + tf.masked(length))
        file.write(bytes(64 << 20))
    with pytest.raises(
        SourceError, match=r"record 0, of 67,108,864 bytes, needs about 256 MiB, more"
    ):
        convert(tmp_path / "d.tfrecord.gz", tmp_path / "o.zarr", ConvertConfig(memory="64MiB"))


@pytest.mark.parametrize(
    ("contents", "options", "words"),
    [
        ([tf.example({"x": [1.0]})], {}, r"record 0: which feature has the labels\? give --label-"),
        (
            [tf.example({"labels": [1], "x": [b"jpeg"]})],
            {},
            r"record 0: no feature is a list of floats; name those of the rows by --feature-col",
        ),
        (
            [tf.example({"labels": [1], "x": [1.0]})],
            {"feature_columns": ("y",)},
            r"record 0: no feature is called 'y'; there are labels, x",
        ),
        (
            [tf.sequence({"labels": [1]}, {"x": [b"ab"]})],
            {"feature_columns": ("y",)},
            r"record 0: no list of frames is called 'y'; there are x",
        ),
        (
            [tf.sequence({"labels": [1]}, {"x": [b"ab"], "y": [[1.0]]})],
            {},
            r"record 0: x, y are of different types \(float32, uint8\); name those of one type by",
        ),
        (
            [tf.sequence({"labels": [1]}, {"rgb": [b"ab"], "audio": [b"c", b"d"]})],
            {},
            r"record 0: 'audio' has 2 rows, but 'rgb' has 1",
        ),
        (
            [tf.sequence({"labels": [1]}, {"x": [b"ab"]}), tf.sequence({}, {"x": [b"ab"]})],
            {},
            r"record 1: no feature is called 'labels', as the first record has; there are none",
        ),
        (
            [
                tf.sequence({"labels": [1]}, {"x": [b"ab"]}),
                tf.sequence({"labels": [1]}, {"x": [b"a"]}),
            ],
            {},
            r"record 1: 'x' has rows of 1 values of type uint8, expected 2 of uint8",
        ),
        (
            [tf.example({"labels": [1.5], "x": [1.0]})],
            {"feature_columns": ("x",)},
            r"record 0.*: 'labels' has floats, expected names or numbers of labels",
        ),
        (
            [tf.example({"labels": [1, 1], "x": [1.0]})],
            {},
            r"record 0: label 1 occurs twice; remove one",
        ),
        (
            [tf.example({"labels": [-1], "x": [1.0]})],
            {},
            r"record 0: label -1 is not among the num",
        ),
        (
            [tf.example({"labels": [1], "x": [1.0, 2.0, 3.0]})],
            {"n_features": 2},
            r"record 0: 'x' has 3 values, not a multiple of --n-features 2",
        ),
        (
            [tf.example({"labels": [1], "x": [b"ab", b"c"]})],
            {"feature_columns": ("x",)},
            r"record 0: the texts of 'x' have different lengths",
        ),
        (
            [tf.example({"id": [b"a", b"b"], "labels": [1], "x": [1.0]})],
            {},
            r"record 0: 'id' has 2 values, expected one id that is not empty",
        ),
        (
            [
                tf.example({"labels": [1], "x": [1.0]}),
                tf.sequence({"labels": [1], "x": [1.0]}, {"rgb": [b"ab"]}),
            ],
            {},
            r"record 1: it has frames \(rgb\), but the first record has none; convert recor",
        ),
        (
            [tf.example({"labels": [2], "x": [1]}), tf.example({"labels": [1], "x": [1.0]})],
            {"feature_columns": ("x",)},
            r"record 1: 'x' has rows of 1 values of type float32, expected 1 of int64",
        ),
        (
            [tf.example({"labels": own, "x": [1.0]}) for own in ([0, 1], [1, 0])],
            {},
            r"labels that all are \[0, 1\] or \[1, 0\].* give --n-labels if there are more than",
        ),
        (
            [tf.example({"labels": own, "x": [1.0]}) for own in ([0, 1], [1, 0])],
            {"labels": ("sea", "sky")},
            r"labels that all are \[0, 1\] or \[1, 0\]: marks of two labels, or numbers of lab",
        ),
        (
            [b"\xff"],
            {},
            r"record 0 is not a tf.train.Example or SequenceExample as expected: a num",
        ),
    ],
)
def test_messages__that_cannot_be_meant_are_refused(tmp_path, contents, options, words):
    with pytest.raises(SourceError, match=words):
        read_all(READER, tf.write(tmp_path / "d.tfrecord", contents), **options)


def test_files__of_other_features_are_refused(tmp_path, source):
    other = tf.write(tmp_path / "b.tfrecord", [message(*next(videos()), cut=6)])
    with pytest.raises(
        SourceError, match=r"has other features than .*: rgb \(6 uint8\) \+ audio \(6"
    ):
        convert([source, other], tmp_path / "o.zarr")


def test_n_labels__holds_for_every_reader(tmp_path, source):
    with pytest.raises(SourceError, match=r"label 8 .*0 to 3|label"):
        convert(source, tmp_path / "o.zarr", options=SourceOptions(n_labels=4))
    with pytest.raises(StreammimlError, match="--n-labels 0: at least 1 label is expected"):
        SourceOptions(n_labels=0)
    with pytest.raises(
        StreammimlError, match="--labels names all labels, so --n-labels is not nee"
    ):
        SourceOptions(n_labels=2, labels=("a", "b"))
    (tmp_path / "d.csv").write_text("bag,x,labels\na,1,1\nb,2,0\n")
    store = convert(
        tmp_path / "d.csv", tmp_path / "c.zarr", options=SourceOptions(n_labels=5)
    ).store
    assert store.n_labels == 5
    (tmp_path / "n.csv").write_text("bag,x,labels\na,1,cat\nb,2,dog\n")
    with pytest.raises(SourceError, match=r"n\.csv has 2 labels, but --n-labels gives 5"):
        convert(tmp_path / "n.csv", tmp_path / "n.zarr", options=SourceOptions(n_labels=5))


def test_damaged_files__are_refused_in_one_line(tmp_path):
    # Checksums made again, so that the messages themselves are damaged.
    rng = np.random.default_rng(5)
    paths = []
    for number in range(60):
        content = bytearray(message(*next(videos())))
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        paths.append(tf.write(tmp_path / f"{number}.tfrecord", [bytes(content)]))
    with DamagedReads() as reads:
        outcomes = reads.outcomes("tfrecord", paths)
    assert all(one == "read" or one.startswith("refused: ") for one in outcomes), outcomes


def test_numbers_of_labels__that_cannot_be_marks_are_read(tmp_path):
    for labels, options in (
        ([[0, 1], [1]], {}),
        ([[1, 0], []], {}),
        ([[0], [1]], {}),
        ([[0, 1], [1, 0]], {"n_labels": 3}),
        ([[0, 1], [1, 0]], {"labels": ("a", "b", "c")}),
    ):
        contents = [tf.example({"labels": np.array(own, int), "x": [1.0]}) for own in labels]
        _, block = read_all(READER, tf.write(tmp_path / "d.tfrecord", contents), **options)
        assert [block.labels_of(i).tolist() for i in range(2)] == [sorted(own) for own in labels]


def test_integers__are_stored_exactly_or_refused(tmp_path):
    options = SourceOptions(feature_columns=("x",), n_labels=2)
    for value in (2**24, 2**24 + 1):
        content = tf.example({"labels": [1], "x": np.array([value, 1])})
        path = tf.write(tmp_path / f"{value}.tfrecord", [content])
        if value == 2**24:
            store = convert(path, tmp_path / "o.zarr", options=options).store
            assert (store.dtype, store[0].rows.tolist()) == ("float32", [[2**24, 1]])
            continue
        with pytest.raises(SourceError, match=r"16777217.*float32|float32.*16777217"):
            convert(path, tmp_path / "p.zarr", options=options)


def test_blocks__count_whole_records(tmp_path):
    # Rows are views, which keep their records in memory.
    contents = [tf.example({"labels": [1], "x": [1.0], "jpeg": bytes(1 << 20)})] * 20
    path = tf.write(tmp_path / "d.tfrecord", contents)
    options = SourceOptions(feature_columns=("x",))
    scanned = READER.scan([path], options)
    blocks = list(READER.read(scanned.spans[0], scanned, options))
    assert [len(block.bag_offsets) - 1 for block in blocks] == [8, 8, 4]


def test_length__that_begins_like_gzip_is_read_as_a_length(tmp_path):
    content = tf.example({"labels": [1], "x": [1.0], "jpeg": b""})
    n_more = 0x8B1F - len(content)
    while len(content) != 0x8B1F:
        content = tf.example({"labels": [1], "x": [1.0], "jpeg": bytes(n_more)})
        n_more -= len(content) - 0x8B1F
    for name in ("d.tfrecord", "part-0"):
        path = tf.write(tmp_path / name, [content] * 2)
        assert path.read_bytes()[:2] == b"\x1f\x8b"
        store = convert(path, tmp_path / f"{name}.zarr", options=SourceOptions(n_labels=2)).store
        assert store.n_bags == 2
