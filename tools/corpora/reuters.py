"""Documents as bags of sentences: rows are sparse TF-IDF vectors, topics are labels.

Reads JSON lines with ``id``, ``title``, ``body`` and ``topics``, a common form of Reuters-21578. A
first pass counts the documents of each word, and a second pass writes bags. Neither pass holds all
documents. The vocabulary is saved, so that later documents get the same columns. Rows are made by a
TfidfVectorizer of scikit-learn.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from crc32c import crc32c
from numpy.typing import NDArray

from streammiml._base.atomic import write_atomically
from streammiml.bags.block import BagBlock, SparseRows
from streammiml.bags.offsets import from_sizes
from streammiml.bags.store import BagStore
from streammiml.bags.validate import StoreSpec
from streammiml.bags.writer import BagWriter
from streammiml.errors import StreammimlError, unknown
from streammiml_tools.convert.split_and_filter import Split
from streammiml_tools.readers.base import SourceError
from streammiml_tools.readers.text import line_blocks, where

PART_DOCUMENTS = 2048
VERSION = 1
WORD = re.compile(r"[a-z]+(?:['-][a-z]+)*")
# A full stop ends a sentence if a space and then a capital, a digit or a quote follow.
STOP = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*[A-Z0-9])")
PARAGRAPH = re.compile(r"\n(?=[ \t]{2,})|\n\s*\n")
# Words whose full stop does not end a sentence: titles, firms, months, initials.
ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:mr|mrs|ms|dr|st|gen|sen|rep|gov|inc|corp|co|ltd|cos|no|vs|etc|jr|sr|"
    r"jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec|[a-z](?:\.[a-z])*)\.$",
    re.IGNORECASE,
)
SIGNATURE = re.compile(r"\s*\breuters?\b[\s;&#\x00-\x1f0-9]*$", re.IGNORECASE)


def sentences(text: str) -> list[str]:
    """Split a text into sentences, which may span lines but not paragraphs."""
    texts: list[str] = []
    for paragraph in PARAGRAPH.split(SIGNATURE.sub("", text)):
        text = ""
        for piece in STOP.split(" ".join(paragraph.split())):
            text = f"{text} {piece}" if text else piece
            if not ABBREVIATION.search(text):
                texts.append(text)
                text = ""
        texts.append(text)
    return [text for text in texts if text]


def words(sentence: str) -> list[str]:
    """Return the words of two or more letters, in lower case; numbers are left out."""
    return [word for word in WORD.findall(sentence.lower()) if len(word) > 1]


class Document(NamedTuple):
    """A document of the source."""

    number: int
    offset: int
    id: str
    sentences: list[str]
    """The title comes first."""
    topics: list[str]


def read_documents(path: Path) -> Iterator[Document]:
    """Yield all documents of a file of JSON lines, plain, gzip or zstd."""
    number = 0
    for block in line_blocks(path):
        for offset, line in block.with_offsets():
            if line.strip():
                yield _document(path, offset, number, line)
                number += 1
    if not number:
        raise SourceError(f"{path} has no documents")


def _document(path: Path, offset: int, number: int, line: bytes) -> Document:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise SourceError(
            f"{where(path, offset)}: not JSON ({error.msg}); is the file cut short?"
        ) from None
    record = record if isinstance(record, dict) else {}
    title, body, topics = (record.get(key) for key in ("title", "body", "topics"))
    texts = [text for text in (title, body) if text is not None]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise SourceError(f"{where(path, offset)}: a document needs 'title' or 'body', as text")
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise SourceError(f"{where(path, offset)}: 'topics' must be a list of names")
    texts = [" ".join(title.split())] if title else []
    texts += sentences(body) if body else []
    return Document(number, offset, str(record.get("id", number)), texts, topics)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words with the number of documents of each, and topics; both are sorted."""

    n_documents: int
    counts: dict[str, int]
    topics: tuple[str, ...]

    def save(self, path: Path) -> None:
        """Write the vocabulary as JSON."""
        record = {
            "streammiml_vocabulary": VERSION,
            "n_documents": self.n_documents,
            "topics": self.topics,
            "counts": self.counts,
        }
        write_atomically(path, json.dumps(record, ensure_ascii=False, indent=0).encode())

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read a vocabulary that :meth:`save` has written."""
        try:
            record = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            raise StreammimlError(
                f"{path} does not exist; leave --vocabulary out to make a new vocabulary"
            ) from None
        except orjson.JSONDecodeError:
            raise StreammimlError(f"{path} is not a vocabulary: it is not JSON") from None
        version = record.get("streammiml_vocabulary") if isinstance(record, dict) else None
        if version != VERSION:
            raise StreammimlError(
                f"{path} is not a known vocabulary: version {version}, expected {VERSION}"
            )
        return cls(record["n_documents"], record["counts"], tuple(record["topics"]))

    def vectorizer(self, *, unit: bool = False) -> Any:
        """Return a TfidfVectorizer of scikit-learn, as if fitted to the counted documents.

        Its own ``fit`` would hold the counts of all documents in memory.
        """
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415  an extra
        except ImportError:
            raise StreammimlError(
                "rows of documents are made by scikit-learn: pip install 'streammiml[sklearn]'"
            ) from None
        vectorizer = TfidfVectorizer(
            analyzer=words, vocabulary=list(self.counts), norm="l2" if unit else None
        )
        top = 1 + self.n_documents
        vectorizer.idf_ = np.array(
            [1 + math.log(top / (1 + count)) for count in self.counts.values()]
        )
        return vectorizer


def fit_vocabulary(
    path: Path, *, min_documents: int = 5, split: Split | None = None, seed: int = 0
) -> Vocabulary:
    """Make a vocabulary of the words that occur in at least ``min_documents`` documents.

    Words are counted in the first store of the split, topics in all documents.
    """
    if min_documents < 1:
        raise StreammimlError(f"min_documents must be at least 1, got {min_documents}")
    counts: Counter[str] = Counter()
    topics: set[str] = set()
    n_documents = 0
    for document in read_documents(path):
        topics.update(document.topics)
        if split is None or _split_of(document.number, split, seed) == 0:
            counts.update({word for sentence in document.sentences for word in words(sentence)})
            n_documents += 1
    frequent = {word: counts[word] for word in sorted(counts) if counts[word] >= min_documents}
    if not frequent:
        raise StreammimlError(
            f"{path}: no word occurs in {min_documents} documents; lower --min-documents"
        )
    return Vocabulary(n_documents, frequent, tuple(sorted(topics)))


def _split_of(number: int, split: Split, seed: int) -> int:
    return int(split.of_numbers(np.array([number]), seed)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOptions:
    """How documents become bags."""

    unit: bool = False
    """Whether rows are scaled to length 1; training can scale them too."""
    unknown_topics: str = "refuse"
    """``refuse`` or ``drop`` topics that the vocabulary does not have."""

    def __post_init__(self) -> None:
        if self.unknown_topics not in ("refuse", "drop"):
            raise unknown("policy for unknown topics", self.unknown_topics, ("refuse", "drop"))


class DocumentBags:
    """Collects documents into a block; a sentence without a known word is left out.

    ``vectorizer`` makes a sparse row of each sentence: a fitted one of scikit-learn, or any object
    with such a ``transform``.
    """

    def __init__(self, vocabulary: Vocabulary, options: DocumentOptions, vectorizer: Any) -> None:
        self._options, self._vectorizer = options, vectorizer
        self._topics = {name: number for number, name in enumerate(vocabulary.topics)}
        self._n_features = len(vocabulary.counts)
        self._sentences: list[str] = []
        self._n_sentences: list[int] = []
        self._labels: list[list[int]] = []
        self._ids: list[str] = []

    def add(self, document: Document, path: Path) -> None:
        """Add a document."""
        self._sentences += document.sentences
        self._n_sentences.append(len(document.sentences))
        missing = [topic for topic in document.topics if topic not in self._topics]
        if missing and self._options.unknown_topics == "refuse":
            raise SourceError(
                f"{where(path, document.offset)}: topic {missing[0]!r} is not in the vocabulary; "
                "--unknown-topics drop leaves it out"
            )
        labels = {self._topics[topic] for topic in document.topics if topic in self._topics}
        self._labels.append(sorted(labels))
        self._ids.append(document.id)

    def block(self) -> BagBlock:
        """Return all documents added so far."""
        rows, has_words = self._rows()
        n_before = from_sizes(has_words)
        return BagBlock(
            n_before[from_sizes(self._n_sentences)],
            rows,
            from_sizes([len(labels) for labels in self._labels]),
            np.array([label for labels in self._labels for label in labels], np.int32),
            bag_ids=self._ids,
        )

    def _rows(self) -> tuple[SparseRows, NDArray[np.bool_]]:
        """Rows of the sentences with known words, and which sentences these are."""
        if not self._sentences:
            # A vectorizer refuses an empty list.
            no_rows = (np.zeros(1, np.int64), np.empty(0, np.uint32), np.empty(0, np.float32))
            return SparseRows(*no_rows, self._n_features), np.empty(0, bool)
        matrix = self._vectorizer.transform(self._sentences).tocsr()
        matrix.sort_indices()
        has_words = np.diff(matrix.indptr) > 0
        matrix = matrix[has_words]
        rows = SparseRows(
            matrix.indptr.astype(np.int64),
            matrix.indices.astype(np.uint32),
            matrix.data.astype(np.float32),
            self._n_features,
        )
        return rows, has_words


def write_documents(
    path: Path,
    stores: dict[str, Path],
    vocabulary: Vocabulary,
    options: DocumentOptions = DocumentOptions(),  # noqa: B008  it is frozen
    *,
    split: Split | None = None,
    seed: int = 0,
    codec: str = "auto",
) -> list[BagStore]:
    """Write documents to one store, or to one store for each name of the split.

    The same call again resumes stores that were begun before. A document without any word of the
    vocabulary is dropped and counted.
    """
    spec = StoreSpec(
        n_features=len(vocabulary.counts),
        sparse=True,
        label_names=vocabulary.topics,
        feature_names=tuple(vocabulary.counts),
        bag_ids=True,
        codec=codec,
        empty_bags="drop",
    )
    stat = path.stat()
    checksum = crc32c(json.dumps([vocabulary.n_documents, vocabulary.counts]).encode())
    # This text identifies half-written stores. Keep it, so that stores of earlier versions resume.
    how = f"Made(unit={options.unit!r}, unknown_topics={options.unknown_topics!r})"
    source = f"reuters {stat.st_size} {stat.st_mtime_ns} {how} {split} {seed} {checksum}"
    with ExitStack() as stack:
        writers = [
            stack.enter_context(BagWriter.begin(store, spec, source=f"{source} {name}"))
            for name, store in stores.items()
        ]
        n_parts = 0
        vectorizer = vocabulary.vectorizer(unit=options.unit)
        for part in _parts(read_documents(path)):
            bags_of = [DocumentBags(vocabulary, options, vectorizer) for _ in writers]
            for document in part:
                which = 0 if split is None else _split_of(document.number, split, seed)
                bags_of[which].add(document, path)
            for writer, bags in zip(writers, bags_of, strict=True):
                writer.write_part(n_parts, bags.block())
            n_parts += 1
        return [writer.finish(n_parts) for writer in writers]


def _parts(documents: Iterator[Document]) -> Iterator[list[Document]]:
    part: list[Document] = []
    for document in documents:
        part.append(document)
        if len(part) == PART_DOCUMENTS:
            yield part
            part = []
    if part:
        yield part


def reuters(
    documents: Path,
    store: Path,
    /,
    *,
    split: str | None = None,
    seed: int = 0,
    vocabulary: Path | None = None,
    min_documents: int = 5,
    unit: bool = False,
    unknown_topics: str = "refuse",
    codec: str = "auto",
) -> None:
    """Turn DOCUMENTS into bags of sentences and write them to STORE.

    Parameters
    ----------
    documents
        JSON lines with id, title, body and topics; gzip and zstd too.
    store
        Store to write; its suffix, .zarr or .parquet, decides the backend.
    split
        Write several stores, such as train=0.7,test=0.3; words are counted in the first store.
    seed
        Seed of the split.
    vocabulary
        Vocabulary of an earlier call, for later documents; by default a new vocabulary is made, and
        written beside STORE.
    min_documents
        Number of documents that a word of the vocabulary must occur in.
    unit
        Scale rows to length 1.
    unknown_topics
        ``refuse`` or ``drop`` topics that the vocabulary does not have.
    codec
        ``none``, ``lz4`` or ``zstd``.
    """
    shares = None if split is None else Split.parse(split)
    options = DocumentOptions(unit=unit, unknown_topics=unknown_topics)
    if vocabulary is not None:
        terms = Vocabulary.load(vocabulary)
    else:
        terms = fit_vocabulary(documents, min_documents=min_documents, split=shares, seed=seed)
        vocabulary_path = store.with_name(f"{store.stem}.vocabulary.json")
        terms.save(vocabulary_path)
        print(f"{vocabulary_path}: {len(terms.counts):,} words, {len(terms.topics)} topics")
    stores = {"": store}
    if shares is not None:
        stores = {
            name: store.with_name(f"{store.stem}-{name}{store.suffix}") for name in shares.names
        }
    for written in write_documents(
        documents, stores, terms, options, split=shares, seed=seed, codec=codec
    ):
        print(f"{written.name}: {written.n_bags:,} documents of {written.n_rows:,} sentences")
