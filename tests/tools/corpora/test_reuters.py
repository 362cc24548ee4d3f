import json
import math
from collections import Counter
from unittest import mock

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sklearn", reason="rows of documents are made by scikit-learn")

from sklearn.feature_extraction.text import TfidfVectorizer

from streammiml.bags.store import open_store
from streammiml.errors import StreammimlError
from streammiml_tools.command import run_command
from streammiml_tools.convert.split_and_filter import Split
from streammiml_tools.corpora import reuters
from streammiml_tools.corpora.reuters import (
    DocumentBags,
    DocumentOptions,
    Vocabulary,
    fit_vocabulary,
    read_documents,
    sentences,
    words,
    write_documents,
)
from tests.stores import assert_same

DOCUMENTS = [
    {"id": "1", "title": "Cocoa up", "topics": ["cocoa"], "body": "Cocoa rose. Prices fell."},
    {
        "id": "2",
        "title": "Grain",
        "topics": ["grain", "corn"],
        "body": "Corn prices rose, corn said.",
    },
    {"id": "3", "title": "Nothing", "topics": [], "body": "Of 1987.\n Reuter\n\u0003"},
    {
        "id": "4",
        "title": "More cocoa",
        "topics": ["cocoa"],
        "body": "Prices rose.\n    Cocoa fell.",
    },
]


def write(path, documents=DOCUMENTS):
    raw = b"".join(orjson.dumps(document) + b"\n" for document in documents)
    if path.suffix == ".gz":
        raw = pa.compress(raw, codec="gzip", asbytes=True)
    path.write_bytes(raw)
    return path


@pytest.fixture
def documents(tmp_path):
    return write(tmp_path / "documents.jsonl.gz")


# --- text --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("One is here. Two is there.", ["One is here.", "Two is there."]),
        (
            'It rose\nto 5.93 mln. "We hope," he said.',
            ["It rose to 5.93 mln.", '"We hope," he said.'],
        ),
        ("Mr. Smith of the U.S. Treasury said so.", ["Mr. Smith of the U.S. Treasury said so."]),
        ("Smith Corp. Ltd. said. No more.", ["Smith Corp. Ltd. said.", "No more."]),
        ("A heading\n    A paragraph\nof two lines", ["A heading", "A paragraph of two lines"]),
        ("Last. \n Reuter\n\x03", ["Last."]),
        ("Why? Because! 12 of them.", ["Why?", "Because!", "12 of them."]),
        ("", []),
    ],
)
def test_sentences__end_where_they_should(text, want):
    assert sentences(text) == want


@given(st.text(st.sampled_from("aB. \n?!'\"(1")))
def test_sentences__lose_nothing(text):
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


def test_words__are_letters_only():
    assert words("The U.S. dollar's 5.93-mln low-cost A 1987 re-export") == [
        "the",
        "dollar's",
        "mln",
        "low-cost",
        "re-export",
    ]


# --- vocabulary and bags -----------------------------------------------------------------------


def test_fit_vocabulary__counts_documents_and_keeps_frequent_words(documents):
    vocabulary = fit_vocabulary(documents, min_documents=2)
    assert vocabulary.counts == {"cocoa": 2, "fell": 2, "prices": 3, "rose": 3}
    assert list(vocabulary.counts) == sorted(vocabulary.counts)
    assert (vocabulary.n_documents, vocabulary.topics) == (4, ("cocoa", "corn", "grain"))


def test_write_documents__rows_are_tf_idf_of_sentences(documents, tmp_path):
    known = fit_vocabulary(documents, min_documents=1)
    (store,) = write_documents(documents, {"": tmp_path / "a.zarr"}, known)
    block = store.read(0, store.n_bags)
    names = list(known.counts)
    row = 0
    for document in read_documents(documents):
        for sentence in document.sentences:
            counts = Counter(words(sentence))
            if not counts:
                continue
            want = np.zeros(len(names))
            for word, count in counts.items():
                idf = 1 + math.log((1 + 4) / (1 + known.counts[word]))
                want[names.index(word)] = count * idf
            np.testing.assert_allclose(block.rows.slice(row, row + 1).dense()[0], want, rtol=1e-6)
            row += 1
    assert row == block.n_rows
    assert store.bag_ids(0, 4) == ["1", "2", "3", "4"]
    assert [block.labels_of(bag).tolist() for bag in range(4)] == [[0], [1, 2], [], [0]]
    assert (store.feature_names, store.label_names) == (names, ["cocoa", "corn", "grain"])


