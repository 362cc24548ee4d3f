"""ARFF: relational bags, and one row a bag."""

import gzip
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammiml.bags.block import BagBlock
from streammiml_tools.readers.arff import READER, xml_labels
from streammiml_tools.readers.base import SourceError
from tests.stores import assert_same, scratch, sparse
from tests.tools.readers.foreign import (
    DATA,
    counts_of,
    dense_rows,
    fingerprint_of,
    marks_of,
    read_all,
    without_ids,
)

BAGS = DATA / "readers/bags.arff"
SPARSE = DATA / "readers/rows-sparse.arff"
HEADER = """@relation a
@attribute id string
@attribute bag relational
@attribute f1 numeric
@attribute f2 numeric
@end bag
@attribute sea {0,1}
@attribute sky {0,1}
@data
"""
FLAT = """@relation 'a: -C -2'
@attribute f1 numeric
@attribute f2 numeric
@attribute sea {0,1}
@attribute sky {0,1}
@data
"""


def write(folder, content, name="a.arff"):
    path = folder / name
    path.write_text(content)
    return path


def read_text(folder, content, **options):
    return read_all(READER, write(folder, content), **options)


def test_arff__the_smallest_relational_file(tmp_path):
    path = write(tmp_path, BAGS.read_text())
    scan, block = read_all(READER, path)
    bags = [[[1, 2.5], [-3, 5.36e-4]], [[0.1, 2], [1, 0]], [[7, 8]]]
    want = BagBlock.from_bags(
        [np.array(bag, np.float32) for bag in bags], [[0], [1, 2], []], bag_ids=["b1", "b 2", "b3"]
    )
    assert_same(block, want)
    assert block.bag_ids == want.bag_ids
    assert scan.label_names == ("sea", "sky", "sun")
    assert scan.feature_names == ("red part", "f2")
    assert scan.notes == (
        f"{path}: 3 labels, by the {{0,1}} attributes after the bag",
        f"{path}: bags are named by 'id'",
    )


def test_arff__labels_of_an_xml_go_by_name_and_the_rest_is_passed_over():
    scan, block = read_all(READER, BAGS)
    assert scan.label_names == ("sea", "sun")
    assert marks_of(block, 2).tolist() == [[1, 0], [0, 1], [0, 0]]
    assert f"{BAGS}: skipped, not labels: sky" in scan.notes
    given, again = read_all(READER, [DATA / "readers/bags.xml", BAGS])
    assert given.label_names == scan.label_names
    assert_same(again, block)


def test_arff__label_names_given_by_the_user_decide_the_order():
    scan, block = read_all(READER, BAGS, labels=("sun", "moon", "sea"))
    assert scan.label_names == ("sun", "moon", "sea")
    assert marks_of(block, 3).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    with pytest.raises(SourceError, match="label 'sea' is not known; known: sun, moon"):
        read_all(READER, BAGS, labels=("sun", "moon"))


def test_arff__label_columns_go_before_the_xml():
    scan, block = read_all(READER, BAGS, label_columns=("sky",))
    assert scan.label_names == ("sky",)
    assert marks_of(block, 1).tolist() == [[0], [1], [0]]


def test_arff__the_smallest_sparse_file():
    scan, block = read_all(READER, SPARSE)
    assert scan.sparse
    assert scan.label_names == ("sea", "sky")
    assert dense_rows(block).tolist() == [[0, 2.5], [-100, 0], [0, 0]]
    assert marks_of(block, 2).tolist() == [[1, 0], [0, 1], [0, 0]]
    assert block.bag_offsets.tolist() == [0, 1, 2, 3]
    _, same = read_all(READER, SPARSE, sparse=False)
    assert same.rows.tolist() == dense_rows(block).tolist()


