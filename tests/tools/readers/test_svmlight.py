"""SVMlight: rows of a bag by their qid."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock
from streammiml_tools.readers import text
from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.svmlight import READER
from tests.stores import assert_same, scratch
from tests.tools.readers.foreign import DATA, dense_rows, fingerprint_of, read_all

BAGS = DATA / "readers/bags.svmlight"


def read_text(folder, content, **options):
    path = folder / "a.svmlight"
    path.write_text(content)
    return read_all(READER, path, **options)


def test_svmlight__the_smallest_file():
    scan, block = read_all(READER, BAGS)
    want = np.zeros((4, 9), np.float32)
    want[0, [4, 8]], want[1, 0], want[2, 1], want[3, 8] = [0.3, 1], -2, 1.5, 2
    assert np.array_equal(dense_rows(block), want)
    assert block.bag_offsets.tolist() == [0, 2, 3, 4]
    assert [block.labels_of(bag).tolist() for bag in range(3)] == [[3, 7], [], [0]]
    assert block.bag_ids == ["12", "4", "a7"]
    assert (scan.n_bags, scan.n_rows, scan.sparse, scan.dtype) == (3, 4, True, "float32")
    assert scan.notes == ("svmlight: no feature 0 occurs, so features are counted from 1",)


def test_svmlight__compressed_or_dense_have_one_fingerprint(tmp_path):
    path = tmp_path / "a.svm.gz"
    path.write_bytes(gzip.compress(BAGS.read_bytes()))
    dense = fingerprint_of(*read_all(READER, BAGS, sparse=False))
    assert fingerprint_of(*read_all(READER, path, span_bytes=1)) == dense


def test_svmlight__a_feature_0_moves_the_base(tmp_path):
    scan, block = read_text(tmp_path, "1 qid:1 0:3 2:200\n")
    assert scan.notes == ("svmlight: a feature 0 occurs, so features are counted from 0",)
    assert dense_rows(block).tolist() == [[3, 0, 200]]
    assert scan.dtype == "uint8"
    assert read_text(tmp_path, "1 qid:1 2:-3\n")[0].dtype == "int8"
    assert read_text(tmp_path, "1 qid:1 2:-300\n")[0].dtype == "int16"
    assert read_text(tmp_path, "1 qid:1 2:1\n", n_features=5)[1].n_features == 5


def test_svmlight__labels_by_name_and_of_rows(tmp_path):
    content = "sea qid:1 1:1\nsky qid:1 1:2\nqid:2 1:3\n"
    scan, block = read_text(tmp_path, content, row_label_column="labels")
    assert scan.label_names == ("sea", "sky")
    assert block.row_labels.tolist() == [0, 1, -1]
    assert [block.labels_of(bag).tolist() for bag in range(2)] == [[0, 1], []]
    block = read_text(tmp_path, "sea,sun qid:1 1:1\n", labels=("sun", "sky", "sea"))[1]
    assert block.label_indices.tolist() == [0, 2]


def test_svmlight__a_bag_that_returns_is_another_where_bags_are_grouped(tmp_path):
    _, block = read_text(tmp_path, "1 qid:1 1:1\n2 qid:2 1:2\n1 qid:1 1:3\n", group=True)
    assert block.bag_ids == ["1", "2", "1"]


@st.composite
def corpora(draw):
    n_features = draw(st.integers(1, 4))
    number = st.floats(width=32, allow_nan=False, allow_infinity=False)
    row = st.lists(st.just(0.0) | number, min_size=n_features, max_size=n_features)
    bags = draw(st.lists(st.lists(row, min_size=1, max_size=4), min_size=1, max_size=6))
    labels = [sorted(draw(st.sets(st.integers(0, 4)))) for _ in bags]
    return [np.array(bag, np.float32) for bag in bags], labels


@given(corpus=corpora(), base=st.sampled_from([0, 1]), block_bytes=st.sampled_from([8, 1 << 20]))
@pytest.mark.parametrize("span_bytes", [1, 20, 1 << 20])
def test_svmlight__text_of_any_bags_is_read_back(corpus, base, block_bytes, span_bytes):
    bags, labels = corpus
    lines = []
    for name, (bag, bag_labels) in enumerate(zip(bags, labels, strict=True)):
        for row in bag.tolist():
            # The first and the last feature always, so that both their numbers are seen.
            kept = [i for i, x in enumerate(row) if x or i in (0, len(row) - 1)]
            pairs = " ".join(f"{i + base}:{row[i]!r}" for i in reversed(kept))
            lines.append(f"{','.join(map(str, bag_labels))} qid:{name} {pairs}")
    with scratch() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            text.line_blocks, "__kwdefaults__", {"aligned": False, "block_bytes": block_bytes}
        )
        scan, block = read_text(
            folder, "\n".join([*lines, ""]), span_bytes=span_bytes, sparse=False
        )
    want = BagBlock.from_bags(bags, labels)
    assert np.array_equal(block.rows, want.rows)
    assert_same(
        BagBlock(block.bag_offsets, want.rows, block.label_offsets, block.label_indices), want
    )
    assert block.bag_ids == [str(i) for i in range(len(bags))]
    assert sum(span.n_bags for span in scan.spans) == len(bags)
    if span_bytes == 1:
        assert len(scan.spans) == len(bags)


BROKEN = {
    "no qid": ("1 qid:1 1:1\n1 2:1\n", r"line 2: no qid after the labels; qid names the bag"),
    "empty qid": ("1 qid: 1:1\n", r"line 1: no qid after the labels"),
    "cut": (
        "1 qid:1 1:1\n1 qid:1 2\n",
        r"line 2: '2' is not feature:value \(a row of 1 values, "
        r"expected 2\); is the file cut short\?",
    ),
    "word": ("1 qid:1 1:x\n", r"line 1: '1:x' is not feature:value \(value 2 is 'x'"),
    "NaN": ("1 qid:1 1:1\n1 qid:2 1:nan\n", r"line 2: '1:nan' is not feature:value .*only finite"),
    "large": ("1 qid:1 2:1e99\n", r"line 1: feature 2 is 1e\+99, too large for float32"),
    "fraction": ("1 qid:1 1.5:1\n", r"line 1: feature 1.5 is not an integer from 0 to"),
    "negative": ("1 qid:1 -1:1\n", r"line 1: feature -1 is not an integer from 0"),
    "twice": ("1 qid:1 1:1\n1 qid:1 3:1 3:2\n", r"line 2: feature 3 occurs twice in a row"),
    "returns": (
        "1 qid:1 1:1\n1 qid:2 1:1\n1 qid:1 1:1\n",
        r"line 3: bag '1' returns after other bags; --group joins the rows of a bag",
    ),
    "labels differ": (
        "1 qid:1 1:1\n1,2 qid:1 1:1\n",
        r"line 2: labels '1,2', but the bag began with '1'; if they are labels of rows, "
        "give --row-label-column labels",
    ),
    "label twice": ("1 qid:1 1:1\n2,2 qid:2 1:1\n", r"line 2: label 2 occurs twice; remove one"),
    "empty label": (
        "1,,2 qid:1 1:1\n",
        r"line 1: an empty label in '1,,2'; labels are written 3,7",
    ),
    "sign": ("-1 qid:1 1:1\n", r"label '-1' is a number, but labels are counted 0, 1, 2"),
    "empty": ("# nothing\n", r"a\.svmlight has no rows; is it cut short\?"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_svmlight__broken_files_are_refused(tmp_path, case):
    content, match = BROKEN[case]
    with pytest.raises(SourceError, match=match) as error:
        read_text(tmp_path, content)
    assert "a.svmlight" in str(error.value)


@pytest.mark.parametrize(
    ("content", "options", "match"),
    [
        ("1 qid:1 1:1\n7 qid:2 1:1\n", {"labels": ("a", "b")}, r"line 2: label '7' is not known"),
        ("1 qid:1 4:1\n", {"n_features": 3}, r"feature 4 occurs, beyond --n-features 3, counted"),
        (
            "1 qid:1 1:1\n1,2 qid:1 1:1\n",
            {"row_label_column": "labels"},
            r"line 2: a row of 2 labels; a row can have one label, leave --row-label-column out",
        ),
    ],
)
def test_svmlight__options_are_held_to(tmp_path, content, options, match):
    with pytest.raises(SourceError, match=match):
        read_text(tmp_path, content, **options)


def test_tells__by_suffix_or_qid(tmp_path):
    assert READER.tells(tmp_path / "a.svm.zst", b"")
    assert READER.tells(tmp_path / "a.txt", b"# said\n3,7 qid:12 5:0.3\n")
    assert READER.tells(tmp_path / "a.txt", b"qid:12 5:0.3\n")
    assert not READER.tells(tmp_path / "a.txt", b"a,b\n1,2\n")


def test_svmlight__a_last_line_without_end_may_be_cut(tmp_path):
    path = tmp_path / "a.svm"
    path.write_text("1 qid:1 1:0.5\n2 qid:2 1:0.2")
    with pytest.raises(SourceError, match=r"a.svm, line 2: the last line has no line break, so"):
        read_all(READER, path)