def test_vectorizer__is_the_one_that_scikit_learn_fits(documents):
    known = fit_vocabulary(documents, min_documents=2)
    fitted = TfidfVectorizer(
        analyzer=lambda of_document: [word for text in of_document for word in words(text)],
        min_df=2,
        norm=None,
    ).fit([document.sentences for document in read_documents(documents)])
    made = known.vectorizer()
    assert list(made.get_feature_names_out()) == list(fitted.get_feature_names_out())
    np.testing.assert_array_equal(made.idf_, fitted.idf_)
    texts = ["Cocoa rose, cocoa fell.", "prices of gold"]
    want = fitted.transform([[text] for text in texts])
    assert (made.transform(texts) != want).nnz == 0


def test_vectorizer__without_scikit_learn_is_told(documents, tmp_path):
    known = fit_vocabulary(documents, min_documents=1)
    message = r"rows of documents are made by scikit-learn: pip install 'streammiml\[sklearn\]'"
    with (
        mock.patch.dict("sys.modules", {"sklearn.feature_extraction.text": None}),
        pytest.raises(StreammimlError, match=message),
    ):
        write_documents(documents, {"": tmp_path / "a.zarr"}, known)


def test_bags__without_documents_have_no_rows(documents):
    known = fit_vocabulary(documents, min_documents=1)
    block = DocumentBags(known, DocumentOptions(), known.vectorizer()).block()
    assert (len(block), block.n_rows, block.n_features) == (0, 0, len(known.counts))


def test_write_documents__unit_rows_have_length_one(documents, tmp_path):
    known = fit_vocabulary(documents, min_documents=1)
    (store,) = write_documents(
        documents, {"": tmp_path / "a.zarr"}, known, DocumentOptions(unit=True)
    )
    rows = store.read(0, store.n_bags).rows.dense()
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)


def test_write_documents__those_without_known_words_are_dropped_and_counted(documents, tmp_path):
    known = fit_vocabulary(documents, min_documents=2)
    (store,) = write_documents(documents, {"": tmp_path / "a.parquet"}, known)
    assert store.bag_ids(0, store.n_bags) == ["1", "2", "4"]
    assert store.manifest.dropped_bags == 1


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_write_documents__is_the_same_however_it_is_cut(documents, tmp_path, size):
    known = fit_vocabulary(documents, min_documents=1)
    (store,) = write_documents(documents, {"": tmp_path / "a.zarr"}, known)
    with mock.patch.object(reuters, "PART_DOCUMENTS", size):
        (cut,) = write_documents(documents, {"": tmp_path / "b.zarr"}, known)
    assert_same(cut.read(0, 4), store.read(0, 4))


def test_split__words_are_counted_in_the_first_part_and_every_document_is_in_one(tmp_path):
    many = [
        {**DOCUMENTS[i % 4], "id": str(i), "body": f"Only{chr(97 + i)} here"} for i in range(26)
    ]
    path = write(tmp_path / "d.jsonl", many)
    split = Split.parse("train=0.5,test=0.5")
    known = fit_vocabulary(path, min_documents=1, split=split, seed=3)
    stores = {name: tmp_path / f"d-{name}.zarr" for name in split.names}
    train, test = write_documents(path, stores, known, split=split, seed=3)
    ids = [store.bag_ids(0, store.n_bags) for store in (train, test)]
    assert sorted(map(int, ids[0] + ids[1])) == list(range(26))
    assert known.n_documents == len(ids[0])
    assert {f"only{chr(97 + int(i))}" for i in ids[0]} < set(known.counts)
    assert not {f"only{chr(97 + int(i))}" for i in ids[1]} & set(known.counts)