def test_arff__plain_rows_and_labels_of_meka(tmp_path):
    scan, block = read_text(tmp_path, FLAT + "1,2,0,1\n3,0,1,1\n")
    assert (scan.sparse, scan.label_names) == (False, ("sea", "sky"))
    assert block.rows.tolist() == [[1, 2], [3, 0]]
    assert marks_of(block, 2).tolist() == [[0, 1], [1, 1]]
    first = FLAT.replace("-C -2", "-C 1").replace("f1 numeric", "f1 {0,1}") + "1,2,0,1\n"
    assert read_text(tmp_path, first)[0].label_names == ("f1",)


def test_arff__features_of_0_and_1_stay_small(tmp_path):
    scan, block = read_text(tmp_path, FLAT.replace("numeric", "{0,1}") + "{0 1,3 1}\n")
    assert scan.dtype == "uint8"
    assert block.rows.values.dtype == np.uint8
    match = r"a\.arff, line 7: feature 'f2' is 3, expected 0 or 1"
    with pytest.raises(SourceError, match=match):
        read_text(tmp_path, FLAT.replace("numeric", "{0,1}") + "{1 3}\n")


@pytest.mark.parametrize(
    ("name", "pack"),
    [("a.arff.gz", gzip.compress), ("a.arff.zst", pa.Codec("zstd").compress)],
)
def test_arff__compressed_files_are_one_span(tmp_path, name, pack):
    path = tmp_path / name
    path.write_bytes(pack(BAGS.read_bytes()))
    scan, block = read_all(READER, path, span_bytes=10)
    assert len(scan.spans) == 1
    assert_same(block, read_all(READER, BAGS, label_columns=("sea", "sky", "sun"))[1])


def test_tells__by_suffix_first_word_or_the_list_of_labels(tmp_path):
    assert READER.tells(tmp_path / "a.arff.gz", b"")
    assert READER.tells(tmp_path / "a.txt", b"% said\n\n@RELATION a\n")
    assert READER.tells(tmp_path / "a.xml", b"<labels>")
    assert not READER.tells(tmp_path / "a.xml", b"<html>")
    assert not READER.tells(tmp_path / "a.csv", b"a,b\n")


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def corpora(draw):
    n_features = draw(st.integers(1, 3))
    row = st.lists(numbers, min_size=n_features, max_size=n_features)
    bags = draw(st.lists(st.lists(row, min_size=1, max_size=4), min_size=1, max_size=6))
    labels = [sorted(draw(st.sets(st.integers(0, 2)))) for _ in bags]
    return [np.array(bag, np.float32) for bag in bags], labels


@given(corpus=corpora(), quote=st.sampled_from("'\""), space=st.sampled_from(["", " "]))
@pytest.mark.parametrize("span_bytes", [1, 7, 40, 1 << 20])
def test_arff__relational_text_of_any_bags_is_read_back(corpus, quote, space, span_bytes):
    bags, labels = corpus
    cut = f",{space}"
    lines = ["@relation a", "@attribute id string", "@attribute bag relational"]
    lines += [f"@attribute f{i} numeric" for i in range(bags[0].shape[1])]
    lines += ["@end bag", *(f"@attribute l{i} {{0,1}}" for i in range(3)), "@data"]
    for i, (bag, bag_labels) in enumerate(zip(bags, labels, strict=True)):
        rows = "\\n".join(cut.join(map(str, row)) for row in bag.tolist())
        marks = cut.join("1" if label in bag_labels else "0" for label in range(3))
        lines.append(f"bag {i}{cut}{quote}{rows}{quote}{cut}{marks}")
    with scratch() as folder:
        scan, block = read_text(folder, "\n".join(lines), span_bytes=span_bytes)
    assert scan.n_features == bags[0].shape[1]
    assert_same(block, BagBlock.from_bags(bags, labels))
    assert block.bag_ids == [f"bag {i}" for i in range(len(bags))]


@given(corpus=corpora())
@pytest.mark.parametrize("span_bytes", [1, 9, 1 << 20])
def test_arff__sparse_text_of_any_rows_is_read_back(corpus, span_bytes):
    rows, labels = np.concatenate([bag[:1] for bag in corpus[0]]), corpus[1]
    lines = [f"@relation 'a -C {-3}'"]
    lines += [f"@attribute f{i} numeric" for i in range(rows.shape[1])]
    lines += [*(f"@attribute l{i} {{0,1}}" for i in range(3)), "@data"]
    for row, bag_labels in zip(rows.tolist(), labels, strict=True):
        pairs = [f"{i} {value}" for i, value in enumerate(row) if value]
        lines.append(
            "{" + ",".join([*pairs, *(f"{len(row) + label} 1" for label in bag_labels)]) + "}"
        )
    with scratch() as folder:
        _, block = read_text(folder, "\n".join(lines), span_bytes=span_bytes)
    want = BagBlock.from_bags([row[None] for row in rows], labels)
    assert_same(block, BagBlock(want.bag_offsets, sparse(rows), *_labels(want)))


def _labels(block):
    return block.label_offsets, block.label_indices


BROKEN = {
    "no data": ("@relation a\n", r"a\.arff has no @data line; is it ARFF, or cut short\?"),
    "no ARFF": ("id,f1\n", r"line 1: 'id,f1' is not a line of an ARFF header; expected @relation"),
    "no type": ("@attribute f1\n@data\n", r"line 1: '@attribute f1' names no attribute and type"),
    "two bags": (
        HEADER.replace("@data", "@attribute b relational\n@data"),
        r"line 9: a second relational attribute, 'b'; only one can hold the bags",
    ),
    "one name": (HEADER.replace("f2", "f1"), r"two attributes are called 'f1'; rename one"),
    "words": (
        HEADER.replace("f2 numeric", "f2 {red,blue}"),
        r"line 5: feature 'f2' is \{red,blue}, expected numeric or \{0,1}; convert it to numbers",
    ),
    "class": (
        HEADER.replace("sky {0,1}", "sky {yes,no}"),
        r"line 8: attribute 'sky' after the bag is \{yes,no}, not a label; name the labels by XML",
    ),
    "no label": (
        re.sub("@attribute s.*\n", "", HEADER),
        r"a\.arff has no labels after the bag; name them by --label-columns",
    ),
    "no feature": (
        re.sub("@attribute f.*\n", "", HEADER),
        r"a\.arff has no features; is it a multi-instance corpus\?",
    ),
    "no rows": (HEADER + "\n% none\n", r"a\.arff has no rows after @data; is it cut short\?"),
    "ragged": (
        HEADER + 'x,"1,2",0,1\nimg,"1,2\\n3",0,1\n',
        r"a\.arff, line 11: bag 'img', row 1: a row of 1 values, expected 2",
    ),
    "word": (
        HEADER + 'x,"1,2\\n3,four",0,1',
        r"line 10: bag 'x', row 1: value 2 is 'four', expected a number",
    ),
    "missing": (HEADER + 'x,"1,?",0,1', r"bag 'x', row 0: value 2 is '\?', expected a number"),
    "NaN": (HEADER + 'x,"1,NaN",0,1', r"line 10: bag 'x', row 0: value 2 is nan; only finite"),
    "large": (HEADER + 'x,"1,1e300",0,1', r"value 2 is 1e\+300, too large for float32"),
    "mark": (HEADER + 'x,"1,2",0,2', r"line 10: label 'sky' is 2, expected 0 or 1"),
    "sign": (HEADER + 'x,"1,2",-1,1', r"line 10: label 'sea' is -1, expected 0 or 1"),
    "few marks": (
        HEADER + 'x,"1,2",0,1\ny,"1,2",0',
        r"line 11: among the labels, a row of 1 values, expected 2; is the file cut short\?",
    ),
    "cut in a bag": (
        HEADER + 'x,"1,2",0,1\ny,"1,2\\n3',
        r"line 11: value 2 has no end: a quote or comma is missing; is the file cut short\?",
    ),
    "cut after an id": (HEADER + "x", r"line 10: value 2 has no end"),
    "id twice": (
        HEADER + 'x,"1,2",0,1\nx,"3,4",0,1',
        r"line 11: bag 'x' occurs twice; ids must be unique",
    ),
    "not UTF-8": ("@relation \udcff\n", r"line 1: byte 0xff is not UTF-8"),
    "no labels told": (
        FLAT.replace(": -C -2", "") + "1,2,0,1",
        r"a\.arff does not say which of its 4 attributes are labels; give its XML as a source too, "
        "or --label-columns",
    ),
    "flat, no rows": (FLAT, r"a\.arff has no rows after @data; is it cut short\?"),
    "flat, label of words": (
        FLAT.replace("sea {0,1}", "sea {a,b}") + "1,2,0,1",
        r"line 4: label 'sea' is \{a,b}, expected \{0,1}",
    ),
    "flat, mixed": (FLAT + "{0 1}\n1,2,0,1\n", r"line 8: sparse \{…} and dense rows are mixed"),
    "flat, ragged": (FLAT + "1,2,0,1\n1,2,0\n", r"line 8: a row of 3 values, expected 4"),
    "sparse, open": (FLAT + "{0 1}\n{0 1,1", r"line 8: the row has no closing }; is the file cut"),
    "sparse, pair": (FLAT + "{0 1,1}\n", r"line 7: not 'attribute value': a row of 1 values"),
    "sparse, outside": (FLAT + "{0 1,4 1}\n", r"line 7: attribute 4 is outside 0 to 3"),
    "sparse, fraction": (FLAT + "{0.5 1}\n", r"line 7: attribute 0.5 is outside 0 to 3"),
    "sparse, twice": (FLAT + "{}\n{1 1,1 2}\n", r"line 8: attribute 1 occurs twice"),
    "sparse, mark": (FLAT + "{3 2}\n", r"line 7: label 'sky' is 2, expected 0 or 1"),
    "sparse, NaN": (FLAT + "{0 nan}\n", r"line 7: not 'attribute value': value 2 is nan"),
    "sparse, large": (FLAT + "{1 1e99}\n", r"line 7: feature 1 is 1e\+99, too large for float32"),
    "sparse, other zero": (
        FLAT.replace("sky {0,1}", "sky {1,0}") + "{0 1}\n",
        r"line 5: 'sky' is \{1,0}, so that 1 is the value of sparse rows that leave it out; w",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_arff__broken_files_are_refused(tmp_path, case):
    content, match = BROKEN[case]
    (tmp_path / "a.arff").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(SourceError, match=match) as error:
        read_all(READER, tmp_path / "a.arff")
    assert "\n" not in str(error.value)


def test_arff__an_xml_beside_is_hinted_at(tmp_path):
    write(tmp_path, "<labels/>", "Other.xml")
    with pytest.raises(SourceError, match=r"give its XML \(here: Other\.xml\) as a source too"):
        read_text(tmp_path, FLAT.replace(": -C -2", ""))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("<labels><label", r"a\.xml is not XML: .*; fetch it again"),
        ("<labels/>", r"a\.xml lists no labels; expected <labels><label name=…>"),
        ("<labels><label name='moon'/></labels>", r"label 'moon' of \S+a\.xml is not an attribute"),
        (
            "<!DOCTYPE a [<!ENTITY b 'c'>]><labels/>",
            r"a\.xml: a list of labels must have no document",
        ),
    ],
)
def test_arff__a_broken_xml_is_refused(tmp_path, content, match):
    write(tmp_path, content, "a.xml")
    with pytest.raises(SourceError, match=match):
        read_text(tmp_path, HEADER)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_arff__an_xml_with_entities_is_refused_in_every_encoding(tmp_path, encoding):
    text = "<!DOCTYPE a [<!ENTITY b 'sea'>]><labels><label name='&b;'/></labels>"
    (tmp_path / "a.xml").write_bytes(text.encode(encoding))
    with pytest.raises(SourceError, match=r"a\.xml: a list of labels must have no document"):
        xml_labels(tmp_path / "a.xml")