def test_vocabulary__saved_and_loaded_tells_later_documents_by_the_same_words(
    documents, tmp_path, capsys
):
    assert run_command(reuters.reuters, [str(documents), str(tmp_path / "a.zarr")]) == 2
    assert "no word occurs in 5 documents; lower --min-documents" in capsys.readouterr().err
    words_of = ["--min-documents", "2"]
    assert run_command(reuters.reuters, [str(documents), str(tmp_path / "a.zarr"), *words_of]) == 0
    assert "a.vocabulary.json: 4 words, 3 topics" in capsys.readouterr().out
    later = write(tmp_path / "later.jsonl", [{**DOCUMENTS[0], "title": "Unheard of cocoa"}])
    known = ["--vocabulary", str(tmp_path / "a.vocabulary.json")]
    assert run_command(reuters.reuters, [str(later), str(tmp_path / "b.zarr"), *known]) == 0
    first, second = (open_store(tmp_path / name) for name in ("a.zarr", "b.zarr"))
    assert (first.feature_names, first.label_names) == (second.feature_names, second.label_names)
    cocoa = second.read(0, 1).rows.slice(0, 1)
    assert (cocoa.columns.tolist(), len(cocoa.values)) == ([0], 1)


def test_command__splits(documents, tmp_path, capsys):
    words_of = ["--min-documents", "1", "--split", "train=0.5,test=0.5", "--seed", "2"]
    assert run_command(reuters.reuters, [str(documents), str(tmp_path / "a.zarr"), *words_of]) == 0
    out = capsys.readouterr().out
    assert "a-train.zarr: " in out
    assert "a-test.zarr: " in out


def test_real_documents__have_the_counts_of_the_set(real_data):
    path = real_data / "reuters21578/documents.jsonl.gz"
    corpus = list(read_documents(path))
    assert len(corpus) == 10_377
    n_sentences = sum(len(document.sentences) for document in corpus)
    assert 60_000 < n_sentences < 90_000
    assert all(document.sentences for document in corpus)


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"id": 1, "tit',
            r"d.jsonl, line 2: not JSON \(unexpected end of data.*\); is the file cut short",
        ),
        ("[1]", r"d.jsonl, line 2: a document needs 'title' or 'body', as text$"),
        ('{"title": 5, "topics": []}', r"line 2: a document needs 'title' or 'body', as text$"),
        ('{"title": "a", "topics": "b"}', r"line 2: 'topics' must be a list of names$"),
        ('{"title": "a", "topics": [1]}', r"line 2: 'topics' must be a list of names$"),
    ],
)
def test_read_documents__refuses_what_is_broken_with_its_line(tmp_path, line, message):
    path = write(tmp_path / "d.jsonl", DOCUMENTS[:1])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(StreammimlError, match=message):
        list(read_documents(path))


def test_read_documents__refuses_an_empty_file(tmp_path):
    with pytest.raises(StreammimlError, match=r"d.jsonl has no documents$"):
        list(read_documents(write(tmp_path / "d.jsonl", [])))


def test_write_documents__unknown_topics_are_refused_or_dropped(documents, tmp_path):
    known = fit_vocabulary(documents, min_documents=1)
    later = write(tmp_path / "later.jsonl", [{**DOCUMENTS[0], "topics": ["cocoa", "tea"]}])
    with pytest.raises(
        StreammimlError, match=r"later.jsonl, line 1: topic 'tea' is not in the voc"
    ):
        write_documents(later, {"": tmp_path / "a.zarr"}, known)
    dropping = DocumentOptions(unknown_topics="drop")
    (store,) = write_documents(later, {"": tmp_path / "b.zarr"}, known, dropping)
    assert store.read(0, 1).label_indices.tolist() == [0]
    with pytest.raises(
        StreammimlError, match=r"^no policy for unknown topics is called 'keep'; kn"
    ):
        DocumentOptions(unknown_topics="keep")


def test_vocabulary__refuses_other_files(tmp_path):
    path = tmp_path / "v.json"
    with pytest.raises(
        StreammimlError, match=r"v.json does not exist; leave --vocabulary out to m"
    ):
        Vocabulary.load(path)
    path.write_text("words")
    with pytest.raises(StreammimlError, match=r"v.json is not a vocabulary: it is not JSON$"):
        Vocabulary.load(path)
    path.write_text(json.dumps({"streammiml_vocabulary": 9}))
    with pytest.raises(StreammimlError, match=r"v.json is not a known vocabulary: version 9,"):
        Vocabulary.load(path)


def test_fit_vocabulary__refuses_a_number_below_one(documents):
    with pytest.raises(StreammimlError, match=r"^min_documents must be at least 1, got 0$"):
        fit_vocabulary(documents, min_documents=0)