@pytest.mark.parametrize("encoding", ["utf-8", "iso-8859-1", "utf-16", "cp1252"])
def test_arff__an_xml_is_read_in_the_encoding_that_it_declares(tmp_path, encoding):
    text = f"<?xml version='1.0' encoding='{encoding}'?><labels><label name='forêt'/></labels>"
    (tmp_path / "a.xml").write_bytes(text.encode(encoding))
    assert xml_labels(tmp_path / "a.xml") == ["forêt"]


@pytest.mark.parametrize(
    ("encoding", "reason"),
    [("utf99", "unknown encoding: utf99"), ("utf-7", "multi-byte|not well-formed|undefined")],
)
def test_arff__an_xml_of_an_encoding_that_nobody_knows_is_refused(tmp_path, encoding, reason):
    text = f"<?xml version='1.0' encoding='{encoding}'?><labels><label name='a+ADw-'/></labels>"
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(SourceError, match=rf"a\.xml is not XML: .*({reason}).*; fetch it again"):
        xml_labels(tmp_path / "a.xml")


def test_arff__files_must_belong_together(tmp_path):
    one = write(tmp_path, HEADER + 'x,"1,2",0,1')
    two = write(tmp_path, HEADER.replace("f2", "g2") + 'x,"1,2",0,1', "b.arff")
    with pytest.raises(SourceError, match=r"b\.arff has other attributes than \S+a\.arff; convert"):
        read_all(READER, [one, two])
    lists = [write(tmp_path, "<labels/>", name) for name in ("a.xml", "b.xml")]
    with pytest.raises(SourceError, match=r"b\.xml: a second XML file beside \S+a\.xml; give one"):
        read_all(READER, [one, *lists])
    with pytest.raises(SourceError, match=r"a\.xml lists labels only; give the ARFF too"):
        read_all(READER, lists[:1])


def relational(path):
    """Bags and marks of a relational file, read plainly."""
    bags, marks = [], []
    for line in path.read_text().split("@data")[1].strip().splitlines():
        _, rows, rest = line.split('"')
        bags.append([[float(x) for x in row.split(",")] for row in rows.split("\\n")])
        marks.append([int(x) for x in rest.strip(", ").split(",")])
    return [np.array(bag).astype(np.float32) for bag in bags], np.array(marks)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("scene/miml_03_data.arff", (18000, 2000, 5, 1.236, 15)),
        ("reuters/miml_text_data.arff", (7119, 2000, 7, 1.154, 243)),
        ("miml_birds/miml_birds.arff", (2062, 257, 19, 2.066, 38)),
        ("miml_birds/toy.arff", (5, 2, 4, 2.0, 3)),
    ],
)
def test_arff__real_relational_files(real_data, name, counts):
    scan, block = read_all(READER, real_data / name, span_bytes=100_000)
    assert counts_of(scan, block) == counts
    bags, marks = relational(real_data / name)
    assert np.array_equal(np.concatenate(bags), block.rows)
    assert block.bag_offsets.tolist() == np.cumsum([0, *map(len, bags)]).tolist()
    assert np.array_equal(marks_of(block, counts[2]), marks)


def test_arff__real_sparse_files(real_data):
    folder = real_data / "corel5k_tokens"
    names = ("Corel5k-train-sparse.arff", "Corel5k-test-sparse.arff", "Corel5k.xml")
    scan, block = read_all(READER, [folder / name for name in names])
    assert counts_of(scan, block) == (5000, 5000, 374, 3.522, 499)
    assert scan.dtype == "uint8"
    want = np.load(folder / "data.npz")
    assert np.array_equal(block.label_offsets, want["label_indptr"])
    assert np.array_equal(block.label_indices, want["label_indices"])
    # Of the test images the archive leaves out the last cluster, which nearly all of them have.
    tokens = np.add.reduceat(want["instances"], want["offsets"][:-1])
    rows = dense_rows(block)
    assert np.array_equal(rows[:4500], tokens[:4500])
    assert np.array_equal(rows[4500:, :-1], tokens[4500:, :-1])
    assert rows[4500:, -1].sum() == 499
    fingerprint = fingerprint_of(scan, block)
    again = read_all(READER, [folder / name for name in names], span_bytes=5000, sparse=False)
    assert fingerprint_of(*without_ids(*again)) == fingerprint
